# Compiled by mypyc in wheels.
"""ModelStreamInfer on its HTTP/2 stream: reads messages while there is room, and sends responses as they come."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from conch.base.errors import ConchError, InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.connections.body_budget import UNCHARGED_BYTES, BodyBudget, BodyUpload
from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.http2.flow_control import Http2Stream
from conch.server.frontends.grpc.framing import AnswerForm, Compressed, MessageReader
from conch.server.frontends.grpc.request import GrpcRequest
from conch.server.frontends.grpc.status import GrpcError, Status, error_trailers, no_memory, ok_trailers
from conch.server.frontends.grpc.unary import error_of
from conch.server.frontends.v2_grpc.infer_stream import MessageStream

# Messages that are served before the first look at the clock.
_UNTIMED_MESSAGES: Final = 8


class _EndedStream(MessageStream):
    """The stream of messages of a call that is over."""

    @property
    def full(self) -> bool:
        return True

    def receive(self, data: Buffer | Compressed) -> None:
        """No-op."""

    def end(self) -> None:
        """No-op."""

    def stop(self) -> None:
        """No-op."""

    def cancel(self) -> None:
        """No-op."""

    def drained(self) -> None:
        """No-op."""


_ENDED: Final = _EndedStream()


class StreamCall:
    """One call: the receiver of its HTTP/2 stream, and the sink of its `MessageStream`; `stream_of` makes that."""

    no_receive_timeout = True

    def __init__(
        self,
        stream_of: Callable[["StreamCall"], MessageStream],
        request: GrpcRequest,
        form: AnswerForm,
        stream: Http2Stream,
        closed: Callable[["StreamCall"], None],
        budget: BodyBudget,
        parse_budget: ParseBudget,
    ) -> None:
        self._budget = budget
        self._parse_budget = parse_budget
        self._postponed = False  # whether reading resumes in a later turn of the loop
        self._upload: BodyUpload | None = None  # of an incomplete message and of unread data
        self._form = form
        self._stream = stream
        self._closed = closed
        self._reader = MessageReader(request.coding)
        self._unread: deque[Buffer] = deque()  # data that wait for room
        self._unread_bytes = 0
        self._ended = False  # the client has half-closed the stream
        self._begun = False
        self._reading = False
        self._deadline: asyncio.TimerHandle | None = None
        self.inference: MessageStream = stream_of(self)
        if request.timeout_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(request.timeout_s, self._expired)

    # Called by the session.

    def data(self, data: Buffer, ended: bool) -> bool:
        """Read a piece of the client's messages; serve those that are complete while there is room."""
        self._ended = ended
        if self._unread or self._postponed or self.inference.full:
            self._unread.append(bytes(data))
            self._unread_bytes += len(data)
            self._charge_held()
            return False
        self._reader.add(data)
        self._read()
        self._reader.keep()
        self._charge_held()
        return True

    def aborted(self) -> None:
        """Cancel: the client has reset the stream or disconnected."""
        self._release()
        self.inference.cancel()
        self.inference = _ENDED  # which refers to this call: garbage collection need not free the two

    def drained(self) -> None:
        """Send more responses."""
        self.inference.drained()

    def timed_out(self) -> None:
        """No-op: a stream may be idle."""

    # Called by the stream of messages.

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""
        return self._stream.peer

    @property
    def flushed(self) -> bool:
        """Whether a message may be sent."""
        return self._stream.flushed

    def send(self, message: Sequence[Buffer]) -> None:
        """Send one message."""
        try:
            parts, size = self._form.message(message)
        except InvalidRequest as error:
            self._stop(error)
            return
        if not self._begun:
            self._begun = True
            self._stream.begin(self._form.head)
        self._stream.write(parts, size)

    def add_trailer(self, name: bytes, value: str) -> None:
        """Send metadata at the end of the call."""
        self._stream.trailing_metadata = [*self._stream.trailing_metadata, (name, value.encode())]

    def finish(self, error: ConchError | None) -> None:
        """End the call, well or with an error."""
        self._release()
        self._end(error)

    def resume(self) -> None:
        """Read further messages: there is room for them."""
        self._read()
        self._charge_held()

    def _read(self) -> None:
        """Serve messages while there is room, for at most one slice of time."""
        if self._reading or self._postponed:
            return
        self._reading = True
        count, until = 0, 0.0
        try:
            while not self.inference.full and not self._stream.closed:
                if count >= _UNTIMED_MESSAGES:
                    if not until:
                        until = self._parse_budget.until()
                    elif time.monotonic() > until:
                        self._postponed = True
                        self._parse_budget.postpone(self._resume_reading)
                        break
                message = self._reader.next()
                if message is not None:
                    count += 1
                    self.inference.receive(self._charged(message))
                elif self._unread:
                    data = self._unread.popleft()
                    self._unread_bytes -= len(data)
                    self._reader.add(data)
                    self._stream.consumed(len(data))
                elif self._ended:
                    if self._reader.midway:
                        raise InvalidRequest("the call ends with an incomplete message")
                    self.inference.end()
                    break
                else:
                    break
        except Exception as error:
            self._stop(error_of(error))
        finally:
            self._reading = False

    def _resume_reading(self) -> None:
        """Continue after a slice of time."""
        self._postponed = False
        self.resume()

    def _stop(self, error: ConchError | GrpcError) -> None:
        """End the call now, and cancel its requests."""
        self._release()
        inference = self.inference
        self._end(error)
        inference.cancel()

    def _end(self, error: ConchError | GrpcError | None) -> None:
        metadata = self._stream.trailing_metadata
        if not self._begun and error is not None:
            self._stream.answer_head(self._form.error_block(error, metadata))
        else:
            if not self._begun:
                self._begun = True
                self._stream.begin(self._form.head)
            self._stream.end(ok_trailers(metadata) if error is None else error_trailers(error, metadata))
        if self._stream.closed:
            self.inference = _ENDED

    def _expired(self) -> None:
        self._stop(GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _charged(self, message: Buffer | Compressed) -> Buffer | Compressed:
        """Charge a whole message until it is freed. Raises GrpcError."""
        if isinstance(message, Compressed):
            message.data = self._charged_data(message.data)
            return message
        return self._charged_data(message)

    def _charged_data(self, message: Buffer) -> Buffer:
        if len(message) <= UNCHARGED_BYTES:
            return message
        if self._upload is not None:
            self._upload.release()
            self._upload = None
        kept = self._budget.charge_until_freed(message)
        if kept is None:
            raise no_memory()
        return kept

    def _charge_held(self) -> None:
        """Charge incomplete and unread messages; end the call if there is no memory for them."""
        held = self._reader.held_bytes + self._unread_bytes
        upload = self._upload
        if upload is not None and held < upload.size:
            upload.release()
            upload = self._upload = None
        if (held <= UNCHARGED_BYTES and upload is None) or self._stream.closed:
            return
        if upload is None:
            upload = self._upload = self._budget.upload(self._evict)
        if held > upload.size and not upload.grow(held - upload.size):
            self._stop(no_memory())

    def _evict(self) -> None:
        """End a call that makes no progress while other requests need the memory."""
        self._upload = None
        self._stop(no_memory())

    def _release(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0
        self._reader.clear()
        if self._upload is not None:
            self._upload.release()
            self._upload = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._closed(self)
