"""What the catalog holds: one version of one model that can be asked."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from time import monotonic_ns

from conch.core.cached_answers import ModelCache
from conch.core.pending import Pending
from conch.errors import ConchError, QueueFull
from conch.model_config import ModelConfig
from conch.observability.metrics.statistics import FIRST_RESPONSE_BOUNDS_MS, Histogram, ModelStatistics
from conch.repository.namespaces import ModelId
from conch.request import InferRequest, Respond, Span, Timeline


class ServedModel(ABC):
    """A served model version. Life: `start` → `submit`* → `drain` → `stop`."""

    def __init__(self, config: ModelConfig, version: int, labels: Mapping[str, Sequence[str]]) -> None:
        self.config = config
        self.version = version
        self.labels = labels  # output name → lines of its label file
        self.statistics = ModelStatistics(config.name, version, dict(config.metric_tags))
        if config.decoupled or config.is_ensemble:
            self.statistics.first_response = Histogram(FIRST_RESPONSE_BOUNDS_MS)
        self.cache: ModelCache | None = None  # set by the builder where the model has one
        self._in_flight = 0
        self._drained = asyncio.Event()

    @property
    def id(self) -> ModelId:
        """The model that this is a version of."""
        return ModelId(self.statistics.namespace, self.config.name)

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a request sent now would be executed."""

    @property
    def takes_sources(self) -> bool:
        """Whether large inputs may be left in clients' shared memory until it executes a request."""
        return False

    @property
    def in_flight(self) -> int:
        """How many requests hold it: its own, and those of ensembles that use it."""
        return self._in_flight

    async def check_ready(self) -> bool:
        """Ask the model itself as well, where it has an opinion."""
        return self.ready

    @abstractmethod
    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request or raise: InvalidRequest, QueueFull, Unavailable. Admitted, it is answered exactly once."""

    def submit_within(self, span: Span | None, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request that is made for another, whose `span` it is to be noted in. Raises what `submit` raises."""
        if span is None:
            return self.submit(request, respond)
        span.child(request, self.version)
        try:
            return self.submit(request, respond)
        except ConchError as error:
            if request.span is not None:
                request.span.settled(request, error)
            raise

    @abstractmethod
    def refusal(self, now: int) -> QueueFull | None:
        """Return the refusal that any request would get at `now` (monotonic ns); None while there is room."""

    def check_room(self, timeline: Timeline) -> None:
        """Raise QueueFull if there is no room for any request: before any work is done for it.

        A model with a cache is not asked: what it has answered before needs no room.
        """
        if self.cache is None:
            self.refuse_when_full(timeline)

    def refuse_when_full(self, timeline: Timeline) -> None:
        """Raise QueueFull if there is no room for any request that must be executed."""
        self.refuse_for(self.refusal(timeline.received), timeline)

    def refuse_for(self, error: QueueFull | None, timeline: Timeline) -> None:
        """Count and raise a refusal, if there is one."""
        if error is None:
            return
        self.statistics.count_failure(monotonic_ns() - timeline.received, error.reason)
        try:
            raise error
        finally:
            del error  # it knows this frame by its traceback: under overload, the collector would be kept busy

    @abstractmethod
    async def start(self) -> None:
        """Bring the model up. Raises ModelLoadError; then nothing is left running."""

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; what is still unanswered is answered with an error."""

    async def kill(self) -> None:  # noqa: B027 - an ensemble has nothing of its own
        """Release at once what would outlive this process; the time for `stop` is over."""

    def take_over(self, old: "ServedModel") -> None:  # noqa: B027 - only sequences go on across a replacement
        """Know what this version replaces. It takes no new requests but from here."""

    async def drain(self) -> None:
        """Wait until nobody holds it: no request of its own, no ensemble's. New ones do not find it any more."""
        while self._in_flight:
            self._drained.clear()
            await self._drained.wait()

    def enter(self) -> None:
        """Keep it from being stopped until `leave`: a request begins, its own or one of an ensemble that uses it."""
        self._in_flight += 1

    def leave(self) -> None:
        """Note that a request has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._drained.set()
