# Compiled by mypyc in wheels.
"""BLS calls of one process: its messages become requests to the core, and responses become messages to it.

Input tensors are views of the calling process's shared memory. Small outputs are copied from the called process's
shared memory into that of the caller. Large ones are kept for the caller, which passes most of them on to another
model; an output that it has fetched once is copied from then on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from conch.base.errors import Cancelled, ConchError, Unavailable, Unsupported
from conch.domain.request import InferRequest, InferResponse, Span
from conch.domain.sliced_copy import copy_in_slices
from conch.domain.tensor import Tensor
from conch.server.backends.base import Instance
from conch.server.backends.batch import Execution
from conch.server.backends.bls import BlsCall, BlsCaller, ModelCalls
from conch.server.backends.child.conch_child.ipc.arena import KEPT, Parcel
from conch.server.backends.child.conch_child.ipc.wire import Message, WireError
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.child.conch_child.python.messages import weight_of
from conch.server.backends.processes import untrusted
from conch.server.backends.processes.child_process import ChildProcess
from conch.server.backends.python.model_control import ModelControls
from conch.server.backends.python.tensor_exchange import MIN_KEPT_BYTES, TensorExchange

# Concurrent calls of an instance, as in Triton; further ones wait. Decoupled calls do not count: they may stay open for
# any time.
MAX_RUNNING: Final = 32
# Open calls of an instance, with those that wait and decoupled ones.
MAX_OPEN: Final = 10_000
# Bytes of responses in the calling process that the model has not read.
_MAX_UNREAD_BYTES: Final = 256 * 2**20
_MAX_KEY: Final = 2**63 - 1
_MAX_UINT64: Final = 2**64 - 1

# Returns the requests in flight that have these keys, all of them if there are no keys.
Executions: TypeAlias = Callable[[Sequence[int]], Sequence[Execution]]


class OutgoingCalls:
    """BLS calls of the model in one process. Life: `begin` → messages to the `handlers` → `end`."""

    def __init__(self, calls: ModelCalls, instance: Instance, child: ChildProcess, executions: Executions) -> None:
        self.ever_called = False
        self._calls = calls
        self._instance = instance
        self._send = child.send
        self._hold = child.hold
        self._executions = executions
        self._tensors: TensorExchange | None = None
        self._open: dict[int, _Outgoing] = {}
        self._waiting: deque[_Outgoing] = deque()
        self._running = 0  # decoupled calls not included
        self._fetched: set[tuple[str, str]] = set()  # models and their outputs that this one has read
        self.controls = ModelControls(calls, child.send, instance.plan.source)
        self.handlers: dict[int, Callable[[Message, memoryview], None]] = {
            messages.CALL: self._call,
            messages.CANCEL_CALL: self._cancel_call,
            messages.READ: self._read,
            messages.FETCH: self._fetch,
            messages.CONTROL: self._control,
        }

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, tensors: TensorExchange) -> None:
        """Use these arenas from now on."""
        self._tensors = tensors

    def end(self) -> None:
        """Cancel all calls; the process has exited."""
        self._tensors = None
        self._waiting.clear()
        unfinished, self._open = self._open, {}
        for outgoing in unfinished.values():
            if outgoing.call is not None:
                outgoing.call.cancel()

    def executed(self) -> None:
        """Release the instance from the open calls of an execution that has ended."""
        for outgoing in self._open.values():
            outgoing.holds = False
            if outgoing.call is not None:
                outgoing.call.release_instance()

    def caller_cancelled(self) -> None:
        """Cancel the calls of which all callers were cancelled."""
        for outgoing in list(self._open.values()):
            if outgoing.executions and all(execution.cancelled for execution in outgoing.executions):
                self._cancel(outgoing.key)

    def _call(self, message: Message, payload: memoryview) -> None:
        assert self._tensors is not None
        _, released, key, given, waits, any_number, fields = untrusted.items(message, 7, "CALL")
        request, traced = _request(fields, self._tensors, payload)
        callers: Sequence[int] = untrusted.integers(given, 0, _MAX_KEY, "the key of a caller")
        holds, many = untrusted.flag(waits, "holds"), untrusted.flag(any_number, "many")
        if untrusted.integer(key, 0, _MAX_KEY, "the key of a call") in self._open:
            raise WireError(f"call {key} is open already")
        self._tensors.release(released)
        self.ever_called = True
        # A call from a thread of a decoupled model does not name its callers; the traced request stands for them.
        callers = callers or ((traced,) if traced else ())
        outgoing = _Outgoing(self, key, request, self._executions(callers), holds, many)
        if traced:
            outgoing.span = next((execution.request.span for execution in self._executions((traced,))), None)
        self._open[key] = outgoing
        if len(self._open) > MAX_OPEN:
            outgoing.respond(Unavailable(f"the model has {MAX_OPEN} calls open already"), True)
        elif not many and self._running >= MAX_RUNNING:
            self._waiting.append(outgoing)
        else:
            self._start(outgoing)

    def _start(self, outgoing: "_Outgoing") -> None:
        request, outgoing.request = outgoing.request, None
        assert request is not None
        self._running += not outgoing.many
        outgoing.started = True
        source = self._instance.plan.source
        holds = self._instance if outgoing.holds else None
        caller = BlsCaller(source.config.name, source.namespace, outgoing.executions, holds, outgoing.span)
        try:
            call = self._calls.call(caller, request, outgoing.respond, many=outgoing.many)
        except ConchError as error:
            text = f"Model {request.model_name} - Error when running inference: {error.message}"
            outgoing.respond(ConchError(text, error.code), True)
            return
        if outgoing.key in self._open:
            outgoing.call = call
        else:  # it was answered meanwhile
            call.cancel()

    def answer(self, outgoing: "_Outgoing", answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send one response to the model, unless its call has ended."""
        if final and outgoing.started:
            outgoing.started = False
            self._running -= not outgoing.many
        if self._open.get(outgoing.key) is outgoing:
            if final:
                del self._open[outgoing.key]
                outgoing.call = None
            if outgoing.many or (final and answer is not None):
                self._send_answer(outgoing, answer, final)
            else:
                self._end(outgoing, Unsupported("a call without 'decoupled=True' takes exactly one response"), final)
        while self._waiting and self._running < MAX_RUNNING:
            self._start(self._waiting.popleft())

    def _send_answer(self, outgoing: "_Outgoing", answer: InferResponse | ConchError | None, final: bool) -> None:
        assert self._tensors is not None
        key = outgoing.key
        parcel = self._tensors.parcel()
        if isinstance(answer, ConchError):
            answer_fields: tuple[Any, ...] = (key, final, (answer.code.value, answer.message), None, None)
        elif answer is None:
            answer_fields = (key, final, None, None, None)
        else:
            requested = outgoing.outputs
            tensors = [tensor for tensor in answer.outputs if not requested or tensor.name in requested]
            placed = self._place(outgoing.model, tensors, parcel)
            answer_fields = (key, final, None, placed, answer.parameters or None)
            outgoing.unread += weight_of(placed)
        if parcel.copies is not None:
            copy_in_slices(parcel.copies, partial(self._copied, answer_fields, parcel, self._hold()))
        else:
            released = self._tensors.outputs.take_released()
            self._send((messages.CALL_ANSWERED, released, answer_fields), parcel.parts, parcel.size)
        if outgoing.unread > _MAX_UNREAD_BYTES and not final:
            text = f"the model reads too slowly: {outgoing.unread} bytes of responses to its call were waiting for it"
            self._end(outgoing, Unavailable(text), final)

    def _place(self, model: str, tensors: Sequence[Tensor], parcel: Parcel) -> list[tuple[Any, ...]]:
        """Keep large outputs of a model unless the caller reads them, put the others into the parcel; describe them."""
        exchange = self._tensors
        assert exchange is not None
        placed: list[tuple[Any, ...]] = []
        for tensor in tensors:
            label = model, tensor.name
            size = tensor.nbytes
            place = None
            if size >= MIN_KEPT_BYTES and tensor.source is None and label not in self._fetched:
                place = exchange.keep(tensor.data, label)
            if place is None:
                placed += exchange.place([tensor], parcel)
            else:
                placed.append((tensor.name, tensor.datatype, tensor.shape, place, size))
        return placed

    def _fetch(self, message: Message, _: memoryview) -> None:
        exchange = self._tensors
        assert exchange is not None
        _, key, place = untrusted.items(message, 3, "FETCH")
        untrusted.integer(key, 0, _MAX_KEY, "the key of a call")
        data, label = exchange.fetch(untrusted.integer(place, 0, untrusted.MAX_COUNT, "the place of a tensor"))
        self._fetched.add(label)
        parcel = exchange.parcel()
        (placed,) = exchange.place([Tensor(label[1], "UINT8", (len(data),), data)], parcel)
        block, size = placed[3:]
        if parcel.copies is not None:
            copy_in_slices(parcel.copies, partial(self._send_fetched, key, block, size, parcel, self._hold()))
        else:
            self._send_fetched(key, block, size, parcel, self._send)

    def _send_fetched(self, key: int, place: int, size: int, parcel: Parcel, send: Callable[..., None]) -> None:
        if self._tensors is None:  # the process has ended
            send()
            return
        released = self._tensors.outputs.take_released()
        send((messages.FETCHED, released, key, place, size), parcel.parts, parcel.size)

    def _copied(self, answer_fields: tuple[Any, ...], parcel: Parcel, send: Callable[..., None]) -> None:
        """Send a response whose large tensors have been copied."""
        if self._tensors is None:  # the process has ended
            send()
            return
        assert parcel.copies is not None
        error = next((copy.error for copy in parcel.copies if copy.error is not None), None)
        if error is not None:
            parcel.discard(0)
            self._tensors.release([place for *_, place, _ in answer_fields[3] if place >= KEPT])
            answer_fields = (answer_fields[0], answer_fields[1], (error.code.value, error.message), None, None)
        send((messages.CALL_ANSWERED, self._tensors.outputs.take_released(), answer_fields), parcel.parts, parcel.size)

    def _end(self, outgoing: "_Outgoing", error: ConchError, ended: bool) -> None:
        """Answer with an error, and cancel the call unless it has `ended`."""
        call = outgoing.call
        if ended:
            self._send_answer(outgoing, error, True)
        else:
            outgoing.respond(error, True)
        if call is not None:
            call.cancel()

    def _cancel(self, key: int) -> None:
        outgoing = self._open.get(key)
        if outgoing is None:
            return
        if outgoing.call is not None:
            outgoing.call.cancel()
        elif outgoing.request is not None:
            self._waiting.remove(outgoing)
            outgoing.request = None
            outgoing.respond(Cancelled("the call was cancelled"), True)

    def _cancel_call(self, message: Message, _: memoryview) -> None:
        self._cancel(untrusted.integer(untrusted.items(message, 2, "CANCEL_CALL")[1], 0, _MAX_KEY, "the key of a call"))

    def _read(self, message: Message, _: memoryview) -> None:
        _, key, weight = untrusted.items(message, 3, "READ")
        outgoing = self._open.get(untrusted.integer(key, 0, _MAX_KEY, "the key of a call"))
        if outgoing is not None:
            outgoing.unread -= untrusted.integer(weight, 0, outgoing.unread, "the weight of what was read")

    def _control(self, message: Message, payload: memoryview) -> None:
        assert self._tensors is not None
        self.controls.handle(message, payload, self._tensors)


