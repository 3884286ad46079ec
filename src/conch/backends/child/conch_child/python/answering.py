"""How requests are answered: the response, the sender, and the record that sees to it that each request ends once."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple, Union

from ..ipc.arena import INLINE_LIMIT, Parcel
from . import messages
from .arguments import CallSignature
from .channel import Channel
from .errors import TritonError, TritonModelException
from .metrics import MetricRegistry
from .tensor import Tensor

RESPONSE_COMPLETE_FINAL = 1

Answer = Tuple[Any, ...]


_SIGNATURE = CallSignature(
    "__init__",
    "c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], "
    "error: c_python_backend_utils.TritonError = None, parameters: object = None)",
)


class InferenceResponse:
    """Output tensors, or an error in their place; and parameters, if there is something to say about the response.

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
        tensors: List[Any] = list(_SIGNATURE.items("output_tensors", output_tensors))
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                raise _SIGNATURE.mismatch("output_tensors", output_tensors)
        self._tensors = tensors
        self._error: Optional[TritonError] = _SIGNATURE.instance("error", error, TritonError, none=True)
        self._parameters = checked_parameters(parameters)

    def output_tensors(self) -> List[Tensor]:
        """Return the output tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Return the error, None if there is none."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._parameters or {})

    def parameter_values(self) -> Optional[Dict[str, Any]]:
        """Return the parameters themselves, None if there are none."""
        return self._parameters


class Responder:
    """One request as seen from its answers.

    The request and its senders share it. When the last of them dies unanswered, nobody can answer any more: the client
    is told instead of left waiting.
    """

    __slots__ = ("_answerer", "again", "answered", "closed", "destinations", "handed_out", "key", "requested")

    def __init__(
        self,
        answerer: Answerer,
        key: int,
        requested: FrozenSet[str],
        destinations: Optional[Dict[str, Tuple[Any, ...]]] = None,
    ) -> None:
        self._answerer = answerer
        self.key = key
        self.requested = requested
        self.destinations = destinations
        self.handed_out = False  # the model has taken a sender
        self.answered = False  # the server has had the last answer
        self.closed = False  # the model may send nothing more
        self.again = False  # the model wants the request once more

    def __del__(self) -> None:
        if not self.answered:
            self._answerer.abandon(self.key)

    def is_cancelled(self) -> bool:
        """Whether the client has gone or has cancelled."""
        channel = self._answerer.channel
        channel.drain()
        return self.key in channel.cancelled

    def send(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Send a response, the end, or both."""
        self._answerer.send(self, response, final)


