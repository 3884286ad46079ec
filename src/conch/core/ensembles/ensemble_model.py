"""A model that is a graph of other models.

Each step starts as soon as all tensors that it takes exist, so independent steps run side by side. A tensor is handed
from stage to stage as it is: no copy, no network, no task. Scheduling is the inner models' business.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from time import monotonic_ns

from conch.core.ensembles.flow import Flow, needed_steps
from conch.core.ensembles.slots import StepSlots
from conch.core.ensembles.step import (
    SequencePosition,
    StepTimes,
    ensemble_error,
    ensemble_response,
    given_tensors,
    step_position,
    step_request,
    take_outputs,
    with_origins,
)
from conch.core.ensembles.stream import StreamRun
from conch.core.pending import Pending, State
from conch.core.served_model import ServedModel
from conch.core.validation import RequestValidator
from conch.errors import ConchError, InvalidRequest, NotFound, QueueFull, Unavailable
from conch.model_config import EnsembleStep, ModelConfig
from conch.request import InferRequest, InferResponse, Respond

# How a step finds its model: by the catalog. Raises NotFound.
FindModel = Callable[[EnsembleStep], ServedModel]


class EnsembleModel(ServedModel):
    """A served ensemble: to the catalog the same thing as any other served model."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        find: FindModel,
        flow: Flow | None = None,
    ) -> None:
        """Assign. `flow` says how responses of decoupled steps flow on; without any, it may be left out."""
        super().__init__(config, version, labels)
        self.misfit = ""  # why its steps do not fit together any more, a model of one having been reloaded
        self._find = find
        self.flow = flow or Flow((0,) * len(config.ensemble_steps), (False,) * len(config.ensemble_steps))
        limit = config.max_inflight_requests
        self._slots = [StepSlots(limit) for _ in config.ensemble_steps] if limit else []
        self._is_stream = bool(limit or self.flow.depth)
        self._needed = needed_steps(config)
        self._all_steps = frozenset(range(len(config.ensemble_steps)))
        # Those without which there is no answer, whatever outputs a request asks for.
        self._always_needed = self._all_steps.intersection(*self._needed.values())
        self._validator = RequestValidator(config)

    @property
    def ready(self) -> bool:
        """Whether the model of every step is ready and fits."""
        try:
            return not self.misfit and all(model.ready for model in self._models())
        except (NotFound, Unavailable):
            return False

    def refusal(self, now: int) -> QueueFull | None:
        """Return the refusal of the first step that has no room: work for a later one to refuse would be wasted."""
        return self._refusal_of(self._always_needed, now)

    def _refusal_of(self, needed: Set[int], now: int) -> QueueFull | None:
        for number, model in enumerate(self._models()):
            error = model.refusal(now) if number in needed else None
            if error is not None:
                step = self.config.ensemble_steps[number]
                return QueueFull(self.located(step, error.message), retry_after_s=error.retry_after_s)
        return None

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request and start its first steps.

        Whatever happens to the models of its steps meanwhile, it keeps those that it began with: they stay up for it,
        and their queues take it. Raises InvalidRequest, NotFound, QueueFull, Unavailable.
        """
        if self.cache is not None:
            found = self.cache.look_up(request, respond)
            if isinstance(found, Pending):
                return found
            respond = found
        self._validator.check(request)
        if self.misfit:
            raise Unavailable(self.misfit)
        needed = self._all_steps
        if request.outputs:
            needed = frozenset[int]().union(*[self._needed[name] for name in request.outputs])
        if not request.admitted:
            self.refuse_for(self._refusal_of(needed, request.timeline.received), request.timeline)
        models = self._models()
        self.enter()
        for model in models:
            model.enter()
        if self._is_stream:
            # The first response may be written over what later steps are still to take.
            request.fetch_inputs()
            flow = self.flow if needed == self._all_steps else self.flow.only(needed)
            stream = StreamRun(self, request, respond, models, flow, self._slots)
            stream.advance()
            return stream.pending
        run = _Run(self, request, respond, models, needed)
        run.advance()
        return run.pending

    def located(self, step: EnsembleStep, text: str) -> str:
        """Return the text of an error with the step it comes from."""
        gap = "" if text.endswith("\n") else " "
        return f"in ensemble '{self.config.name}', {text}{gap}(step '{step.model_name}')"

    def _models(self) -> list[ServedModel]:
        """Return the model of each step as it is served now. Raises NotFound."""
        models = []
        for step in self.config.ensemble_steps:
            try:
                models.append(self._find(step))
            except (NotFound, InvalidRequest) as error:
                raise NotFound(self.located(step, error.message)) from error
        return models

    def count(self, pending: Pending, times: StepTimes, answer: InferResponse | ConchError | None) -> None:
        """Write a finished request into the books: its compute times are the sums over its steps."""
        self.leave()
        timeline = pending.request.timeline
        total = timeline.done - timeline.received
        if isinstance(answer, ConchError):
            self.statistics.count_failure(total, answer.reason)
            return
        size = pending.request.batch_size
        self.statistics.count_success(
            size,
            total=total,
            queue=times.queue,
            compute_input=times.input,
            compute_infer=times.infer,
            compute_output=times.output,
        )
        if self.statistics.first_response is not None:
            self.statistics.first_response.add((pending.first_response or timeline.done) - timeline.received)
        started = timeline.started
        input_done, infer_done = started + times.input, started + times.input + times.infer
        self.statistics.count_execution(size, started, input_done, infer_done, infer_done + times.output)

    async def start(self) -> None:
        """Nothing to bring up: the steps' models are there before their ensemble."""

    async def stop(self) -> None:
        """Nothing to release."""


