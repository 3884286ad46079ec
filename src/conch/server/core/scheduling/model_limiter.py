"""The rate limiter's claims of one model version's instances."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns

from conch.domain.events.rows import Row
from conch.domain.scheduling.rate_limiter import Claim, RateLimiter, Resource
from conch.server.backends.base import Instance
from conch.server.observability.event_log import ModelEvents


class ModelLimiter:
    """The claims of one model version's instances. The event log has the times in which one of them had to wait."""

    def __init__(self, limiter: RateLimiter, instances: Iterable[Instance]) -> None:
        self._limiter = limiter
        self._claims = {instance: _claim(instance, self._wake) for instance in instances}
        self._instances = {claim: instance for instance, claim in self._claims.items()}
        self._dispatch: Callable[[], None] | None = None
        self._events: ModelEvents | None = None
        # Instances that wait → since when (monotonic ns), and the model that has what they need.
        self._waits: dict[Instance, tuple[int, str]] = {}

    def open(self, dispatch: Callable[[], None], events: ModelEvents) -> None:
        """Register the claims. `dispatch` is called when one that waits may be granted. Raises ConfigError."""
        self._dispatch, self._events = dispatch, events
        self._limiter.register(list(self._claims.values()))

    def close(self) -> None:
        """Remove the claims and release what they hold."""
        self._dispatch = None
        self._waits.clear()
        self._limiter.remove(self._claims.values())

    def acquire(self, instances: Sequence[Instance]) -> Instance | None:
        """Return which of these instances is to execute now; None if they have to wait."""
        claim = self._limiter.acquire([self._claims[instance] for instance in instances])
        if claim is not None:
            if self._waits:
                self._end_waits(instances)
            return self._instances[claim]
        if instances[0] not in self._waits:
            holder = self.blocker(instances[0], lambda _: True)
            self._waits[instances[0]] = monotonic_ns(), "" if holder is None else holder.plan.source.config.name
        return None

    def unfinished(self) -> Iterable[tuple[str, Row]]:
        """Return the rows of the event log for waits that have not ended: kind and row."""
        assert self._events is not None
        return [
            ("holds", self._events.held(since, 0, instance.plan.name, holder))
            for instance, (since, holder) in self._waits.items()
        ]

    def release(self, instance: Instance) -> None:
        """Release what an instance holds; a no-op if it holds nothing."""
        self._limiter.release(self._claims[instance])

    def blocker(self, instance: Instance, stuck: Callable[[Instance], bool]) -> Instance | None:
        """Return an instance, of any model, that is `stuck` and holds what this one cannot execute without.

        None if there is none.
        """
        claim = self._limiter.blocker(
            self._claims[instance], lambda other: isinstance(other.holder, Instance) and stuck(other.holder)
        )
        return claim.holder if claim is not None and isinstance(claim.holder, Instance) else None

    def _wake(self) -> None:
        if self._dispatch is not None:
            self._end_waits([*self._waits])  # one that continues begins again
            self._dispatch()

    def _end_waits(self, instances: Iterable[Instance]) -> None:
        assert self._events is not None
        now = monotonic_ns()
        for instance in instances:
            since, holder = self._waits.pop(instance, (0, ""))
            if since:
                self._events.recorder.add("holds", self._events.held(since, now, instance.plan.name, holder))


def _claim(instance: Instance, wake: Callable[[], None]) -> Claim:
    plan = instance.plan
    needs: Counter[Resource] = Counter()
    for need in plan.rate.resources:
        # The last count of a resource applies, as in Triton.
        needs[need.name, None if need.shared else plan.device_id] = need.count
    return Claim(needs, plan.rate.priority, wake, instance)