class InferenceResponseSender:
    """Answers one request, from any thread, during `execute` or later."""

    __slots__ = ("_responder",)

    def __init__(self, responder: Responder) -> None:
        responder.handed_out = True
        self._responder = responder

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response; `flags` is 0, or TRITONSERVER_RESPONSE_COMPLETE_FINAL with or after the last one.

        Raises TritonModelException if that is not possible (any more).
        """
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None:
            if not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set to zero."
                )
        elif not isinstance(response, InferenceResponse):
            raise TritonModelException(
                "Unable to send response. Expected an InferenceResponse, found type '{}'.".format(
                    type(response).__name__
                )
            )
        self._responder.send(response, bool(flags))

    def is_cancelled(self) -> bool:
        """Whether the client has gone or has cancelled."""
        return self._responder.is_cancelled()


class Answerer:
    """Makes answers of responses and sends them."""

    def __init__(
        self,
        channel: Channel,
        metrics: MetricRegistry,
        instance_name: str,
        output_names: Sequence[str] = (),
        decoupled: bool = False,
    ) -> None:
        self.channel = channel
        self.decoupled = decoupled
        # What is sent back where the client does not say; empty where the model declares no outputs.
        self.output_names: FrozenSet[str] = frozenset(output_names)
        self._metrics = metrics
        self._instance_name = instance_name
        self._abandoned: List[int] = []

    def send(self, responder: Responder, response: Optional[InferenceResponse], final: bool) -> None:
        """Send one answer to one request now. Raises TritonModelException if the request takes none (any more)."""
        if responder.destinations:
            self.channel.drain()  # of a request that was cancelled nothing is written
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
    ) -> None:
        """End an `execute`: answer these requests, once each, and tell that the next batch can come.

        A request whose outcome is None is to come again.

        Empties `outcomes`: outputs that are views of inputs let go of them, so that these are released by this frame.
        """
        if any(responder.destinations for responder, _ in outcomes):
            self.channel.drain()  # of a request that was cancelled nothing is written
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
            message = (messages.EXECUTED, released, tuple(answers), self._metrics.take(), input_done, infer_done)
            self.channel.transmit(message, parcel)
        self._flush()

    def abandon(self, key: int) -> None:
        """Answer a request that nobody can answer any more. Called by the garbage collector, in any thread."""
        self._abandoned.append(key)
        self._flush()

    def _flush(self) -> None:
        # The collector may strike in the middle of a frame. Then `writing` is taken, by this very thread perhaps, and
        # whoever holds it comes here afterwards.
        while self._abandoned and self.channel.writing.acquire(blocking=False):
            try:
                answers = tuple([self._given_up(key) for key in self._abandoned])
                del self._abandoned[: len(answers)]
                with suppress(OSError):  # the server has gone
                    self.channel.transmit((messages.ANSWERED, (), answers, ()))
            finally:
                self.channel.writing.release()

    def _given_up(self, key: int) -> Answer:
        text = "Model instance '{}' dropped the response sender before sending the final flag."
        return key, True, (TritonError.INTERNAL, text.format(self._instance_name)), None, None

    def _send_one(self, responder: Responder, response: Optional[InferenceResponse], final: bool) -> None:
        parcel = self.channel.parcel()
        if response is None:
            answer: Answer = (responder.key, True, None, None, None)
        else:
            last = final or not self.decoupled
            answer = self._encode(parcel, responder, response, last)
        released = self.channel.inputs.take_released()
        self.channel.transmit((messages.ANSWERED, released, (answer,), self._metrics.take()), parcel)
        responder.answered = answer[1]

    def _final_answer(
        self, parcel: Parcel, responder: Responder, outcome: Union[InferenceResponse, TritonError, None]
    ) -> Answer:
        if outcome is None:
            return responder.key, None, None, None, None
        if isinstance(outcome, TritonError):
            return responder.key, True, (outcome.code(), outcome.message()), None, None
        try:
            return self._encode(parcel, responder, outcome, True)
        except Exception as error:  # what a model put into its arrays is its own; one bad response spoils no other
            text = "Failed to send the response of model instance '{}': {}".format(self._instance_name, error)
            return responder.key, True, (TritonError.INTERNAL, text), None, None

    def _encode(self, parcel: Parcel, responder: Responder, response: InferenceResponse, final: bool) -> Answer:
        error = response.error()
        if error is not None:
            return responder.key, final, (error.code(), error.message()), None, response.parameter_values()
        wanted = responder.requested or self.output_names
        # All are made ready before the first is placed: what raises leaves no block behind.
        wires = [tensor.wire() for tensor in response.output_tensors() if not wanted or tensor.name() in wanted]
        outputs = []
        for name, datatype, shape, data, size in wires:
            place = None if self._written(responder, name, data, size) else parcel.put(data, size)
            outputs.append((name, datatype, shape, place, size))
        return responder.key, final, None, tuple(outputs), response.parameter_values()

    def _written(self, responder: Responder, name: str, data: Any, size: int) -> bool:
        """Whether an output has been put where the client wants it."""
        destinations = responder.destinations
        # What travels anyhow is not worth the way there.
        if destinations is None or name not in destinations or size <= INLINE_LIMIT:
            return False
        return responder.key not in self.channel.cancelled and self.channel.regions.put(destinations[name], data, size)


def checked_parameters(parameters: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """Return parameters that may travel, None if there are none. Raises TritonModelException."""
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
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                checked[str(key)] = kind(value)  # subclasses, such as numpy's, do not travel
                break
        else:
            raise TritonModelException(
                "Expect parameters values to have type bool/int/str, found type {}".format(type(value))
            )
    return checked
