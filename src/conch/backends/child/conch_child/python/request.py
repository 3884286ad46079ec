"""`pb_utils.InferenceRequest`: what `execute` gets, and what a model builds to call another model."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Dict, FrozenSet, List, Optional, Tuple, Union

from .answering import Answerer, InferenceResponseSender, Responder, checked_parameters
from .arguments import CallSignature
from .calling import PendingCall, PendingCalls
from .errors import TritonModelException
from .response_iterator import ResponseIterator
from .session import current
from .tensor import Tensor

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2

MEMORY_CPU = 0
MEMORY_GPU = 2


class PreferredMemory:
    """Where the outputs of a call to another model should lie; all memory is the host's here."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: int = MEMORY_CPU, preferred_memory_type_id: int = 0) -> None:
        self.memory_type = preferred_memory_type
        self.device_id = preferred_memory_type_id


class InferenceTrace:
    """The trace that a request belongs to. Given to a request of the model's own, it has that appear in the trace."""

    __slots__ = ("_context", "key")

    def __init__(self, key: int = 0, context: str = "") -> None:
        self.key = key  # of the request that it is the trace of, 0 if there is none
        self._context = context

    def get_context(self) -> Optional[str]:
        """Return the W3C trace context as JSON, None if the request has none."""
        return self._context or None


_NO_TRACE = InferenceTrace()
_ANY_MEMORY = PreferredMemory()
_MISSING: Any = object()

_SIGNATURE = CallSignature(
    "__init__",
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
    "List[c_python_backend_utils.Tensor], requested_output_names: List[str], model_name: str, model_version: int = -1, "
    "flags: int = 0, timeout: int = 0, preferred_memory: c_python_backend_utils.PreferredMemory, trace: "
    "c_python_backend_utils.InferenceTrace, parameters: object = None)",
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
    """One request: made by the server for `execute`, or by the model for a call to another model."""

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
        for what, value in (("inputs", inputs), ("requested_output_names", requested_output_names)):
            if value is _MISSING:
                raise signature.mismatch(what, None)
        name = signature.text("model_name", model_name)
        self._id = signature.text("request_id", request_id)
        self._correlation_id = _checked_correlation_id(correlation_id)
        whose = "request with id '{}' and model name '{}'".format(self._id, name)
        self._inputs = list(signature.items("inputs", inputs))
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException("Input tensor for {} should not be empty.".format(whose))
            if not isinstance(tensor, Tensor):
                raise signature.mismatch("inputs", inputs)
        self._outputs = frozenset(
            signature.text("requested_output_names", output)
            for output in signature.items("requested_output_names", requested_output_names)
        )
        if "" in self._outputs:
            raise TritonModelException("Requested output name for {} should not be empty.".format(whose))
        self._model: Optional[Tuple[str, int]] = (
            name,
            signature.number("model_version", model_version, 64, signed=True),
        )
        signature.instance("preferred_memory", preferred_memory, PreferredMemory)
        self._trace: InferenceTrace = signature.instance("trace", trace, InferenceTrace)
        self._flags = signature.number("flags", flags, 32)
        self._timeout = signature.number("timeout", timeout, 64)
        self._parameters = checked_parameters(parameters)
        self._responder: Optional[Responder] = None

    @classmethod
    def from_wire(cls, answerer: Answerer, message: Tuple[Any, ...], payload: bytearray) -> InferenceRequest:
        """Make a request from its part of an EXECUTE message and that frame's payload."""
        key, request_id, correlation_id, flags, timeout, parameters, outputs, trace, inputs, destinations = message
        request = cls.__new__(cls)
        request._model = None
        request._trace = _NO_TRACE if trace is None else InferenceTrace(key, trace)
        request._id = request_id
        request._correlation_id = correlation_id
        request._flags = flags
        request._timeout = timeout
        request._parameters = parameters
        request._outputs = frozenset(outputs) if outputs else answerer.output_names
        request._responder = Responder(answerer, key, request._outputs, destinations)
        view = answerer.channel.inputs.view
        whole = memoryview(payload)
        request._inputs = [
            Tensor.from_wire(name, datatype, shape, view(place, size) if place >= 0 else whole[~place : ~place + size])
            for name, datatype, shape, place, size in inputs
        ]
        return request

    def inputs(self) -> List[Tensor]:
        """Return the input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id that the client gave, or ""."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """Return the sequence's id, 0 if the request belongs to none."""
        return self._correlation_id

    def flags(self) -> int:
        """Return the sum of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, as they apply."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the flags of a request to another model."""
        self._flags = flags

    def timeout(self) -> int:
        """Return the time-out in microseconds, 0 if there is none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._parameters or {})

    def requested_output_names(self) -> FrozenSet[str]:
        """Return the outputs that the client wants: all that the model declares if it did not say."""
        return self._outputs

    def trace(self) -> InferenceTrace:
        """Return the trace."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client has gone or has cancelled. Cheap enough to ask between any two steps."""
        return self._own_responder().is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """Return a sender, for responses that come one by one, from other threads or after `execute`."""
        return InferenceResponseSender(self._own_responder())

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request after `execute`: with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE it comes again.

        That is for models with `iterative_sequence`. Raises TritonModelException for flags that mean nothing.
        """
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException("Unable to set release flags. Unsupported flag provided.")
        self._own_responder().again = flags == REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> Any:
        """Call the model and wait for its response, which may be an error; see `InferenceResponse.has_error`.

        With `decoupled` return an iterator of its responses. Raises TritonModelException outside of `execute`.
        """
        calls = current().calls
        call = self._call(calls, decoupled)
        return ResponseIterator(calls, call) if decoupled else calls.wait(call)[0]

    def async_exec(self, decoupled: bool = False) -> Any:
        """Call the model; return what can be awaited for its response, or with `decoupled` for an iterator.

        Other tasks of the event loop go on meanwhile. A cancelled task takes its call along. Raises
        TritonModelException outside of `execute`, and RuntimeError where no event loop is running.
        """
        loop = asyncio.get_running_loop()
        calls = current().calls
        call = self._call(calls, decoupled)
        if decoupled:
            responses = ResponseIterator(calls, call)
            return calls.future(call, loop, lambda: responses)
        return calls.future(call, loop, lambda: call.items.popleft()[0])

    def _call(self, calls: PendingCalls, decoupled: bool) -> PendingCall:
        if self._model is None:
            raise TritonModelException("a request that came from a client cannot be sent on; make a new one of it")
        name, version = self._model
        timeout, outputs = int(self._timeout), tuple(self._outputs)
        options = (self._id, self._correlation_id, self._flags, timeout, self._parameters, outputs, self._trace.key)
        return calls.call((name, version, *options), self._inputs, decoupled)

    def _own_responder(self) -> Responder:
        if self._responder is None:
            raise TritonModelException("a request that the model has made itself has no client")
        return self._responder
