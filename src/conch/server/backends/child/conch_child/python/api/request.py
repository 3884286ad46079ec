"""`pb_utils.InferenceRequest`: the requests of `execute`, and those that models create to call other models (BLS)."""

from __future__ import annotations

import asyncio
import json
import threading
from enum import IntEnum
from typing import Any, Dict, List, Optional, Set, Tuple, Union

from ..bls import PendingCall, PendingCalls
from .arguments import CallSignature
from .errors import TritonModelException
from .responses import InferenceResponse, InferenceResponseSender, Responder, ResponseWriter, checked_parameters
from .session import current
from .tensor import Tensor

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(IntEnum):
    """Kinds of memory, numbered as in Triton's Python backend."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU

_PREFERRED_MEMORY = CallSignature(
    "__init__",
    "c_python_backend_utils.PreferredMemory(preferred_memory_type: "
    "triton::backend::python::PreferredMemory::MemoryType, preferred_device_id: int = 0)",
)


class PreferredMemory:
    """The preferred memory of a BLS call's outputs. Accepted for Triton's API; outputs are always in host memory."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        signature = _PREFERRED_MEMORY
        self.memory_type: MemoryType = signature.instance("preferred_memory_type", preferred_memory_type, MemoryType)
        self.device_id = signature.number("preferred_device_id", preferred_device_id, 64, signed=True)


class InferenceTrace:
    """The trace of a request. A BLS request created with it appears in the same trace."""

    __slots__ = ("_context", "key")

    def __init__(self, key: int = 0, context: str = "") -> None:
        self.key = key  # of the traced request, 0 for none
        self._context = context

    def get_context(self) -> Optional[str]:
        """Return the W3C trace context as JSON, None if the request has none."""
        return self._context or None


_NO_TRACE = InferenceTrace()
_ANY_MEMORY = PreferredMemory(MEMORY_CPU)
_MISSING: Any = object()
_ZERO, _NEWEST = 0, -1  # the defaults

_SIGNATURE = CallSignature(
    "__init__",
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
    "List[c_python_backend_utils.Tensor], requested_output_names: List[str], model_name: str, model_version: int = -1, "
    "flags: int = 0, timeout: int = 0, preferred_memory: c_python_backend_utils.PreferredMemory, trace: "
    "c_python_backend_utils.InferenceTrace, parameters: object = None)",
)

_SET_FLAGS, _SET_RELEASE_FLAGS = (
    CallSignature(name, "(self: c_python_backend_utils.InferenceRequest, arg0: int) -> None")
    for name in ("set_flags", "set_release_flags")
)
_EXEC, _ASYNC_EXEC = (
    CallSignature(name, "(self: c_python_backend_utils.InferenceRequest, decoupled: bool = False) -> object")
    for name in ("exec", "async_exec")
)


def _checked_correlation_id(value: Any) -> Union[int, str]:
    if isinstance(value, str):
        return str(value)
    if value is None:
        raise _SIGNATURE.mismatch("correlation_id", value)
    if not hasattr(value, "__index__"):
        raise TritonModelException("Correlation ID must be integer or string")
    number = int(value.__index__())
    if not 0 <= number < 1 << 64:
        raise RuntimeError(
            "Unable to cast Python instance to C++ type: correlation_id {} has no 64 bits".format(number)
        )
    return number


