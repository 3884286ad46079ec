# Compiled by mypyc in wheels.
"""gRPC as the load generator speaks it: unary calls, and ModelStreamInfer.

A call of ModelStreamInfer stays open and serves one request after the other, so that there is one for each user. Where
the server allows fewer streams, requests share them: each has its own identifier, which its responses repeat.
"""

from collections import deque
from time import monotonic_ns
from typing import Final

from conch.measure.bench.generator import Endpoint, ResponseKind
from conch.measure.bench.load.connection import OPEN, KnownAnswers, LoadOwner, LoadRequest, Wire
from conch.measure.bench.load.grpc.http2_client import Http2ClientConnection
from conch.measure.bench.load.grpc.http2_stream import ClientStream, GrpcHead
from conch.measure.bench.load.grpc.messages import (
    PREFIX_BYTES,
    StreamResponse,
    grpc_outcome,
    grpc_status_name,
    http_status_outcome,
    reset_outcome,
    with_id,
)
from conch.measure.bench.records import RequestOutcome
from conch.protocols.http2.frames import ErrorCode, error_name

_OK: Final = int(RequestOutcome.OK)
_SERVER_ERROR: Final = int(RequestOutcome.SERVER_ERROR)
_CONNECTION_ERROR: Final = int(RequestOutcome.CONNECTION_ERROR)
_WRONG_ANSWER: Final = int(RequestOutcome.WRONG_ANSWER)
_GRPC_STREAM: Final = int(ResponseKind.GRPC_STREAM)
_CANCEL: Final = int(ErrorCode.CANCEL)
_REFUSED_STREAM: Final = int(ErrorCode.REFUSED_STREAM)
_REFUSED: Final = "the server refused the stream"
_MAX_ERROR_CHARACTERS: Final = 300
# The frame's header and the message's prefix.
_OVERHEAD_BYTES: Final = 14
# The length of a string in a raw tensor.
_STRING_LENGTH_BYTES: Final = 4