def _request(fields: Any, tensors: TensorExchange, payload: memoryview) -> tuple[InferRequest, int]:
    """Return the request of a call, and the key of the traced request. Raises WireError."""
    name, version, request_id, correlation_id, flags, timeout_us, parameters, outputs, traced, inputs = untrusted.items(
        fields, 10, "the fields of a call"
    )
    untrusted.integer(version, -1, _MAX_KEY, "a version")
    if type(correlation_id) is not str:
        untrusted.integer(correlation_id, 0, _MAX_UINT64, "a correlation id")
    request = InferRequest(
        untrusted.name(name, "the name of a model"),
        tensors.decode(inputs, payload),
        version=None if version == -1 else version,
        id=untrusted.text(request_id, "the id of a request"),
        outputs=tuple(untrusted.names(outputs, "the name of an output")),
        parameters=untrusted.parameters(parameters),
        correlation_id=correlation_id,
        flags=untrusted.integer(flags, 0, 2**32 - 1, "flags"),
        timeout_us=untrusted.integer(timeout_us, 0, _MAX_UINT64, "a timeout"),
    )
    return request, untrusted.integer(traced, 0, _MAX_KEY, "the key of a traced request")


class _Outgoing:
    """One call."""

    __slots__ = (
        "_calls",
        "call",
        "executions",
        "holds",
        "key",
        "many",
        "model",
        "outputs",
        "request",
        "span",
        "started",
        "unread",
    )

    def __init__(
        self,
        calls: OutgoingCalls,
        key: int,
        request: InferRequest,
        executions: Sequence[Execution],
        holds: bool,
        many: bool,
    ) -> None:
        self.key = key
        self.request: InferRequest | None = request  # until it is sent to the core
        self.executions = executions  # for which the model calls
        self.holds = holds
        self.many = many
        self.model = request.model_name
        self.outputs = request.outputs
        self.started = False  # counts as running
        self.unread = 0
        self.span: Span | None = None  # the span of the request that it belongs to
        self.call: BlsCall | None = None  # while the core works on it
        self._calls = calls

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Callback of the core for one response."""
        self._calls.answer(self, answer, final)