class _Run:
    """One request on its way through the graph."""

    def __init__(
        self,
        ensemble: EnsembleModel,
        request: InferRequest,
        respond: Respond,
        models: Sequence[ServedModel],
        needed: Set[int],
    ) -> None:
        self.pending = Pending(request, respond, self)
        self.pending.state = State.EXECUTING
        self.pending.on_cancel(self._cancel_steps)
        request.timeline.queued = request.timeline.started = monotonic_ns()
        self.times = StepTimes()
        self._ensemble = ensemble
        self._models = models  # of the steps
        self._tensors = given_tensors(request, ensemble.config)
        self._waiting = [entry for entry in enumerate(ensemble.config.ensemble_steps) if entry[0] in needed]
        self._running: dict[int, Pending] = {}

    @property
    def running(self) -> Iterable[Pending]:
        """The requests of the steps that have been started and have not ended."""
        return self._running.values()

    def settled(self, _pending: Pending, answer: InferResponse | ConchError | None, _was: State) -> None:
        """Called by the pending request when it ends, however it ends."""
        self._ensemble.count(self.pending, self.times, answer)
        for model in self._models:
            model.leave()

    def advance(self) -> None:
        """Start every step whose tensors are there; answer when none is left."""
        startable = [entry for entry in self._waiting if self._can_start(entry[1])]
        self._waiting = [entry for entry in self._waiting if entry not in startable]
        for number, step in startable:
            if self.pending.cancelled:  # a step before this one could not be started
                return
            self._start(number, step)
        if not self._running and not self.pending.cancelled:
            self._answer()

    def _can_start(self, step: EnsembleStep) -> bool:
        return all(tensor in self._tensors for tensor in step.input_map.values())

    def _start(self, number: int, step: EnsembleStep) -> None:
        position = step_position(self.pending.request, step, self._tensors)
        inner = step_request(self.pending.request, step, self._tensors, position)
        answered = partial(self._step_answered, number, step, inner, position)
        try:
            self._running[number] = self._models[number].submit_within(self.pending.request.span, inner, answered)
            if inner.caller is not None:
                inner.caller.check()
        except ConchError as error:
            self._fail(step, error)

    def _step_answered(
        self,
        number: int,
        step: EnsembleStep,
        inner: InferRequest,
        position: SequencePosition,
        answer: InferResponse | ConchError | None,
        _final: bool,
    ) -> None:
        self._running.pop(number, None)
        if self.pending.cancelled:
            return
        if not isinstance(answer, InferResponse):
            self._fail(step, answer or ConchError("the model gave no response"))
            return
        self.times.add(inner.timeline)
        try:
            take_outputs(step, answer, position, self._tensors)
        except ConchError as error:
            self._fail(step, error)
        else:
            self.advance()

    def _answer(self) -> None:
        ensemble = self._ensemble
        self.pending.finish(ensemble_response(self.pending.request, ensemble.config, ensemble.version, self._tensors))

    def _fail(self, step: EnsembleStep, error: ConchError) -> None:
        """Answer with the step's error, told where it happened, and let the other steps go."""
        message = self._ensemble.located(step, with_origins(self._ensemble.config, step, error))
        self.pending.finish(ensemble_error(message, error))
        self._cancel_steps()

    def _cancel_steps(self) -> None:
        running, self._running = self._running, {}
        for inner in running.values():
            inner.cancel("another step of the ensemble failed, or the request was cancelled")
