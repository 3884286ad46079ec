# Compiled by mypyc in wheels.
"""A model version that is a graph of other models (Triton's ensemble scheduler).

Each step starts as soon as all its input tensors exist, so independent steps run concurrently. Tensors pass from step
to step without a copy, the network or a task. The models of the steps schedule their own requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from conch.base.errors import ConchError, InvalidRequest, NotFound, QueueFull, Unavailable
from conch.domain.events.rows import Row
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.domain.request import InferRequest, InferResponse, Respond, TokenMeter
from conch.domain.scheduling.flow import Flow, StepSlots, needed_steps, ordered_sources
from conch.server.core.ensembles.ensemble_run import EnsembleRun
from conch.server.core.ensembles.step import StepTimes, located
from conch.server.core.pending import Pending
from conch.server.core.served_model import ServedModel
from conch.server.core.validation import RequestValidator

# Returns the served model of a step, from the catalog. Raises NotFound.
FindModel = Callable[[EnsembleStep], ServedModel]


class EnsembleModel(ServedModel):
    """A served ensemble."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        find: FindModel,
        flow: Flow | None = None,
    ) -> None:
        """Create the model. `flow` says how responses of decoupled steps multiply; it may be omitted without such."""
        super().__init__(config, version, labels)
        self.misfit = ""  # why the steps no longer fit together, after a reload of one of their models
        self._find = find
        self.flow = flow or Flow((0,) * len(config.ensemble_steps), (False,) * len(config.ensemble_steps))
        limit = config.max_inflight_requests
        self._live: set[Pending] = set()
        self._slots = [StepSlots(limit) for _ in config.ensemble_steps] if limit else []
        self._is_stream = bool(limit or self.flow.depth)
        self._needed = needed_steps(config)
        self._all_steps = frozenset(range(len(config.ensemble_steps)))
        # The steps that every request needs, whichever outputs it requests.
        self._always_needed = self._all_steps.intersection(*self._needed.values())
        self._sources = ordered_sources(config)
        self._validator = RequestValidator(config)

    @property
    def ready(self) -> bool:
        """Whether the model of every step is ready and fits."""
        try:
            return not self.misfit and all(model.ready for model in self._models())
        except (NotFound, Unavailable):
            return False

    @property
    def lacks_step(self) -> bool:
        """Whether the model of a step is not served."""
        try:
            self._models()
        except (NotFound, Unavailable):
            return True
        return False

    def expected(
        self, now: int, batch_size: int = 1, priority: int = 0, meter: TokenMeter | None = None
    ) -> tuple[int, int]:
        """Return wait and service of the path of steps that takes longest, of those that every request needs."""
        models = self._models()
        longest = 0, 0
        ends: dict[int, tuple[int, int]] = {}
        for number, sources in self._sources.items():
            before = max([ends[source] for source in sources], key=sum, default=(0, 0))
            if number in self._always_needed:
                wait, service = models[number].expected(now, batch_size, priority, meter)
                before = before[0] + wait, before[1] + service
            ends[number] = before
            longest = max(longest, before, key=sum)
        return longest

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:
        """Return the rejection of the first step without room, so that no work is done for a later one to reject."""
        return self._refusal_by(self._models(), self._always_needed, now, meter)

    def _refusal_by(
        self, models: Sequence[ServedModel], needed: Set[int], now: int, meter: TokenMeter | None
    ) -> QueueFull | None:
        for number, model in enumerate(models):
            error = model.refusal(now, meter) if number in needed else None
            if error is not None:
                step = self.config.ensemble_steps[number]
                return QueueFull(located(self.config, step, error.message), retry_after_s=error.retry_after_s)
        return None

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request and start its first steps.

        The request holds the models that its steps have now until it ends, and is exempt from the bounds of their
        queues. Raises InvalidRequest, NotFound, QueueFull, Unavailable.
        """
        if self.cache is not None:
            lookup = self.cache.look_up(request, respond, None, self._admit)
            if isinstance(lookup, Pending):
                return lookup
            respond = lookup
        return self._admit(request, respond)

    def _admit(self, request: InferRequest, respond: Respond) -> Pending:
        self._validator.check(request)
        if self.misfit:
            raise Unavailable(self.misfit)
        needed = self._all_steps
        if request.outputs:
            needed = frozenset[int]().union(*[self._needed[name] for name in request.outputs])
        models = self._models()
        if not request.admitted:
            refusal = self._refusal_by(models, needed, request.timeline.received, request.meter)
            self.refuse_for(None if refusal is None else refusal.of_request(request.id), request.timeline)
            if request.timeline.deadline:
                self.check_deadline(request.timeline, request.batch_size, request.priority, request.meter)
        self.enter()
        for model in models:
            model.enter()
        if self.statistics.declared is not None:
            self.statistics.declared.begin(request)
        if self._is_stream:
            # Writing the first response may overwrite inputs that later steps still read.
            request.fetch_inputs()
        flow = self.flow if needed == self._all_steps else self.flow.only(needed)
        run = EnsembleRun(
            self.config, self.version, request, respond, models, self._count, flow, self._slots, self.events
        )
        self._live.add(run.pending)
        run.advance()
        return run.pending

    def unfinished(self) -> Iterable[tuple[str, Row]]:
        return [("requests", self.events.unfinished(pending.request)) for pending in self._live]

    def _models(self) -> list[ServedModel]:
        """Return the served model of each step. Raises NotFound."""
        models = []
        for step in self.config.ensemble_steps:
            try:
                models.append(self._find(step))
            except (NotFound, InvalidRequest) as error:
                raise NotFound(located(self.config, step, error.message)) from error
        return models

    def _count(self, pending: Pending, times: StepTimes, answer: InferResponse | ConchError | None) -> None:
        """Count a request that has ended: its compute times are the sums over its steps."""
        self._live.discard(pending)
        self.leave()
        if self.statistics.declared is not None:
            self.statistics.declared.end(pending.request, answer, pending.failure, pending.first_response)
        timeline = pending.request.timeline
        total = timeline.done - timeline.received
        if isinstance(answer, ConchError):
            self.count_failure(total, answer)
            return
        if timeline.deadline and timeline.done > timeline.deadline:
            self.statistics.deadline_misses["late"] += 1
        size = pending.request.batch_size
        self.statistics.count_success(
            size,
            total=total,
            queue=times.queue,
            compute_input=times.input,
            compute_infer=times.infer,
            compute_output=times.output,
            span=pending.request.span,
        )
        if self.statistics.first_response is not None:
            self.statistics.first_response.add((pending.first_response or timeline.done) - timeline.received)
        started = timeline.started
        input_done, infer_done = started + times.input, started + times.input + times.infer
        self.statistics.count_execution(size, started, input_done, infer_done, infer_done + times.output)

    async def start(self) -> None:
        """Do nothing: the models of the steps are loaded before their ensemble."""

    async def stop(self) -> None:
        """Do nothing: an ensemble holds no resources."""
