# Compiled by mypyc in wheels.
"""Unary calls: ModelInfer by callback, the others by a coroutine."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from time import monotonic_ns
from typing import Final

from conch.base.errors import ConchError, InvalidRequest, drop_frames
from conch.domain.events.rows import ExchangeRow
from conch.domain.request import Timeline
from conch.domain.tensor import Buffer
from conch.protocols.connections.body_budget import UNCHARGED_BYTES, BodyBudget, BodyUpload
from conch.protocols.connections.loop_budget import LoopBudget
from conch.protocols.http.deadlines import set_deadlines
from conch.protocols.http.reply import Explain
from conch.protocols.http2.flow_control import Http2Stream
from conch.server.frontends.exchange_log import log_grpc
from conch.server.frontends.grpc.framing import (
    MAX_MESSAGE_SIZE,
    PREFIX,
    PREFIX_SIZE,
    AnswerForm,
    Compressed,
    MessageReader,
    too_large,
)
from conch.server.frontends.grpc.request import GrpcRequest
from conch.server.frontends.grpc.status import OK_TRAILERS, GrpcError, Status, no_memory, ok_trailers, status_of
from conch.server.frontends.v2_grpc.infer import WHY, Cancellable, GrpcInferEndpoint
from conch.server.frontends.v2_grpc.service import Method

_log: Final = logging.getLogger(__name__)


class UnaryCall(ABC):
    """One unary call: the receiver of its HTTP/2 stream."""

    __slots__ = (
        "_began",
        "_budget",
        "_charged",
        "_deadline",
        "_ends_at",
        "_exchange",
        "_form",
        "_message",
        "_reader",
        "_request",
        "_stream",
        "_upload",
    )

    no_receive_timeout = False

    @property
    def max_bytes(self) -> int:
        """The size of the largest message."""
        return MAX_MESSAGE_SIZE

    def __init__(self, request: GrpcRequest, form: AnswerForm, stream: Http2Stream, budget: BodyBudget) -> None:
        self._request = request
        self._budget = budget
        self._upload: BodyUpload | None = None  # of a request that arrives in pieces
        self._charged = 0  # bytes, until the call is over
        self._form = form
        self._stream = stream
        self._reader: MessageReader | None = None  # created for a request that arrives in pieces
        self._message: Buffer | Compressed | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._began = 0  # when the first piece of several came, monotonic ns
        self._exchange: ExchangeRow | None = None  # of the event log
        self._ends_at = 0  # when the client stops waiting, monotonic ns; 0 for never
        if request.timeout_s is not None:
            self._ends_at = monotonic_ns() + int(request.timeout_s * 1e9)
            self._deadline = asyncio.get_running_loop().call_later(request.timeout_s, self._expired)

    @abstractmethod
    def _serve(self, message: Buffer | Compressed) -> None:
        """Begin to answer. Raises ConchError for a request that is refused."""

    @abstractmethod
    def _cancel(self) -> None:
        """Cancel the work for the answer. The stream is closed."""

    # Called by the session.

    def data(self, data: Buffer, ended: bool) -> bool:
        """Read a piece of the request; serve the request when it is complete."""
        if self._stream.closed:
            return True
        try:
            message: Buffer | Compressed | None = None
            if ended and self._reader is None:
                message = self._whole_message(data)
            if message is None:
                self._began = self._began or monotonic_ns()
                message = self._assemble(data, ended)
            elif len(message) > UNCHARGED_BYTES:
                if len(message) > self.max_bytes:
                    raise too_large(len(message), self.max_bytes)
                if not self._budget.charge(len(message)):
                    raise no_memory()
                self._charged = len(message)
            if message is not None:
                self._serve(message)
        except Exception as error:
            self._fail(error_of(error))
        return True

    def aborted(self) -> None:
        """Cancel: the client has reset the stream or disconnected."""
        self._release()
        self._cancel()

    def drained(self) -> None:  # noqa: B027 - not to be overridden
        """No-op: nothing follows an answer."""

    def timed_out(self) -> None:
        """Fail the call: the request takes too long to arrive."""
        self._fail(
            GrpcError(Status.DEADLINE_EXCEEDED, "the request was not complete within the time allowed", "timeout")
        )

    # For the answer.

    def _reply(self, answer: Sequence[Buffer] | ConchError, trailers: bytes = OK_TRAILERS) -> None:
        if self._stream.closed:
            return
        if isinstance(answer, ConchError):
            self._fail(answer)
            return
        try:
            parts, size = self._form.message(answer)
        except InvalidRequest as error:
            self._fail(error)
            return
        if self._exchange is not None:
            self._exchange.encoded = monotonic_ns()
            self._exchange.bytes_out = size
        self._release()
        self._stream.answer(self._form.head, parts, size, trailers)

    def _fail(self, error: ConchError | GrpcError) -> None:
        if self._exchange is not None:
            self._exchange.encoded = monotonic_ns()
            self._exchange.status = status_of(error)
        self._release()
        self._stream.answer_head(self._form.error_block(error, self._stream.trailing_metadata))

    def _expired(self) -> None:
        self._fail(GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        self._cancel()

    def _release(self) -> None:
        """Release the timer and the memory of a call that is over."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._charged:
            self._budget.discharge(self._charged)
            self._charged = 0
        if self._upload is not None:
            self._upload.release()
            self._upload = None
        self._reader = None
        self._message = None

    def _evict(self) -> None:
        """Refuse a request that makes no progress while other requests need the memory."""
        self._upload = None
        self._fail(no_memory())

    def _charge(self, size: int) -> None:
        """Charge a request that arrives in pieces, of which `size` bytes are held. Raises GrpcError."""
        upload = self._upload
        if upload is None:
            upload = self._upload = self._budget.upload(self._evict)
        if size > upload.size and not upload.grow(size - upload.size):
            raise no_memory()

    @staticmethod
    def _whole_message(data: Buffer) -> Buffer | None:
        """Return the message if the data are exactly one, uncompressed."""
        if len(data) < PREFIX_SIZE:
            return None
        compressed, size = PREFIX.unpack_from(data)
        if compressed or size != len(data) - PREFIX_SIZE:
            return None
        message = data[PREFIX_SIZE:]
        return message if isinstance(message, bytes) else bytes(message)

    def _assemble(self, data: Buffer, ended: bool) -> Buffer | Compressed | None:
        reader = self._reader
        if reader is None:
            reader = self._reader = MessageReader(self._request.coding, self.max_bytes)
        reader.add(data)
        message = reader.next()
        if message is not None:
            if self._message is not None:
                raise InvalidRequest("more than one message in a unary call")
            self._message = message
            self._charge(len(message))
        else:
            self._charge(reader.held_bytes)
        if reader.midway and (ended or self._message is not None):
            whole = self._message is not None
            raise InvalidRequest(
                "data after the message of a unary call" if whole else "the call ends with an incomplete message"
            )
        if not ended:
            return None
        if self._message is None:
            raise InvalidRequest("a unary call without a message")
        message, self._message = self._message, None
        upload, self._upload = self._upload, None
        if upload is None:
            return message
        if isinstance(message, Compressed):
            message.data = upload.finish(message.data)
            return message
        return upload.finish(message)


