"""A model that is a graph of other models.

Each step starts as soon as all tensors that it takes exist, so independent steps run side by side. A tensor is handed
from stage to stage as it is: no copy, no network, no task. Scheduling is the inner models' business.
"""

from collections.abc import Callable, Mapping, Sequence, Set

from conch.core.ensembles.flow import Flow, needed_steps
from conch.core.ensembles.run import EnsembleRun, SingleRun
from conch.core.ensembles.slots import StepSlots
from conch.core.ensembles.step import StepTimes, located
from conch.core.ensembles.stream import StreamRun
from conch.core.pending import Pending
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
                return QueueFull(located(self.config, step, error.message), retry_after_s=error.retry_after_s)
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
        run: EnsembleRun
        if self._is_stream:
            # The first response may be written over what later steps are still to take.
            request.fetch_inputs()
            flow = self.flow if needed == self._all_steps else self.flow.only(needed)
            run = StreamRun(self.config, self.version, request, respond, models, self._count, flow, self._slots)
        else:
            run = SingleRun(self.config, self.version, request, respond, models, self._count, needed)
        run.advance()
        return run.pending

    def _models(self) -> list[ServedModel]:
        """Return the model of each step as it is served now. Raises NotFound."""
        models = []
        for step in self.config.ensemble_steps:
            try:
                models.append(self._find(step))
            except (NotFound, InvalidRequest) as error:
                raise NotFound(located(self.config, step, error.message)) from error
        return models

    def _count(self, pending: Pending, times: StepTimes, answer: InferResponse | ConchError | None) -> None:
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
