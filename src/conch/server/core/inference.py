# Compiled by mypyc in wheels.
"""Inference and model queries: the interface of the core for all frontends."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Final

from conch.base.errors import ConchError, InvalidRequest, NotFound, Unavailable, request_prefix
from conch.domain.request import SEQUENCE_START, Admitted, InferRequest, Respond, Timeline
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.ensembles.nesting import StageRequests, stage_requests
from conch.server.core.served_model import ServedModel
from conch.server.core.shared_memory import copies as region_copies
from conch.server.limits.limiter import Limiter, Meter, ModelMeters

_STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Inference:
    """Admits requests and answers queries about models. All methods belong to the event loop's thread."""

    def __init__(self, catalog: Catalog, *, strict_readiness: bool, started: Callable[[], bool]) -> None:
        self._catalog = catalog
        self._strict_readiness = strict_readiness
        self._stopping = False
        self._started = started  # whether the load at start has ended and no stop has begun
        self.keep: Callable[[InferRequest], None] | None = None  # called with each admitted request for tensors
        self.on_request: Callable[[], None] | None = None  # called with each request of a client that is admitted
        self.limiter: Limiter | None = None  # of requests and tokens per second; None while there are no limits

    def admit(self, model: ServedModel, timeline: Timeline, tenant: str) -> Meter | None:
        """Check the room for a client's request, and count it towards the limits of its model and tenant.

        Returns where its tokens count, None if the server has no limits. Raises QueueFull, DeadlineMissed and
        LimitExceeded, before any work is done for it.
        """
        limiter = self.limiter
        if limiter is None:
            return None
        meters = model.meters
        if meters is None or meters.generation != limiter.generation:
            meters = model.meters = self._meters(limiter, model)
        meter = meters.by_tenant.get(tenant)
        if meter is None:
            meter = limiter.meter(meters, tenant, timeline.received)
        model.check_room(timeline, meter)
        model.refuse_for(meter.admit(timeline.received), timeline)
        return meter

    def admit_call(self, model: ServedModel, timeline: Timeline, tenant: str) -> Meter | None:
        """Count a request that another model makes (BLS) for a tenant's request; see `admit`."""
        limiter = self.limiter
        if limiter is None:
            return None
        meters = model.meters
        if meters is None or meters.generation != limiter.generation:
            meters = model.meters = self._meters(limiter, model)
        meter = meters.calls_by_tenant.get(tenant)
        if meter is None:
            meter = limiter.meter(meters, tenant, timeline.received, nested=True)
        model.refuse_for(meter.admit(timeline.received), timeline)
        return meter

    def stages(self, model: ServedModel) -> dict[ServedModel, StageRequests]:
        """Return the models below an ensemble, with the requests of each that one of the ensemble causes."""
        return stage_requests(model, self._catalog.of_step)

    def measure(self, limiter: Limiter) -> None:
        """Measure every served model version, also those without requests so far."""
        now = monotonic_ns()
        for model in self._catalog:
            if model.meters is None or model.meters.generation != limiter.generation:
                model.meters = self._meters(limiter, model)
                limiter.meter(model.meters, "", now)

    def _meters(self, limiter: Limiter, model: ServedModel) -> ModelMeters:
        stages = {
            (stage.config.name, str(stage.version)): requests.number for stage, requests in self.stages(model).items()
        }
        return limiter.models_of(model.config.name, str(model.version), stages)

    def infer(self, model: ServedModel, request: InferRequest, respond: Respond) -> Admitted:
        """Admit a request; `respond` is called with its responses and, exactly once, with its end.

        `model` is the one that `model` has returned in this turn of the event loop: later it may have been replaced.
        Raises NotFound, InvalidRequest, QueueFull or Unavailable if the request is rejected; then `respond` is not
        called. The returned record's `cancel()` cancels the request.
        """
        if self.on_request is not None:
            self.on_request()
        # Sequences that have begun continue, as in Triton.
        if self._stopping and (not request.correlation_id or request.flags & SEQUENCE_START):
            step = f"in ensemble '{request.model_name}', " if model.config.is_ensemble else ""
            raise Unavailable(step + request_prefix(request.id) + _STOPPING)
        if request.destinations is not None or request.has_sources:
            return region_copies.admit(model, request, respond)
        admitted = model.submit(request, respond)
        if self.keep is not None:
            self.keep(request)
        return admitted

    def stop_accepting(self) -> None:
        """Reject new requests of clients from now on; calls of models to each other continue."""
        self._stopping = True

    def check_accepting(self) -> None:
        """Raise Unavailable if the server is stopping. To be called with each request that is not sent by `infer`."""
        if self.on_request is not None:
            self.on_request()
        if self._stopping:
            raise Unavailable(_STOPPING)

    @property
    def idle(self) -> bool:
        """Whether no model has a request in flight."""
        return not any(served.in_flight for served in self._catalog)

    @property
    def requests_in_flight(self) -> int:
        """How many requests models have admitted and not answered; an ensemble's are those at its steps."""
        users: dict[ServedModel, list[ServedModel]] = defaultdict(list)
        for served in self._catalog:
            for step in served.config.ensemble_steps:
                with suppress(ConchError):  # it has been unloaded
                    users[self._catalog.of_step(served.id.namespace, step)].append(served)
        known: dict[ServedModel, int] = {}
        return sum(
            max(_own_requests(served, users, known), 0) for served in self._catalog if not served.config.is_ensemble
        )

    def model(self, name: str, version: int | None) -> ServedModel:
        """Return a served version, the newest if `version` is None. Raises NotFound, Unavailable, InvalidRequest."""
        return self._catalog.find(name, version)

    def unserved(self, name: str) -> str:
        """Return why a model is not served: it is loading, or its load has failed; "" if the name is unknown."""
        return self._catalog.unserved(name)

    def loading(self) -> list[str] | None:
        """Return the names of the models that are being loaded, as far as they are known; None if nothing is."""
        loads = self._catalog.loads
        names = sorted({model.name for model in loads.models()})
        return names if names or loads.reading else None

    def models(self) -> Iterator[ServedModel]:
        """Return every served version of every model."""
        return iter(self._catalog)

    def versions(self, name: str) -> list[int]:
        """Return the served versions of a model in ascending order. Raises NotFound, InvalidRequest."""
        return self._catalog.versions(name)

    def live(self) -> bool:
        """Whether the server has started: False if it could not read its model repository, as in Triton."""
        return not self._catalog.start_failed

    def ready(self) -> bool:
        """Whether the server takes requests: under strict readiness, only if every requested model is ready."""
        if not self._started() or self._catalog.start_failed:
            return False
        if not self._strict_readiness:
            return True
        return not self._catalog.any_failed and all(map(_counts_as_ready, self._catalog))

    async def model_ready(self, name: str, version: int | None, namespace: str = "") -> bool:
        """Whether one model is ready; asks the model itself, too. An unknown or ambiguous one is not ready.

        A model of the `namespace` has precedence over others.
        """
        try:
            served = self._catalog.find_from(namespace, name, version)
        except (NotFound, Unavailable, InvalidRequest):
            return False
        return await served.check_ready()

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        """Return the counters of all models, of one, or of one version. Raises InvalidRequest for unknown ones."""
        return [served.statistics for served in self._catalog.selected(name, version)]


def _counts_as_ready(served: ServedModel) -> bool:
    """Whether a model leaves the server ready.

    An ensemble without a served step does: that model was unloaded on request, or counts itself.
    """
    return served.ready or (isinstance(served, EnsembleModel) and served.lacks_step)


def _own_requests(
    served: ServedModel, users: Mapping[ServedModel, Sequence[ServedModel]], known: dict[ServedModel, int]
) -> int:
    """Return how many requests a model has admitted itself: a request of an ensemble holds the models of all steps."""
    if served not in known:
        held = sum(_own_requests(ensemble, users, known) for ensemble in users.get(served, ()))
        known[served] = served.in_flight - held
    return known[served]
