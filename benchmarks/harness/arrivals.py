"""Open-loop load: requests arrive at a fixed rate, however slowly they are answered.

wrk and h2load send the next request when the one before it is answered, so they never ask for more than there is.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from benchmarks.harness.payloads import Payload, Question, grpc_message

TICK_S = 0.001
DRAIN_S = 30.0
MAX_CONNECTIONS = 4096
FRAME_PREFIX_BYTES = 5
SERVICE = "inference.GRPCInferenceService"
REQUESTS_OF_A_STREAM = 100
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass
class Books:
    """Outcome of requests: `waited` and `turned_away` are seconds from sending to the answer and the refusal."""

    sent: int = 0
    waited: list[float] = field(default_factory=list)
    turned_away: list[float] = field(default_factory=list)
    without_time: int = 0  # refusals that did not say when to come again
    broken: list[str] = field(default_factory=list)  # everything else, in words
    not_sent: int = 0  # for want of connections

    @property
    def open(self) -> int:
        """How many have got no answer yet."""
        return self.sent - len(self.waited) - len(self.turned_away) - len(self.broken)


class Sender(Protocol):
    """A way to send one request after another without waiting."""

    @property
    def connections(self) -> int:
        """How many connections to the server are open."""

    def send(self, books: Books) -> None:
        """Send one request and record its outcome."""

    async def close(self) -> None:
        """Hang up."""


async def arrive(sender: Sender, rate: float, seconds: float, books: Books) -> None:
    """Send `rate` requests a second, evenly, and wait for the last answers."""
    started = perf_counter()
    due = sent = 0
    while (now := perf_counter() - started) < seconds:
        due = int(now * rate)
        while sent < due:
            sender.send(books)
            sent += 1
        await asyncio.sleep(TICK_S)
    for _ in range(int(DRAIN_S / TICK_S)):
        if not books.open:
            return
        await asyncio.sleep(TICK_S)
    books.broken += ["no answer"] * books.open


class HttpSender:
    """One request at a time on each of as many connections as it takes."""

    def __init__(self, address: str, payload: Payload) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        headers = "".join(f"{name}: {value}\r\n" for name, value in payload.headers.items())
        head = (
            f"POST {payload.path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {len(payload.body)}\r\n\r\n"
        )
        self._bytes = head.encode() + payload.body
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many connections to the server are open."""
        return len(self._all)

    def send(self, books: Books) -> None:
        """Send one over a connection that is idle or new."""
        if self._idle:
            books.sent += 1
            self._idle.pop().send(self._bytes, books)
        elif len(self._all) + len(self._opening) < MAX_CONNECTIONS:
            books.sent += 1
            task = asyncio.create_task(self._open(books, perf_counter()))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            books.not_sent += 1

    async def close(self) -> None:
        """Hang up."""
        for connection in self._all:
            connection.transport.close()

    async def _open(self, books: Books, since: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self._freed), self._host, self._port)
        except OSError as error:
            books.broken.append(f"connect: {error}")
            return
        self._all.add(connection)
        connection.send(self._bytes, books, since)

    def _freed(self, connection: "_Connection", usable: bool) -> None:
        if usable:
            self._idle.append(connection)
        else:
            self._all.discard(connection)
            if connection in self._idle:
                self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """A connection of HTTP/1.1 that waits for one answer at a time."""

    def __init__(self, freed: Callable[["_Connection", bool], None]) -> None:
        self.transport: Any = None
        self._freed = freed
        self._books: Books | None = None
        self._since = 0.0
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, data: bytes, books: Books, since: float = 0.0) -> None:
        self._books, self._since, self._got = books, since or perf_counter(), b""
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0 or self._books is None:
            return
        head = self._got[:end].lower()
        at = head.index(b"content-length:") + 15
        if len(self._got) < end + 4 + int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None]):
            return
        books, self._books = self._books, None
        took = perf_counter() - self._since
        status = head[9:12]
        if status == b"200":
            books.waited.append(took)
        elif status == b"503":
            books.turned_away.append(took)
            books.without_time += b"\nretry-after: " not in head
        else:
            books.broken.append(f"status {status.decode()}")
        self._freed(self, True)

    def connection_lost(self, error: Exception | None) -> None:
        if self._books is not None:
            self._books.broken.append(f"connection lost: {error}")
            self._books = None
        self._freed(self, False)


class GrpcSender:
    """Unary calls on one channel, any number at a time."""

    def __init__(self, address: str, payload: Payload) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=UNLIMITED)
        self._call = self._channel.unary_unary(payload.path, request_serializer=bytes, response_deserializer=bytes)
        self._message = payload.body[FRAME_PREFIX_BYTES:]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many connections to the server are open."""
        return 1

    def send(self, books: Books) -> None:
        """Make one call."""
        books.sent += 1
        task = asyncio.create_task(self._ask(books, perf_counter()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def _ask(self, books: Books, since: float) -> None:
        try:
            await self._call(self._message, timeout=DRAIN_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                books.turned_away.append(perf_counter() - since)
                books.without_time += "retry-after" not in dict(error.trailing_metadata() or ())
            else:
                books.broken.append(f"{error.code().name}: {error.details()}")
        else:
            books.waited.append(perf_counter() - since)


Message: TypeAlias = tuple[Any, Books, float]


class StreamSender:
    """Requests on a stream, to a model that gives any number of responses; a new stream after every hundred.

    A request counts as answered when its last response has come.
    """

    def __init__(self, address: str, question: Question) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=UNLIMITED)
        self._call = self._channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._request = service_pb2.ModelInferRequest.FromString(grpc_message(question))
        self._request.parameters["triton_enable_empty_final_response"].bool_param = True
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._left = 0
        self._streams: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many connections to the server are open."""
        return 1

    def send(self, books: Books) -> None:
        """Send one."""
        if not self._left:
            self._messages.put_nowait(None)
            self._messages = asyncio.Queue()
            self._left = REQUESTS_OF_A_STREAM
            task = asyncio.create_task(self._stream(self._messages))
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
        self._left -= 1
        books.sent += 1
        request = service_pb2.ModelInferRequest()
        request.CopyFrom(self._request)
        self._messages.put_nowait((request, books, perf_counter()))

    async def close(self) -> None:
        """Hang up."""
        self._messages.put_nowait(None)
        await asyncio.gather(*self._streams)
        await self._channel.close()

    async def _stream(self, messages: "asyncio.Queue[Message | None]") -> None:
        waiting: deque[tuple[Books, float]] = deque()

        async def requests() -> AsyncIterator[Any]:
            while (message := await messages.get()) is not None:
                request, books, since = message
                waiting.append((books, since))
                yield request

        try:
            async for response in self._call(requests()):
                if response.error_message:
                    waiting.popleft()[0].broken.append(response.error_message)
                elif response.infer_response.parameters["triton_final_response"].bool_param:
                    books, since = waiting.popleft()
                    books.waited.append(perf_counter() - since)
        except grpc.aio.AioRpcError as error:
            for books, _ in waiting:
                books.broken.append(f"{error.code().name}: {error.details()}")
