# Compiled by mypyc in wheels.
"""One request on its way through an ensemble: the steps that run for it, its end, and the run of a simple graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from time import monotonic_ns
from typing import TypeAlias

from conch.base.errors import ConchError
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.server.core.ensembles.step import (
    SequencePosition,
    Stage,
    StepTimes,
    ensemble_response,
    given_tensors,
    step_failure,
    step_position,
    step_request,
    take_outputs,
)
from conch.server.core.pending import Pending, State
from conch.server.core.served_model import ServedModel

# Counts a request that has ended, with the times of its steps.
CountRun: TypeAlias = Callable[[Pending, StepTimes, InferResponse | ConchError | None], None]
# Gets a response of a step: its number, request and sequence position, the response, and whether it is the last one.
StepAnswered: TypeAlias = Callable[[int, InferRequest, SequencePosition, InferResponse | ConchError | None, bool], None]


class EnsembleRun(ABC):
    """One admitted request, which owns the requests of its steps."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        request: InferRequest,
        respond: Respond,
        models: Sequence[ServedModel],
        count: CountRun,
    ) -> None:
        """Begin the request. `models` are those of the steps, which the run leaves when it ends."""
        self.pending = Pending(request, respond, self)
        self.pending.state = State.EXECUTING
        self.pending.on_cancel(self._cancel_steps)
        request.timeline.queued = request.timeline.started = monotonic_ns()
        self._config = config
        self._version = version
        self._steps = config.ensemble_steps
        self._models = models
        self._count = count
        self._times = StepTimes()

    @property
    @abstractmethod
    def running(self) -> Iterable[Pending]:
        """The requests of the steps that have been started and have not ended."""

    @abstractmethod
    def advance(self) -> None:
        """Start every step whose tensors are there; answer what is complete."""

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:  # noqa: ARG002
        """Count the request, and release the models of its steps."""
        self._count(pending, self._times, answer)
        for model in self._models:
            model.leave()

    def _can_start(self, number: int, tensors: Stage) -> bool:
        return all(tensor in tensors for tensor in self._steps[number].input_map.values())

    def _submit(self, number: int, tensors: Stage, running: dict[int, Pending], answered: StepAnswered) -> bool:
        """Send the request of a step, which is `running` until `answered` gets its last response.

        Returns False if it is refused, which ends the run.
        """
        request, step, model = self.pending.request, self._steps[number], self._models[number]
        position = step_position(request, step, tensors)
        inner = step_request(request, step, tensors, position)
        if request.meter is not None:  # tokens count towards the limits that the ensemble's request counts towards
            inner.meter = request.meter.stage(model.config.name, str(model.version))
        try:
            pending = model.submit_within(request.span, inner, partial(answered, number, inner, position))
        except ConchError as error:
            self._fail(number, error)
            return False
        if not pending.cancelled:  # it may have ended already, if it is an ensemble
            running[number] = pending
        if inner.caller is not None:
            inner.caller.check()
        return True

    def _response(self, tensors: Stage) -> InferResponse:
        return ensemble_response(self.pending.request, self._config, self._version, tensors)

    def _fail(self, number: int, error: ConchError) -> None:
        """End the request with the error of a step, and cancel the other steps."""
        self.pending.finish(step_failure(self._config, self._steps[number], error))
        self._cancel_steps()

    def _cancel_steps(self) -> None:
        for inner in list(self.running):
            inner.cancel("another step of the ensemble failed, or the request was cancelled")


class SingleRun(EnsembleRun):
    """A run in which each step that is `needed` gives one response."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        request: InferRequest,
        respond: Respond,
        models: Sequence[ServedModel],
        count: CountRun,
        needed: Set[int],
    ) -> None:
        super().__init__(config, version, request, respond, models, count)
        self._tensors = given_tensors(request, config)
        self._waiting = [number for number in range(len(self._steps)) if number in needed]
        self._running: dict[int, Pending] = {}

    @property
    def running(self) -> Iterable[Pending]:
        return self._running.values()

    def advance(self) -> None:
        startable = [number for number in self._waiting if self._can_start(number, self._tensors)]
        self._waiting = [number for number in self._waiting if number not in startable]
        for number in startable:
            if self.pending.cancelled:  # a step before this one could not be started
                return
            self._submit(number, self._tensors, self._running, self._step_answered)
        if not self._running and not self.pending.cancelled:
            self.pending.finish(self._response(self._tensors))

    def _step_answered(
        self,
        number: int,
        inner: InferRequest,
        position: SequencePosition,
        answer: InferResponse | ConchError | None,
        _final: bool,
    ) -> None:
        self._running.pop(number, None)
        if self.pending.cancelled:
            return
        if not isinstance(answer, InferResponse):
            self._fail(number, answer or ConchError("the model gave no response"))
            return
        self._times.add(inner.timeline)
        try:
            take_outputs(self._steps[number], answer, position, self._tensors)
        except ConchError as error:
            self._fail(number, error)
        else:
            self.advance()