class GrpcConnection(Http2ClientConnection):
    """One connection with calls of gRPC."""

    def __init__(
        self,
        owner: LoadOwner,
        wire: Wire,
        capacity: int,
        fields: list[tuple[bytes, bytes]],
        answers: KnownAnswers | None = None,
    ) -> None:
        super().__init__(owner, wire, capacity, fields)
        self._answers = answers
        self._checked = False  # whether an answer of this connection was checked
        self._waiting: deque[LoadRequest] = deque()  # for the end of a stream
        self._idle: list[ClientStream] = []  # calls of ModelStreamInfer without a request
        self._calls: list[ClientStream] = []  # those that may take requests
        self._path = b""  # theirs
        self._numbers = 0  # the last identifier of a request
        self._response = StreamResponse()
        self._opening: list[LoadRequest] = []  # begun, and not yet handed to the socket

    # LoadConnection.

    def start(self, request: LoadRequest) -> None:
        request.sent_ns = monotonic_ns()
        if self._leaving:
            self.owner.retry(request, request.sent_ns, self._goaway)
        elif not self._begin(request):
            request.waited = True
            self._waiting.append(request)

    def send_deferred(self) -> None:
        opening = self._opening
        if opening:
            now = monotonic_ns()
            for request in opening:
                self.owner.sent(request, now)
            opening.clear()
        super().send_deferred()

    def cancel(self, request: LoadRequest) -> None:
        for stream in self.streams():
            if stream.request is request:
                stream.request = None
                self.drop(stream, _CANCEL)
                return
            for number, pending in stream.pending.items():
                if pending is request:
                    self._cancel_streamed(stream, number)
                    return
        if request in self._waiting:
            self._waiting.remove(request)
        self.room()

    def requests(self) -> list[LoadRequest]:
        requests = list(self._waiting)
        for stream in self.streams():
            if stream.request is not None:
                requests.append(stream.request)
            requests += stream.pending.values()
        return requests

    # Http2ClientConnection.

    def room(self) -> None:
        waiting = self._waiting
        while waiting:
            if self._leaving:
                self.owner.retry(waiting.popleft(), monotonic_ns(), self._goaway)
            elif self._begin(waiting[0]):
                waiting.popleft()
            else:
                return
        if self.in_flight < self.capacity and self.state == OPEN:
            self.owner.available(self)

    def head_received(self, stream: ClientStream, head: GrpcHead, ended: bool, now_ns: int) -> None:
        if stream.head is None and (head.http_status < 100 or head.http_status >= 200):
            stream.head = head
        if not ended:
            return
        request = stream.request
        if request is None:
            self._end_call(stream, head, now_ns)
            return
        request.received_bytes = stream.received_bytes
        request.responses = stream.messages
        if head.grpc_status == 0 and stream.messages == 1 and not stream.message_left and not stream.prefix:
            self.answered = True
            wrong = self._problem(request.body)
            self.owner.settle(request, _WRONG_ANSWER if wrong else _OK, now_ns, wrong)
            return
        self._settle_ended(request, stream, head, now_ns)

    def data_received(self, stream: ClientStream, data: bytes, start: int, end: int, now_ns: int) -> None:
        request = stream.request
        if request is not None and request.first_ns == 0:
            request.first_ns = now_ns
        keep = stream.bidirectional or (request is not None and self._keeps(request))
        while start < end:
            if stream.message_left:
                size = min(stream.message_left, end - start)
                if keep:
                    stream.message.append(data[start : start + size])
                start += size
                stream.message_left -= size
                if not stream.message_left:
                    whole = b"".join(stream.message)
                    stream.message.clear()
                    self._message(stream, request, whole, 0, len(whole), now_ns)
            else:
                at = start
                if stream.prefix or end - start < PREFIX_BYTES:
                    start = min(start + PREFIX_BYTES - len(stream.prefix), end)
                    prefix = stream.prefix + data[at:start]
                    if len(prefix) < PREFIX_BYTES:
                        stream.prefix = prefix
                        return
                    stream.prefix = b""
                    compressed = prefix[0]
                    size = int.from_bytes(prefix[1:], "big")
                else:
                    compressed = data[at]
                    size = data[at + 1] << 24 | data[at + 2] << 16 | data[at + 3] << 8 | data[at + 4]
                    start += PREFIX_BYTES
                if compressed:
                    self._not_well_formed(stream, "a compressed message, which was not asked for", now_ns)
                    return
                if size <= end - start:
                    self._message(stream, request, data, start, start + size, now_ns)
                    start += size
                else:
                    stream.message_left = size
            if stream.number not in self._streams:
                return

    def data_ended(self, stream: ClientStream, now_ns: int) -> None:
        self._settle_stream(stream, _WRONG_ANSWER, "the answer ended without grpc-status", now_ns)

    def was_reset(self, stream: ClientStream, code: int, now_ns: int) -> None:
        if code == _REFUSED_STREAM:
            self.unprocessed(stream, now_ns)
            return
        outcome = reset_outcome(code)
        self._settle_stream(stream, outcome, f"the server reset the stream: {error_name(code)}", now_ns)

    def unprocessed(self, stream: ClientStream, now_ns: int) -> None:
        request = stream.request
        if request is not None:
            stream.request = None
            self.owner.retry(request, now_ns, self._goaway or _REFUSED)
        for pending in stream.pending.values():
            self.owner.retry(pending, now_ns, self._goaway or _REFUSED)
        stream.pending.clear()
        self._remove_call(stream)

    def _begin(self, request: LoadRequest) -> bool:
        """Send a request; False if it has to wait for the end of a stream."""
        encoded = request.encoded
        if encoded.kind == _GRPC_STREAM:
            return self._begin_streamed(request)
        if len(self._streams) >= self._limit and not self._make_room():
            return False
        message = encoded.wire
        request.sent_bytes = len(message) + 9
        self._opening.append(request)
        self.open(request, encoded.prepared.head, message, False)
        return True

    # Unary calls.

    def _message(
        self, stream: ClientStream, request: LoadRequest | None, data: bytes, start: int, end: int, now_ns: int
    ) -> None:
        """Process a whole message; only what is kept is in `data`."""
        stream.messages += 1
        if stream.bidirectional:
            self._streamed(stream, data, start, end, now_ns)
        elif request is not None and self._keeps(request):
            request.body = data[start:end]

    def _keeps(self, request: LoadRequest) -> bool:
        return self._answers is not None or request.encoded.keep_body

    def _problem(self, body: bytes) -> str:
        """Return what is wrong with an answer."""
        if self._answers is None:
            return ""
        first = not self._checked
        self._checked = True
        return self._answers.problem(body, first)

    def _settle_ended(self, request: LoadRequest, stream: ClientStream, head: GrpcHead, now_ns: int) -> None:
        outcome, message = _judge(stream, head)
        if head.grpc_status >= 0:
            request.status = head.grpc_status
        elif stream.head is not None:
            request.status = max(stream.head.http_status, 0)
        self.answered = head.grpc_status >= 0
        self.owner.settle(request, outcome, now_ns, message)

    # ModelStreamInfer.

    def _begin_streamed(self, request: LoadRequest) -> bool:
        encoded = request.encoded
        path = encoded.prepared.head
        stream = self._call_for(request, path)
        if stream is None and not self.may_open() and not self._make_room():
            return False
        self._numbers += 1
        number = b"%d" % self._numbers
        message = with_id(encoded.wire, number)
        request.sent_bytes = len(message) + 9
        self._opening.append(request)
        if stream is None:
            stream = self.open(request, path, message, True)
            stream.request = None
            self._path = path
            self._calls.append(stream)
        else:
            self.write_data(stream, message, False)
        stream.pending[number] = request
        return True

    def _call_for(self, request: LoadRequest, path: bytes) -> ClientStream | None:
        """Return an open call for a request, None if there is to be a new one."""
        idle = self._idle
        if path != self._path:
            return None
        if idle:
            for index in range(len(idle) - 1, -1, -1):
                if idle[index].user is request.user:
                    return idle.pop(index)
            stream = idle.pop()
            stream.user = request.user
            return stream
        if self.may_open() or not self._calls:
            return None
        return min(self._calls, key=_load)

    def _streamed(self, stream: ClientStream, data: bytes, start: int, end: int, now_ns: int) -> None:
        response = self._response
        if not response.read(data, start, end):
            self._not_well_formed(stream, "a message that is not a ModelStreamInferResponse", now_ns)
            return
        number = response.id
        request = stream.pending.get(number)
        if request is None:
            if number or not stream.pending:
                return  # of a request that was cancelled
            number = next(iter(stream.pending))
            request = stream.pending[number]
        request.received_bytes += end - start + _OVERHEAD_BYTES
        if response.error:
            stream.failed[number] = _without_id(response.error)[:_MAX_ERROR_CHARACTERS]
        elif response.outputs or response.final != 1:
            characters = response.content_bytes - _STRING_LENGTH_BYTES * response.outputs
            if request.encoded.keep_body:
                self._keep(request, data[response.infer_start : response.infer_end])
            if self._answers is not None and response.outputs:
                wrong = self._problem(data[response.infer_start : response.infer_end])
                if wrong:
                    stream.wrong[number] = wrong
            if not self.owner.responded(request, now_ns, 0, max(characters, 0)):
                self._cancel_streamed(stream, number)
                return
        if response.final == 0:
            return
        message = stream.failed.pop(number, "") if stream.failed else ""
        wrong = stream.wrong.pop(number, "") if stream.wrong else ""
        del stream.pending[number]
        if not stream.pending:
            self._idle.append(stream)
        self.answered = True
        outcome = _SERVER_ERROR if message else _WRONG_ANSWER if wrong else _OK
        self.owner.settle(request, outcome, now_ns, message or wrong)
        self.room()

    def _keep(self, request: LoadRequest, message: bytes) -> None:
        from conch.measure.bench.load.grpc.messages import response_text

        request.body += message  # protobuf reads messages that follow each other as one, repeated fields joined
        request.text += response_text(message)

    def _cancel_streamed(self, stream: ClientStream, number: bytes) -> None:
        """Give up a request that is settled; its call with it, unless others use it."""
        stream.pending.pop(number, None)
        stream.failed.pop(number, None)
        stream.wrong.pop(number, None)
        if stream.pending:
            self.room()
            return
        self._remove_call(stream)
        self.drop(stream, _CANCEL)

    def _end_call(self, stream: ClientStream, head: GrpcHead, now_ns: int) -> None:
        """React to the end of a call by the server, which is an error for its requests."""
        outcome, message = _judge(stream, head)
        for request in stream.pending.values():
            request.status = max(head.grpc_status, 0)
        if outcome == _OK:
            outcome, message = _CONNECTION_ERROR, "the server ended the stream before the answer was complete"
        self._settle_stream(stream, outcome, message, now_ns)

    def _remove_call(self, stream: ClientStream) -> None:
        if stream.bidirectional:
            if stream in self._idle:
                self._idle.remove(stream)
            if stream in self._calls:
                self._calls.remove(stream)

    def _make_room(self) -> bool:
        """End an idle call of ModelStreamInfer in favour of a unary one. Returns whether there was one."""
        if not self._idle:
            return False
        stream = self._idle[-1]
        self._remove_call(stream)
        self.drop(stream, _CANCEL)
        return self.may_open()

    # Both.

    def _settle_stream(self, stream: ClientStream, outcome: int, message: str, now_ns: int) -> None:
        """Settle the requests of a stream that has ended badly."""
        self._remove_call(stream)
        request = stream.request
        if request is not None:
            request.received_bytes = stream.received_bytes
            self.owner.settle(request, outcome, now_ns, message)
        for pending in stream.pending.values():
            self.owner.settle(pending, outcome, now_ns, message)
        stream.pending.clear()

    def _not_well_formed(self, stream: ClientStream, what: str, now_ns: int) -> None:
        self._settle_stream(stream, _WRONG_ANSWER, f"the server sent {what}", now_ns)
        self.drop(stream, _CANCEL)


