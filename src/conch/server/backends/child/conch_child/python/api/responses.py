"""`pb_utils.InferenceResponse` and its sender, and the state that ends each request exactly once."""

from __future__ import annotations

import json
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ...ipc.arena import MAX_INLINE_BYTES, Parcel
from ...ipc.wire import shortened
from .. import messages
from ..channel import Channel
from ..kept_data import KeptData
from .arguments import CallSignature
from .errors import TritonError, TritonModelException
from .tensor import Tensor

RESPONSE_COMPLETE_FINAL = 1
_NO_TYPES: Mapping[str, str] = {}
_MAX_REPORTED_OUTPUTS = 16

Answer = Tuple[Any, ...]


_SIGNATURE = CallSignature(
    "__init__",
    "c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], "
    "error: c_python_backend_utils.TritonError = None, parameters: object = None)",
)

_SEND = CallSignature(
    "send",
    "(self: c_python_backend_utils.InferenceResponseSender, response: c_python_backend_utils.InferenceResponse = None, "
    "flags: int = 0) -> None",
)


class InferenceResponse:
    """Output tensors or an error, and optionally parameters.

    Raises TypeError for arguments of wrong types, TritonModelException for None in place of a tensor, or for parameters
    other than bool, int and str by name.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Dict[str, Any]] = None,
    ) -> None:
        if type(output_tensors) is not list:
            output_tensors = _SIGNATURE.items("output_tensors", output_tensors)
        tensors: List[Any] = list(output_tensors)
        for tensor in tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise _SIGNATURE.mismatch("output_tensors", output_tensors)
        self._tensors = tensors
        self._error: Optional[TritonError] = error
        if error is not None:
            _SIGNATURE.instance("error", error, TritonError)
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> List[Tensor]:
        """Return the output tensors."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Return whether this is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Return the error, None for a response with tensors."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._parameters or {}, ensure_ascii=False, separators=(",", ":"))


class Responder:
    """The response state of one request, shared by the request and its senders.

    When the last of them is deleted without a final response, the client receives an error.
    """

    __slots__ = ("_writer", "answered", "closed", "destinations", "key", "requested", "reschedule", "sender_taken")

    def __init__(
        self,
        writer: ResponseWriter,
        key: int,
        requested: FrozenSet[str],
        destinations: Optional[Dict[str, Tuple[Any, ...]]] = None,
    ) -> None:
        self._writer = writer
        self.key = key
        self.requested = requested
        self.destinations = destinations
        self.sender_taken = False  # the model has taken a sender
        self.answered = False  # the final answer has been sent
        self.closed = False  # the model may send no more responses
        self.reschedule = False  # the model rescheduled the request

    def __del__(self) -> None:
        if not self.answered:
            self._writer.abandon(self.key)

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled."""
        channel = self._writer.channel
        channel.drain()
        return self.key in channel.cancelled

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Send a response, the final flag, or both."""
        self._writer.send(self, response, final)


class InferenceResponseSender:
    """Sends the responses of one request, from any thread, during `execute` or later."""

    __slots__ = ("_responder",)

    def __init__(self, responder: Responder) -> None:
        responder.sender_taken = True
        self._responder = responder

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response; `flags` is 0, or TRITONSERVER_RESPONSE_COMPLETE_FINAL with or after the last one.

        Raises TritonModelException if that is invalid or the sender is closed, TypeError for other types.
        """
        flags = _SEND.number("flags", flags, 32)
        _SEND.instance("response", response, InferenceResponse, none=True)
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._responder.send(response, bool(flags))

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled."""
        return self._responder.is_cancelled()


