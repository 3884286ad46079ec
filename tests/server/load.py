"""Clients that count: what they sent, what was answered and how, what was refused and how, and what got lost.

They ask models that take INT32 numbers INPUT0 and give INT32 numbers OUTPUT0, each request with a unique number.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol, Self

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.server_process import ConchProcess

# Longer than anything that is to be answered takes.
_TIMEOUT_S = 30


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


class Answer(NamedTuple):
    """What came back for the number that was sent."""

    model: str
    number: int
    values: tuple[int, ...]
    version: str


class Refusal(NamedTuple):
    """An error: its status (HTTP's or the name of gRPC's), its text, and after how many seconds to come again."""

    model: str
    number: int
    status: int | str
    text: str
    retry_after: str | None


class Lost(NamedTuple):
    """A request that got no answer: the connection ended. `begun` is whether the beginning of one had come."""

    model: str
    number: int
    begun: bool


@dataclass
class Tally:
    """The books of all clients of one load."""

    sent: int = 0
    answers: list[Answer] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    def note(self, outcome: Answer | Refusal | Lost) -> None:
        """Record the outcome of one request."""
        if isinstance(outcome, Answer):
            self.answers.append(outcome)
        elif isinstance(outcome, Refusal):
            self.refusals.append(outcome)
        else:
            self.lost.append(outcome)

    def check(self) -> None:
        """Every request that was sent has one outcome."""
        assert self.sent == len(self.answers) + len(self.refusals) + len(self.lost)

    async def until(self, more: int) -> None:
        """Wait until `count` more requests have been answered."""
        wanted = len(self.answers) + more
        await until(lambda: len(self.answers) >= wanted)

    async def next_answers(self, *models: str) -> list[Answer]:
        """Wait for some answers of each of these models to requests that are sent from now on, and return them."""
        sent = self.sent

        def late() -> list[Answer]:
            return [answer for answer in self.answers if answer.number > sent]

        await until(lambda: all(sum(answer.model == model for answer in late()) >= 10 for model in models))
        return late()

    async def until_refused(self, *ways: tuple[str, int | str]) -> None:
        """Wait until each of these models has refused with each of these statuses."""
        await until(lambda: set(ways) <= {(refusal.model, refusal.status) for refusal in self.refusals})


class Client(Protocol):
    """One client, with one request at a time."""

    async def ask(self, model: str, number: int, timeout_us: int = 0) -> Answer | Refusal | Lost:
        """Send one number and return the outcome."""

    async def close(self) -> None:
        """Hang up."""


class HttpClient:
    """A connection that is kept alive, and reopened when it has been closed."""

    def __init__(self, address: str) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, model: str, number: int, timeout_us: int = 0) -> Answer | Refusal | Lost:
        """Send one number and return the outcome."""
        given = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [number]}
        document = {"parameters": {"timeout": timeout_us} if timeout_us else {}, "inputs": [given]}
        body = json.dumps(document).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        line = b""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(self._host, self._port)
                reader, writer = self._streams
                writer.write(head + body)
                line = await reader.readline()
                headers = await _read_headers(reader)
                answer = json.loads(await reader.readexactly(int(headers["content-length"])))
        except (OSError, asyncio.IncompleteReadError, KeyError):
            await self.close()
            return Lost(model, number, begun=line != b"")
        if headers.get("connection") == "close":
            await self.close()
        status = int(line.split()[1])
        if status != 200:
            return Refusal(model, number, status, answer["error"], headers.get("retry-after"))
        return Answer(model, number, tuple(answer["outputs"][0]["data"]), answer["model_version"])

    async def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            (_, writer), self._streams = self._streams, None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return headers


class GrpcClient:
    """A separate channel."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def ask(self, model: str, number: int, timeout_us: int = 0) -> Answer | Refusal | Lost:
        """Send one number and return the outcome; a time-out is that of the call too."""
        request = service_pb2.ModelInferRequest(model_name=model)
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1]).contents.int_contents.append(number)
        if timeout_us:
            request.parameters["timeout"].int64_param = timeout_us
        try:
            response = await self._stub.ModelInfer(request, timeout=timeout_us / 1e6 or _TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            trailers = dict(error.trailing_metadata() or ())
            retry_after = trailers.get("retry-after")
            if retry_after is not None:
                assert trailers["grpc-retry-pushback-ms"] == f"{retry_after}000"
            return Refusal(model, number, error.code().name, error.details() or "", retry_after)
        values = np.frombuffer(response.raw_output_contents[0], np.int32)
        return Answer(model, number, tuple(map(int, values)), response.model_version)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class Load:
    """Clients that send one request after another, until the end of the block that `running` makes."""

    def __init__(self, clients: Sequence[tuple[Client, str]]) -> None:
        self.tally = Tally()
        self._clients = clients
        self._numbers = count(1)
        self._stopping = False

    @classmethod
    def of(cls, server: ConchProcess, models: Sequence[str], http: int, grpc: int) -> Self:
        """A number of clients of each protocol for each of the models."""
        clients: list[tuple[Client, str]] = []
        for model in models:
            clients += [(HttpClient(server.http), model) for _ in range(http)]
            clients += [(GrpcClient(server.grpc), model) for _ in range(grpc)]
        return cls(clients)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tally]:
        """Have the clients at work during a block; afterwards all of them have got their last answers."""
        tasks = [asyncio.create_task(self._work(client, model)) for client, model in self._clients]
        try:
            yield self.tally
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)
            for client, _ in self._clients:
                await client.close()
        self.tally.check()

    async def _work(self, client: Client, model: str) -> None:
        while not self._stopping:
            self.tally.sent += 1
            outcome = await client.ask(model, next(self._numbers))
            self.tally.note(outcome)
            if not isinstance(outcome, Answer):
                await asyncio.sleep(0.01)  # a rejected client does not retry in a tight loop
