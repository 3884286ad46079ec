"""The calls of one process to other models: its messages on this side, requests to the core on the other.

Tensors of a call are views of what the process has written, until the called model has them; those of an answer go
straight from one process's shared memory into the other's.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from conch.backends.base import Instance
from conch.backends.batch import Execution
from conch.backends.bls import BlsCall, BlsCaller, ModelCalls
from conch.backends.child.conch_child.ipc.arena import Parcel
from conch.backends.child.conch_child.ipc.wire import Message, WireError
from conch.backends.child.conch_child.python import messages
from conch.backends.child.conch_child.python.messages import weight_of
from conch.backends.processes.child_process import ChildProcess
from conch.backends.python.model_control import Controls
from conch.backends.python.tensor_exchange import TensorExchange
from conch.errors import Cancelled, ConchError, Unavailable, Unsupported
from conch.request import InferRequest, InferResponse, Span
from conch.sliced_copy import copy_in_slices

# So many calls of an instance run at once, as in Triton; others wait for them. Decoupled calls, which may stay open for
# as long as the model likes, do not count.
_AT_ONCE = 32
# How many bytes of responses that the model has not read may wait in its process.
_UNREAD_LIMIT = 256 * 2**20

# Returns what is under way under these keys; everything if there are none.
Executions: TypeAlias = Callable[[Sequence[int]], Sequence[Execution]]


class OutgoingCalls:
    """What the model in one process calls. Life: `begin` → messages to the `handlers` → `end`."""

    def __init__(self, calls: ModelCalls, instance: Instance, child: ChildProcess, executions: Executions) -> None:
        self.ever = False  # whether the model has ever called
        self._calls = calls
        self._instance = instance
        self._send = child.send
        self._hold = child.hold
        self._executions = executions
        self._tensors: TensorExchange | None = None
        self._under_way: dict[int, _Outgoing] = {}
        self._waiting: deque[_Outgoing] = deque()
        self._running = 0  # calls that count
        self.controls = Controls(calls, child.send, instance.plan.source)
        self.handlers: dict[int, Callable[[Message, memoryview], None]] = {
            messages.CALL: self._call,
            messages.CANCEL_CALL: lambda message, _: self._cancel(message[1]),
            messages.READ: self._read,
            messages.CONTROL: self._control,
        }

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, tensors: TensorExchange) -> None:
        """Use these arenas."""
        self._tensors = tensors

    def end(self) -> None:
        """Cancel everything: there is nobody to be answered any more."""
        self._tensors = None
        self._waiting.clear()
        under_way, self._under_way = self._under_way, {}
        for outgoing in under_way.values():
            if outgoing.call is not None:
                outgoing.call.cancel()

    def executed(self) -> None:
        """Note that the execution has ended in which the calls under way began: they keep the instance no longer."""
        for outgoing in self._under_way.values():
            outgoing.holds = False
            if outgoing.call is not None:
                outgoing.call.release_instance()

    def caller_cancelled(self) -> None:
        """Cancel the calls for which there is no caller any more."""
        for outgoing in list(self._under_way.values()):
            if outgoing.executions and all(execution.cancelled for execution in outgoing.executions):
                self._cancel(outgoing.key)

    def _call(self, message: Message, payload: memoryview) -> None:
        assert self._tensors is not None
        _, released, key, callers, holds, many, asked = message
        name, version, request_id, correlation_id, flags, timeout_us, parameters, outputs, traced, inputs = asked
        if released:
            self._tensors.inputs.free(released)
        if key in self._under_way:
            raise WireError(f"there is a call {key} already")
        self.ever = True
        request = InferRequest(
            name,
            self._tensors.decode(inputs, payload),
            version=None if version < 0 else version,
            id=request_id,
            outputs=outputs,
            parameters=parameters,
            correlation_id=correlation_id,
            flags=flags,
            timeout_us=timeout_us,
        )
        # A thread of a decoupled model's own does not tell for whom it calls; what it has traced does.
        callers = callers or ((traced,) if traced else ())
        outgoing = _Outgoing(self, key, request, self._executions(callers), holds, many)
        if traced:
            outgoing.span = next((execution.request.span for execution in self._executions((traced,))), None)
        self._under_way[key] = outgoing
        if not many and self._running >= _AT_ONCE:
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
        if outgoing.key in self._under_way:
            outgoing.call = call
        else:  # it has been answered already
            call.cancel()

    def answer(self, outgoing: "_Outgoing", answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send one answer to the model, unless it has had its last."""
        if final and outgoing.started:
            outgoing.started = False
            self._running -= not outgoing.many
        if self._under_way.get(outgoing.key) is outgoing:
            if final:
                del self._under_way[outgoing.key]
                outgoing.call = None
            if outgoing.many or (final and answer is not None):
                self._tell(outgoing, answer, final)
            else:
                self._end(outgoing, Unsupported("a call without 'decoupled=True' takes exactly one response"), final)
        while self._waiting and self._running < _AT_ONCE:
            self._start(self._waiting.popleft())

    def _tell(self, outgoing: "_Outgoing", answer: InferResponse | ConchError | None, final: bool) -> None:
        assert self._tensors is not None
        key = outgoing.key
        parcel = self._tensors.parcel()
        if isinstance(answer, ConchError):
            told: tuple[Any, ...] = (key, final, (answer.code.value, answer.message), None, None)
        elif answer is None:
            told = (key, final, None, None, None)
        else:
            wanted = outgoing.outputs
            tensors = [tensor for tensor in answer.outputs if not wanted or tensor.name in wanted]
            placed = self._tensors.place(tensors, parcel)
            told = (key, final, None, placed, answer.parameters or None)
            outgoing.unread += weight_of(placed)
        if parcel.copies is not None:
            copy_in_slices(parcel.copies, partial(self._copied, told, parcel, self._hold()))
        else:
            released = self._tensors.outputs.take_released()
            self._send((messages.CALL_ANSWERED, released, told), parcel.parts, parcel.size)
        if outgoing.unread > _UNREAD_LIMIT and not final:
            unread = f"{outgoing.unread} bytes of responses to its call were waiting for it"
            self._end(outgoing, Unavailable(f"the model reads too slowly: {unread}"), final)

    def _copied(self, told: tuple[Any, ...], parcel: Parcel, send: Callable[..., None]) -> None:
        """Send an answer whose large tensors are in the arena by now."""
        if self._tensors is None:  # the process has ended
            send()
            return
        assert parcel.copies is not None
        error = next((copy.error for copy in parcel.copies if copy.error is not None), None)
        if error is not None:
            parcel.discard(0)
            told = (told[0], told[1], (error.code.value, error.message), None, None)
        send((messages.CALL_ANSWERED, self._tensors.outputs.take_released(), told), parcel.parts, parcel.size)

    def _end(self, outgoing: "_Outgoing", error: ConchError, ended: bool) -> None:
        """Answer with an error and have the called model stop, unless it has `ended`."""
        call = outgoing.call
        if ended:
            self._tell(outgoing, error, True)
        else:
            outgoing.respond(error, True)
        if call is not None:
            call.cancel()

    def _cancel(self, key: int) -> None:
        outgoing = self._under_way.get(key)
        if outgoing is None:
            return
        if outgoing.call is not None:
            outgoing.call.cancel()
        elif outgoing.request is not None:
            self._waiting.remove(outgoing)
            outgoing.request = None
            outgoing.respond(Cancelled("the call was cancelled"), True)

    def _read(self, message: Message, _: memoryview) -> None:
        outgoing = self._under_way.get(message[1])
        if outgoing is not None:
            outgoing.unread -= message[2]

    def _control(self, message: Message, payload: memoryview) -> None:
        assert self._tensors is not None
        self.controls.asked(message, payload, self._tensors)


class _Outgoing:
    """One call."""

    __slots__ = (
        "_calls",
        "call",
        "executions",
        "holds",
        "key",
        "many",
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
        self.request: InferRequest | None = request  # until it is put
        self.executions = executions  # that it is for
        self.holds = holds
        self.many = many
        self.outputs = request.outputs
        self.started = False  # it counts among those that run
        self.unread = 0
        self.span: Span | None = None  # what it is noted in
        self.call: BlsCall | None = None  # while it is put and not answered
        self._calls = calls

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Hear an answer."""
        self._calls.answer(self, answer, final)