class InferenceRequest:
    """One request, from a client or created by the model to call another model."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_id",
        "_inputs",
        "_model",
        "_outputs",
        "_parameters",
        "_responder",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: Union[str, bytes] = "",
        correlation_id: Union[int, str] = 0,
        inputs: Any = _MISSING,
        requested_output_names: Any = _MISSING,
        model_name: Union[str, bytes, None] = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _ANY_MEMORY,
        trace: InferenceTrace = _NO_TRACE,
        parameters: Optional[Dict[str, Any]] = None,
    ) -> None:
        signature = _SIGNATURE
        if inputs is _MISSING or requested_output_names is _MISSING:
            raise signature.mismatch("inputs" if inputs is _MISSING else "requested_output_names", None)
        # The usual types are checked here, as models make many requests; `signature` takes others, or refuses them.
        name = model_name if type(model_name) is str else signature.text("model_name", model_name)
        self._id = request_id if type(request_id) is str else signature.text("request_id", request_id)
        self._correlation_id = 0 if correlation_id is _ZERO else _checked_correlation_id(correlation_id)
        self._inputs = list(signature.items("inputs", inputs))
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException("Input tensor for {} should not be empty.".format(self._described(name)))
            if not isinstance(tensor, Tensor):
                raise signature.mismatch("inputs", inputs)
        names = signature.items("requested_output_names", requested_output_names)
        self._outputs = frozenset(
            [text if type(text) is str else signature.text("requested_output_names", text) for text in names]
        )
        if "" in self._outputs:
            raise TritonModelException(
                "Requested output name for {} should not be empty.".format(self._described(name))
            )
        if model_version is not _NEWEST:
            model_version = signature.number("model_version", model_version, 64, signed=True)
        self._model: Optional[Tuple[str, int]] = (name, model_version)
        if preferred_memory is not _ANY_MEMORY:
            signature.instance("preferred_memory", preferred_memory, PreferredMemory)
        self._trace: InferenceTrace = signature.instance("trace", trace, InferenceTrace)
        self._flags = flags if flags is _ZERO else signature.number("flags", flags, 32)
        self._timeout = timeout if timeout is _ZERO else signature.number("timeout", timeout, 64)
        self._parameters = None if parameters is None else checked_parameters(parameters)
        self._responder: Optional[Responder] = None

    @classmethod
    def from_wire(cls, writer: ResponseWriter, message: Tuple[Any, ...], payload: memoryview) -> InferenceRequest:
        """Create a request from its part of an EXECUTE message and a copy of the frame's payload."""
        key, request_id, correlation_id, flags, timeout, parameters, outputs, trace, inputs, destinations = message
        request = cls.__new__(cls)
        request._model = None
        request._trace = _NO_TRACE if trace is None else InferenceTrace(key, trace)
        request._id = request_id
        request._correlation_id = correlation_id
        request._flags = flags
        request._timeout = timeout
        request._parameters = parameters
        request._outputs = frozenset(outputs) if outputs else writer.output_names
        request._responder = Responder(writer, key, request._outputs, destinations)
        view = writer.channel.inputs.view
        request._inputs = [
            Tensor.from_wire(name, kind, shape, view(place, size) if place >= 0 else payload[~place : ~place + size])
            for name, kind, shape, place, size in inputs
        ]
        return request

    def _described(self, name: str) -> str:
        return "request with id '{}' and model name '{}'".format(self._id, name)

    def inputs(self) -> List[Tensor]:
        """Return the input tensors."""
        return list(self._inputs)

    def request_id(self) -> str:
        """Return the client's request id, "" without one."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """Return the sequence's id, 0 without a sequence."""
        return self._correlation_id

    def flags(self) -> int:
        """Return the flags: a combination of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the flags of a request to another model."""
        self._flags = _SET_FLAGS.number("flags", flags, 32)

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._parameters or {}, ensure_ascii=False, separators=(",", ":"))

    def requested_output_names(self) -> Set[str]:
        """Return the requested outputs, by default all that the model declares."""
        return set(self._outputs)

    def trace(self) -> InferenceTrace:
        """Return the trace."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled. Cheap enough to call between any two steps."""
        return self._require_responder().is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return a sender for any number of responses, from any thread, also after `execute`."""
        return InferenceResponseSender(self._require_responder())

    def set_release_flags(self, flags: int) -> None:
        """Release the request after `execute`, or reschedule it with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.

        The latter is for models with `iterative_sequence`. Raises TritonModelException for unknown flags.
        """
        flags = _SET_RELEASE_FLAGS.number("flags", flags, 32)
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException("Unable to set release flags. Unsupported flag provided.")
        self._require_responder().reschedule = flags == REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> Any:
        """Call the model and return its response, which may be an error; see `InferenceResponse.has_error`.

        With `decoupled` returns an iterator of responses. Raises TritonModelException outside of `execute`.
        """
        decoupled = decoupled is not False and _EXEC.flag("decoupled", decoupled)
        calls = current().calls
        call = self._call(calls, decoupled)
        return ResponseIterator(calls, call) if decoupled else calls.wait(call)[0]

    def async_exec(self, decoupled: bool = False) -> Any:
        """Call the model; return an awaitable of its response, or with `decoupled` of an iterator of responses.

        Cancelling the awaiting task cancels the call. Raises TritonModelException outside of `execute`, and
        RuntimeError without a running event loop.
        """
        decoupled = _ASYNC_EXEC.flag("decoupled", decoupled)
        loop = asyncio.get_running_loop()
        calls = current().calls
        call = self._call(calls, decoupled)
        if decoupled:
            responses = ResponseIterator(calls, call)
            return calls.future(call, loop, lambda: responses)
        return calls.future(call, loop, lambda: call.items.popleft()[0])

    def _call(self, calls: PendingCalls, decoupled: bool) -> PendingCall:
        if self._model is None:
            raise TritonModelException(
                "a client's request cannot be sent to another model; create a new InferenceRequest from its inputs"
            )
        name, version = self._model
        timeout, outputs = int(self._timeout), tuple(self._outputs)
        # Without parameters an empty object: what has no null is written fastest.
        given = self._parameters or {}
        options = (self._id, self._correlation_id, self._flags, timeout, given, outputs, self._trace.key)
        return calls.call((name, version, *options), self._inputs, decoupled)

    def _require_responder(self) -> Responder:
        if self._responder is None:
            raise TritonModelException("a request that the model created has no client")
        return self._responder


# Read responses are reported to the server in steps of this size; it limits the bytes of unread responses.
_REPORT_BYTES = 1 << 20


class ResponseIterator:
    """The responses of one call as they arrive. The last has no tensors if the model ended by the final flag alone.

    Errors are responses, too, and others may follow. If the iterator is deleted early, the called model continues and
    its responses are dropped; `cancel` stops it.
    """

    def __init__(self, calls: PendingCalls, call: PendingCall) -> None:
        self._calls = calls
        self._call = call
        self._lock = threading.Lock()
        self._ended = False
        self._unreported = 0

    def __del__(self) -> None:
        self._call.discarded = True
        self._call.items.clear()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        with self._lock:
            if self._ended:
                raise StopIteration("Iteration is done for the responses.")
            return self._unpack(self._calls.wait(self._call))

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        call = self._call
        if not call.items:
            await self._calls.future(call, asyncio.get_running_loop(), lambda: None)
        return self._unpack(call.items.popleft())

    def cancel(self) -> None:
        """Cancel the call. The iteration then ends with an error with code CANCELLED."""
        self._calls.cancel(self._call)

    def _unpack(self, item: Any) -> InferenceResponse:
        response: InferenceResponse
        response, weight, self._ended = item
        self._unreported += weight
        if self._unreported >= _REPORT_BYTES:
            self._calls.read(self._call, self._unreported)
            self._unreported = 0
        return response