class ResponseWriter:
    """Encodes responses and sends them to the server."""

    def __init__(
        self,
        channel: Channel,
        instance_name: str,
        output_types: Mapping[str, str] = _NO_TYPES,
        decoupled: bool = False,
    ) -> None:
        self.channel = channel
        self.decoupled = decoupled
        # The outputs of requests that name none; empty where the model declares no outputs.
        self.output_names: FrozenSet[str] = frozenset(output_types)
        self._output_types = output_types
        self._reported: Set[str] = set()  # outputs that differ from the configuration and were logged
        self._instance_name = instance_name
        self._abandoned: List[int] = []
        self.input_done = 0  # when the inputs of the last batch were ready, monotonic ns

    def send(self, responder: Responder, response: Optional[InferenceResponse], final: bool) -> None:
        """Send one answer to one request now. Raises TritonModelException if the request cannot have another."""
        if responder.destinations:
            self.channel.drain()  # outputs of cancelled requests are not written to clients' shared memory
        with self.channel.writing:
            if responder.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if not self.decoupled:
                if response is None and not responder.answered:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
                if response is not None and responder.answered:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
            if not responder.answered:
                self._send_one(responder, response, final)
            responder.closed = final
        self._flush()

    def finish(
        self,
        outcomes: List[Tuple[Responder, Union[InferenceResponse, TritonError, None]]],
        input_done: int,
        infer_done: int,
        usage: Tuple[int, int, int],
    ) -> None:
        """Send the answers of an `execute` and what it used, with which the instance is free for the next batch.

        A request whose outcome is None is rescheduled. Empties `outcomes`, so that this frame also releases inputs that
        outputs are views of.
        """
        if any(responder.destinations for responder, _ in outcomes):
            self.channel.drain()  # outputs of cancelled requests are not written to clients' shared memory
        with self.channel.writing:
            parcel = self.channel.parcel()
            answers = []
            while outcomes:
                responder, outcome = outcomes.pop()
                if not responder.answered:
                    answers.append(self._final_answer(parcel, responder, outcome))
                    responder.answered = responder.closed = True
                del outcome
            answers.reverse()
            released = self.channel.inputs.take_released()
            try:
                message = (messages.EXECUTED, released, answers, input_done, infer_done, usage)
                self.channel.transmit(message, parcel)
            except ValueError as error:  # too large
                parcel.discard(0)
                failed = [(answer[0], *self._failed(error)) for answer in answers]
                self.channel.transmit((messages.EXECUTED, released, failed, input_done, infer_done, usage))
        self._flush()

    def abandon(self, key: int) -> None:
        """Fail a request whose senders are all deleted. Called by the garbage collector, in any thread."""
        self._abandoned.append(key)
        self._flush()

    def _flush(self) -> None:
        # The collector may run while a frame is being sent. Then `writing` is held, possibly by this thread, and its
        # holder calls this method afterwards.
        while self._abandoned and self.channel.writing.acquire(blocking=False):
            try:
                answers = tuple([self._dropped(key) for key in self._abandoned])
                del self._abandoned[: len(answers)]
                with suppress(OSError):  # the server has exited
                    self._transmit_answers((), answers)
            finally:
                self.channel.writing.release()

    def _dropped(self, key: int) -> Answer:
        text = "Model instance '{}' dropped the response sender before sending the final flag."
        return key, True, (int(TritonError.INTERNAL), text.format(self._instance_name)), None, None

    def _send_one(self, responder: Responder, response: Optional[InferenceResponse], final: bool) -> None:
        parcel = self.channel.parcel()
        if response is None:
            answer: Answer = (responder.key, True, None, None, None)
        else:
            last = final or not self.decoupled
            answer = self._encode(parcel, responder, response, last)
        released = self.channel.inputs.take_released()
        try:
            self._transmit_answers(released, (answer,), parcel)
        except ValueError as error:  # too large
            parcel.discard(0)
            self._transmit_answers(released, ())
            raise TritonModelException("Unable to send response: {}".format(error)) from None
        responder.answered = answer[1]

    def _transmit_answers(
        self, released: Tuple[Any, ...], answers: Tuple[Answer, ...], parcel: Optional[Parcel] = None
    ) -> None:
        """Send answers that do not end an `execute`."""
        self.channel.transmit((messages.ANSWERED, released, answers, self.input_done, monotonic_ns()), parcel)

    def _final_answer(
        self, parcel: Parcel, responder: Responder, outcome: Union[InferenceResponse, TritonError, None]
    ) -> Answer:
        if outcome is None:
            return responder.key, None, None, None, None
        if isinstance(outcome, TritonError):
            return responder.key, True, (int(outcome.code()), shortened(outcome.message())), None, None
        try:
            return self._encode(parcel, responder, outcome, True)
        except Exception as error:  # arrays may hold anything; an invalid one must fail only its own response
            return (responder.key, *self._failed(error))

    def _failed(self, error: Exception) -> Answer:
        """Return the fields of an answer after the key, for a response that cannot be sent."""
        text = shortened("Failed to send the response of model instance '{}': {}".format(self._instance_name, error))
        return True, (int(TritonError.INTERNAL), text), None, None

    def _encode(self, parcel: Parcel, responder: Responder, response: InferenceResponse, final: bool) -> Answer:
        # Attributes in place of methods: this runs for every response.
        error = response._error
        if error is not None:
            text = shortened(error.message())
            return responder.key, final, (int(error.code()), text), None, response._parameters
        names = responder.requested or self.output_names
        tensors = response._tensors
        # All tensors are encoded before the first is placed, so that an exception leaks no block.
        encoded = [tensor.wire() for tensor in tensors if not names or tensor._name in names]
        if len(encoded) < len(tensors):
            for tensor in tensors:
                if tensor._name not in self.output_names:
                    self._report(tensor._name, "")
        types, destinations = self._output_types, responder.destinations
        outputs = []
        for name, datatype, shape, data, size in encoded:
            if types.get(name) != datatype:
                self._report(name, datatype)
            place: Optional[int] = None
            if type(data) is KeptData:
                place = data.place
            elif destinations is None or not self._write_to_region(responder, name, data, size):
                place = parcel.put(data, size)
            outputs.append((name, datatype, shape, place, size))
        parameters = response._parameters
        if not parameters:
            return responder.key, final, outputs
        return responder.key, final, None, outputs, parameters

    def _report(self, name: str, datatype: str) -> None:
        """Log once that an output is not the configuration's; `datatype` is "" if it is dropped. Holds `writing`."""
        if not self._output_types or name in self._reported or len(self._reported) >= _MAX_REPORTED_OUTPUTS:
            return
        self._reported.add(name)
        if datatype and name in self._output_types:
            text = "output '{}' has datatype {}, config.pbtxt says {}; it is sent as it is".format(
                name, datatype, self._output_types[name]
            )
        else:
            declared = ", ".join(["'{}'".format(known) for known in sorted(self.output_names)])
            text = "output '{}' is dropped: it is not among the outputs of config.pbtxt ({})".format(name, declared)
        self.channel.transmit((messages.LOG, messages.WARNING, "model.py", 0, text))

    def _write_to_region(self, responder: Responder, name: str, data: Any, size: int) -> bool:
        """Write an output to the client's shared memory; return whether that succeeded."""
        destinations = responder.destinations
        # Small outputs travel in the frame, which is faster.
        if destinations is None or name not in destinations or size <= MAX_INLINE_BYTES:
            return False
        return responder.key not in self.channel.cancelled and self.channel.regions.put(destinations[name], data, size)


def checked_parameters(parameters: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """Return validated parameters, None if there are none. Raises TritonModelException."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException("Expect parameters to be a dict, got {}".format(type(parameters)))
    if not parameters:
        return None
    checked: Dict[str, Any] = {}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException("Expect parameters keys to have type str, found type {}".format(type(key)))
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TritonModelException(
                "Expect parameters values of 64 bits, found an integer of {} bits".format(value.bit_length() + 1)
            )
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                checked[str(key)] = kind(value)  # subclasses, such as numpy's, have other representations
                break
        else:
            raise TritonModelException(
                "Expect parameters values to have type bool/int/str, found type {}".format(type(value))
            )
    return checked