class InferCall(UnaryCall):
    """ModelInfer, without a task or a future."""

    __slots__ = ("_admitted", "_endpoint", "_loop_budget")

    def __init__(
        self,
        endpoint: GrpcInferEndpoint,
        loop_budget: LoopBudget,
        request: GrpcRequest,
        form: AnswerForm,
        stream: Http2Stream,
        budget: BodyBudget,
    ) -> None:
        super().__init__(request, form, stream, budget)
        self._endpoint = endpoint
        self._loop_budget = loop_budget
        self._admitted: Cancellable | None = None

    def _serve(self, message: Buffer | Compressed) -> None:
        if self._loop_budget.acquire():
            self._infer(message)
        else:
            self._loop_budget.postpone(partial(self._infer_late, message))

    def _infer_late(self, message: Buffer | Compressed) -> None:
        if self._stream.closed:
            return
        try:
            self._infer(message)
        except Exception as error:
            self._fail(error_of(error))

    def _infer(self, message: Buffer | Compressed) -> None:
        timeline = Timeline()
        timeline.deadline = self._ends_at
        if self._request.deadline:
            set_deadlines(timeline, self._request.deadline)
        metadata, recorder = self._request.metadata, self._endpoint.recorder
        self._exchange = log_grpc(recorder, metadata, len(message), self._began, timeline)
        if self._exchange is not None:
            self._stream.record(self._exchange, recorder.exchanges)
        admitted = self._endpoint.infer(message, self._request.metadata, self._answered, timeline, self._stream)
        if not self._stream.closed:
            self._admitted = admitted

    def _answered(self, answer: Sequence[Buffer] | ConchError) -> None:
        self._admitted = None
        self._reply(answer)

    def _cancel(self) -> None:
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            admitted.cancel()


class ExplainedInferCall(InferCall):
    """ModelInfer whose answer says where its time went."""

    __slots__ = ("explain",)

    explain: Explain  # set by the dispatcher, at once

    def _answered(self, answer: Sequence[Buffer] | ConchError) -> None:
        row = self._exchange
        finish = partial(self._reply_explained, answer)
        self.explain(0 if row is None else row.number, 0 if row is None else row.received, finish)

    def _reply_explained(self, answer: Sequence[Buffer] | ConchError, text: str) -> None:
        if text:
            self._stream.trailing_metadata = [(WHY, text.encode())]
        self._admitted = None
        self._reply(answer, ok_trailers(self._stream.trailing_metadata))


class TaskCall(UnaryCall):
    """Any other method: rare, and run as a task, which is finished even if the client disconnects."""

    __slots__ = ("_method", "_tasks")

    def __init__(
        self,
        method: Method,
        tasks: set[asyncio.Task[None]],
        request: GrpcRequest,
        form: AnswerForm,
        stream: Http2Stream,
        budget: BodyBudget,
    ) -> None:
        super().__init__(request, form, stream, budget)
        self._method = method
        self._tasks = tasks

    @property
    def max_bytes(self) -> int:
        return self._method.max_bytes

    def _serve(self, message: Buffer | Compressed) -> None:
        if isinstance(message, Compressed):
            raise GrpcError(
                Status.RESOURCE_EXHAUSTED, "compressed messages of this size are supported by inference calls only"
            )
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self) -> None:
        pass

    async def _answer(self, message: Buffer) -> None:
        try:
            self._reply([await self._method(message)])
        except Exception as error:
            self._fail(error_of(error))
            drop_frames(error)


def error_of(error: Exception) -> ConchError | GrpcError:
    """Return the error that the client gets for an exception. An unexpected one is logged."""
    if isinstance(error, ConchError | GrpcError):
        return error
    _log.exception("a gRPC call failed unexpectedly", exc_info=error)
    return ConchError("internal error")
