# Compiled by mypyc in wheels.
"""A served model version: the interface of everything that the catalog holds."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic_ns
from typing import Final

from conch.base.errors import ConchError, DeadlineMissed, QueueFull, Unavailable
from conch.domain.degradations import Degradation
from conch.domain.events.rows import Row
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, Respond, Room, Span, Timeline, TokenMeter
from conch.domain.statistics.model_statistics import ModelState, ModelStatistics
from conch.server.backends.base import Instance, Worker
from conch.server.core.pending import Pending
from conch.server.core.response_cache import ModelCache
from conch.server.core.text_encoder import TextEncoder
from conch.server.limits.limiter import ModelMeters
from conch.server.observability.event_log import EventRecorder, ModelEvents
from conch.server.repository.namespaces import ModelId

# Clients count the way of the request and its response, of which the server sees a part.
_WAY_PART: Final = 32
_MAX_WAY_NS: Final = 20_000_000


class ServedModel:
    """A served model version. Life: `start` → `submit`* → `drain` → `stop`.

    No ABC: compiled classes share the cache of `isinstance` of an abstract base, so that a model of one kind would be
    taken for one of another.
    """

    def __init__(self, config: ModelConfig, version: int, labels: Mapping[str, Sequence[str]]) -> None:
        self.config = config
        self.version = version
        self.labels = labels  # output name → lines of its label file
        self.statistics = ModelStatistics(config.name, version, dict(config.metric_tags))
        self.statistics.set_buckets(config.histogram_buckets, first_response=config.decoupled or config.is_ensemble)
        self.statistics.state = self.state
        self.cache: ModelCache | None = None  # set by the builder where the model has one
        self.meters: ModelMeters | None = None  # of its requests per second, where the server has limits
        self.encoder: TextEncoder | None = None  # of texts, set by the builder for models with a tokenizer
        # Set by the builder where the server has an event log.
        self.events = ModelEvents(EventRecorder(), config.name, version)
        self.degraded: list[Degradation] = []  # what its load reported
        self._ready_workers: set[Worker] = set()  # as the event log knows them
        self._in_flight = 0
        self._drained = asyncio.Event()

    @property
    def id(self) -> ModelId:
        """Namespace and name of the model."""
        return ModelId(self.statistics.namespace, self.config.name)

    @property
    def ready(self) -> bool:
        """Whether a request that is sent now would be executed."""
        raise NotImplementedError

    @property
    def takes_sources(self) -> bool:
        """Whether large inputs may stay in clients' shared memory until the request is executed."""
        return False

    @property
    def workers(self) -> Sequence[Worker]:
        """The instances or the engine that execute its requests; none for an ensemble."""
        return ()

    @property
    def input_room(self) -> Room | None:
        """What allocates memory for inputs that the model need not copy; None if it has none."""
        return None

    @property
    def in_flight(self) -> int:
        """How many requests hold the model: those sent to it, and those of ensembles that use it."""
        return self._in_flight

    def state(self) -> ModelState:
        """Return what the model does at this moment, for its metrics."""
        return ModelState(self.ready)

    async def check_ready(self) -> bool:
        """Return `ready`, after asking the model itself where its backend supports that."""
        return self.ready

    def log_workers(self) -> None:
        """Record in the event log which workers have become ready, and which are no longer."""
        for worker in self.workers:
            if worker.ready != (worker in self._ready_workers):
                if worker.ready:
                    self._ready_workers.add(worker)
                else:
                    self._ready_workers.discard(worker)
                self.log_worker("up" if worker.ready else "down", worker, monotonic_ns())

    def log_worker(self, change: str, worker: Worker, time: int) -> None:
        """Record a change of a worker at a time (monotonic ns)."""
        name = worker.plan.name if isinstance(worker, Instance) else "engine"
        events = self.events
        events.recorder.instance(change, time, events.model, events.version, name, worker.pid)

    def unfinished(self) -> Iterable[tuple[str, Row]]:
        """Return the rows of the event log for what has not ended: kind and row."""
        return ()

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request, which then ends exactly once. Raises InvalidRequest, QueueFull, Unavailable."""
        raise NotImplementedError

    def submit_within(self, span: Span | None, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request made on behalf of another, and trace it as a child of its `span`. Raises as `submit`."""
        if span is None:
            return self.submit(request, respond)
        span.child(request, self.version)
        try:
            return self.submit(request, respond)
        except ConchError as error:
            if request.span is not None:
                request.span.settled(request, error)
            raise

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:
        """Return the rejection of any request at `now` (monotonic ns); None while there is room.

        `meter` says whose request it is.
        """
        raise NotImplementedError

    def expected(
        self,
        now: int,  # noqa: ARG002 - for overrides
        batch_size: int = 1,  # noqa: ARG002
        priority: int = 0,  # noqa: ARG002
        meter: TokenMeter | None = None,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return about how many ns a new request would wait and then take, at least; 0 where that is unknown."""
        return 0, 0

    def check_room(self, timeline: Timeline, meter: TokenMeter | None = None) -> None:
        """Raise QueueFull if there is no room for any request, before any work is done for it.

        Raises DeadlineMissed if the deadline cannot be met. A no-op for a model with a cache: hits need no room.
        """
        if self.cache is None:
            self.refuse_when_full(timeline, meter)
            if timeline.deadline:
                self.check_deadline(timeline, meter=meter)

    def check_deadline(
        self, timeline: Timeline, batch_size: int = 1, priority: int = 0, meter: TokenMeter | None = None
    ) -> int:
        """Return when an execution has to begin to meet the deadline of a request, monotonic ns.

        Raises DeadlineMissed if the deadline has passed, or by the estimate will have before the end of the request.
        """
        now = monotonic_ns()
        wait, service = self.expected(now, batch_size, priority, meter)
        missed = missed_deadline(self.config.name, timeline, timeline.deadline, now, wait, service)
        if missed is not None:
            self.refuse_for(missed, timeline)
        return timeline.deadline - way_ns(timeline, timeline.deadline) - service

    def refuse_when_full(self, timeline: Timeline, meter: TokenMeter | None = None) -> None:
        """Raise QueueFull if there is no room for a request that must be executed."""
        self.refuse_for(self.refusal(timeline.received, meter), timeline)

    def refuse_for(self, error: Unavailable | None, timeline: Timeline) -> None:
        """Count and raise a rejection, if there is one."""
        if error is None:
            return
        now = monotonic_ns()
        self.count_failure(now - timeline.received, error)
        self.events.refused(timeline, error, now)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a cycle, which costs garbage collection under overload

    def count_failure(self, ns: int, error: ConchError) -> None:
        """Count a request that has failed after `ns`."""
        self.statistics.count_failure(ns, error.reason)
        if isinstance(error, DeadlineMissed):
            self.statistics.deadline_misses[error.stage] += 1

    async def start(self) -> None:
        """Start the model. Raises ModelLoadError; then nothing is left running."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Release everything; requests that are still unanswered fail."""
        raise NotImplementedError

    async def kill(self) -> None:
        """End child processes now, without waiting for requests."""

    def take_over(self, old: "ServedModel") -> None:
        """Succeed the version that this one replaces, which gets requests only from here."""

    async def drain(self) -> None:
        """Wait until no request holds the model. New requests do not find it any more."""
        while self._in_flight:
            self._drained.clear()
            await self._drained.wait()

    def enter(self) -> None:
        """Keep the model from being stopped until `leave`: for a request of it, or of an ensemble that uses it."""
        self._in_flight += 1

    def leave(self) -> None:
        """Release the model: a request has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._drained.set()


def way_ns(timeline: Timeline, deadline: int) -> int:
    """Return the part of the time until a deadline that is left for the way of the request and its response."""
    return min((deadline - timeline.received) // _WAY_PART, _MAX_WAY_NS)


def missed_deadline(
    model: str, timeline: Timeline, deadline: int, now: int, wait: int, service: int
) -> DeadlineMissed | None:
    """Return the rejection of a request that would wait and then take this long, in ns; None if it meets its deadline.

    Its Retry-After is the time after which the wait will have become short enough, if no further requests come.
    """
    left = deadline - now
    if left <= 0:
        return DeadlineMissed(
            f"the deadline of the request passed {-left / 1e6:.1f} ms before it was queued", "arrival"
        )
    passed_on = left - way_ns(timeline, deadline)
    if wait + service <= passed_on:
        return None
    needed = f"model '{model}' would take about {(wait + service) / 1e6:.1f} ms, and {left / 1e6:.1f} ms remain"
    if service > passed_on:
        return DeadlineMissed(f"{needed}: its execution alone takes {service / 1e6:.1f} ms", "estimate")
    return DeadlineMissed(needed, "estimate", retry_after_s=(wait + service - passed_on) / 1e9)