def _load(stream: ClientStream) -> int:
    return len(stream.pending)


def _without_id(message: str) -> str:
    """Return an error of a stream without Triton's prefix, so that equal errors are counted together."""
    return message.partition("] ")[2] if message.startswith("[request id: ") else message


def _judge(stream: ClientStream, head: GrpcHead) -> tuple[int, str]:
    """Return outcome and message of a call that has ended with `head`."""
    status = head.grpc_status
    first = stream.head
    if status > 0:
        return grpc_outcome(status), f"{grpc_status_name(status)}: {head.message}"[:_MAX_ERROR_CHARACTERS]
    if first is not None and first.http_status != 200:
        return http_status_outcome(first.http_status), f"HTTP {first.http_status} without grpc-status"
    if first is not None and status < 0 and not first.content_type.startswith("application/grpc"):
        return _WRONG_ANSWER, f"expected content type application/grpc, got {first.content_type!r}"
    if status < 0:
        return _WRONG_ANSWER, "the answer ended without grpc-status"
    if stream.message_left or stream.prefix:
        return _WRONG_ANSWER, "the answer ended within a message"
    if stream.bidirectional:
        return _OK, ""
    return _WRONG_ANSWER, f"{stream.messages} messages in the answer of a unary call"


def grpc_fields(endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
    """Return the fields that go with each call."""
    fields = [
        (":authority", endpoint.place),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "conch-bench"),
        *endpoint.headers,
    ]
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
