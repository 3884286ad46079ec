"""The rate limiter's claims of one model version's instances."""

from collections import Counter
from collections.abc import Callable, Iterable

from conch.domain.scheduling.rate_limiter import Claim, RateLimiter, Resource
from conch.server.backends.base import Instance


class ModelLimiter:
    """The claims of one model version's instances."""

    def __init__(self, limiter: RateLimiter, instances: Iterable[Instance]) -> None:
        self._limiter = limiter
        self._claims = {instance: _claim(instance, self._wake) for instance in instances}
        self._instances = {claim: instance for instance, claim in self._claims.items()}
        self._dispatch: Callable[[], None] | None = None

    def open(self, dispatch: Callable[[], None]) -> None:
        """Register the claims. `dispatch` is called when one that waits may be granted. Raises ConfigError."""
        self._dispatch = dispatch
        self._limiter.register(list(self._claims.values()))

    def close(self) -> None:
        """Remove the claims and release what they hold."""
        self._dispatch = None
        self._limiter.remove(self._claims.values())

    def acquire(self, instances: Iterable[Instance]) -> Instance | None:
        """Return which of these instances is to execute now; None if they have to wait."""
        claim = self._limiter.acquire([self._claims[instance] for instance in instances])
        return None if claim is None else self._instances[claim]

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
            self._dispatch()


def _claim(instance: Instance, wake: Callable[[], None]) -> Claim:
    plan = instance.plan
    needs: Counter[Resource] = Counter()
    for need in plan.rate.resources:
        needs[need.name, None if need.shared else plan.device_id] += need.count
    return Claim(needs, plan.rate.priority, wake, instance)
