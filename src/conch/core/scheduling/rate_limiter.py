"""`--rate-limit=execution_count`: instances execute when they have the resources that their configuration names.

A resource is a number of units, shared by all models of the server, on each device or over all of them. Who has to wait
is served in turn: of two instances that want the same, one of priority 2 is let execute half as often as one of
priority 1 (Triton's rule: https://github.com/triton-inference-server/server, "Rate Limiter"). Whoever is first in turn
keeps what is free of its resources from those behind it, so that many small claims cannot starve a large one. Nobody
saves up turns while it has nothing to do.

A limiter knows no requests. A model asks it before each execution and is woken when asking again is worth it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TypeAlias

from conch.backends.base import Instance
from conch.errors import ConfigError
from conch.options.flag_values import ResourceLimit

# Name and device, which is None for a resource that all devices share.
Resource: TypeAlias = tuple[str, int | None]


class Claim:
    """What one instance needs for each of its executions. `wake` is called when it may get what it waits for."""

    __slots__ = ("asked", "held", "instance", "needs", "order", "priority", "turn", "wake")

    def __init__(
        self,
        needs: Mapping[Resource, int],
        priority: int,
        wake: Callable[[], None],
        instance: Instance | None = None,
    ) -> None:
        self.needs = needs
        self.instance = instance
        self.priority = max(priority, 1)  # 0 is Triton's default and means 1
        self.wake = wake
        self.held = False
        self.turn = 0
        self.order = 0  # among equal turns
        self.asked = False  # whether it has asked since it was woken

    def __repr__(self) -> str:
        return f"<Claim {dict(self.needs)}, priority {self.priority}, turn {self.turn}{', held' if self.held else ''}>"


class RateLimiter:
    """The resources of one server. `limits` are those of the command line; without any, one execution's needs are met.

    Belongs to the event loop's thread.
    """

    def __init__(self, limits: Sequence[ResourceLimit] = ()) -> None:
        self._limits = {(limit.name.lower(), limit.device): limit.count for limit in limits}
        self._claims: list[Claim] = []
        self._used: Counter[Resource] = Counter()
        self._waiting: dict[Claim, None] = {}
        self._now = 0  # the turn of the last that was served
        self._orders = count()

    def __repr__(self) -> str:
        return f"<RateLimiter {dict(self._used)} in use, {len(self._waiting)} waiting>"

    def enter(self, claims: Sequence[Claim]) -> None:
        """Take claims in. Raises ConfigError if one could never be met, or takes a resource for what it is not."""
        for claim in claims:
            for resource, number in claim.needs.items():
                self._check(resource, number, claims)
        self._claims += claims
        self._hand_out()  # there may be more of some resource now

    def leave(self, claims: Iterable[Claim]) -> None:
        """Forget claims; what they hold is free again."""
        for claim in claims:
            self._waiting.pop(claim, None)
            self._release(claim)
            if claim in self._claims:
                self._claims.remove(claim)
        self._hand_out()

    def take(self, claims: Sequence[Claim]) -> Claim | None:
        """Give one of these claims, of instances that could execute the same request, what it needs.

        Returns None if none can have it now; then they wait, and are woken.
        """
        for claim in claims:
            claim.asked = True
            if claim not in self._waiting:
                claim.turn = max(claim.turn, self._now)
                claim.order = next(self._orders)
        ranked = sorted(claims, key=_rank)
        for claim in ranked:
            if self._fits(claim) and not self._is_behind(claim, claims):
                self._waiting.pop(claim, None)
                self._used.update(claim.needs)
                claim.held = True
                self._now = max(self._now, claim.turn)
                claim.turn += claim.priority
                return claim
        self._waiting.update(dict.fromkeys(ranked))
        return None

    def give_back(self, claim: Claim) -> None:
        """Take back what a claim holds, and wake those who wait for it. Does nothing if it holds nothing.

        Whoever has held it is asked with the others: it may have more to execute, and its turn again.
        """
        if claim.held:
            self._release(claim)
            claim.order = next(self._orders)
            self._waiting[claim] = None
            self._hand_out()

    def kept_by(self, claim: Claim, stuck: Callable[[Claim], bool]) -> Claim | None:
        """Return one of the claims that are `stuck` with what this one can never have without them; None if it can."""
        for resource, number in claim.needs.items():
            keepers = [each for each in self._claims if each.held and each.needs.get(resource) and stuck(each)]
            if sum(each.needs[resource] for each in keepers) + number > self._total(resource):
                return keepers[0]
        return None

    def _release(self, claim: Claim) -> None:
        if claim.held:
            claim.held = False
            self._used.subtract(claim.needs)

    def _hand_out(self) -> None:
        """Wake in turn those that can have what they wait for; what those before them lack is kept for them."""
        kept: set[Resource] = set()
        for claim in sorted(self._waiting, key=_rank):
            if claim not in self._waiting:
                continue
            if kept.isdisjoint(claim.needs) and self._fits(claim):
                claim.asked = False
                claim.wake()
                if not claim.asked:  # it has nothing to execute any more
                    self._waiting.pop(claim, None)
            if claim in self._waiting:
                kept |= claim.needs.keys()

    def _fits(self, claim: Claim) -> bool:
        return all(self._used[each] + number <= self._total(each) for each, number in claim.needs.items())

    def _is_behind(self, claim: Claim, own: Sequence[Claim]) -> bool:
        rank = _rank(claim)
        return any(
            _rank(other) < rank and not other.needs.keys().isdisjoint(claim.needs)
            for other in self._waiting
            if other not in own
        )

    def _total(self, resource: Resource) -> int:
        limit = self._limit(resource)
        return limit if limit is not None else max((claim.needs.get(resource, 0) for claim in self._claims), default=0)

    def _limit(self, resource: Resource) -> int | None:
        """Return the limit of the command line: the device's own, else the one for every device.

        Once the command line names any resource, there is nothing of those that it does not name, as in Triton.
        """
        if not self._limits:
            return None
        name, device = resource[0].lower(), resource[1]
        general = self._limits.get((name, None), 0)
        if device is not None:
            return max(self._limits.get((name, device), 0), general)
        # A device has no meaning for what is shared by all of them.
        return max((number for (each, _), number in self._limits.items() if each == name), default=0)

    def _check(self, resource: Resource, number: int, claims: Iterable[Claim]) -> None:
        name, device = resource
        limit = self._limit(resource)
        if limit is not None and limit < number:
            raise ConfigError(
                f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {number}: --rate-limit-resource={name}:{number} would do"
            )
        others = {each for claim in (*self._claims, *claims) for each in claim.needs if each[0] == name}
        if any((other is None) != (device is None) for _, other in others):
            raise ConfigError(
                f'Resource "{name}" is present as both global and device-specific resource in the model configuration. '
                "It must be one of them in all models"
            )


def _rank(claim: Claim) -> tuple[int, int, int]:
    """Return what claims are served by: when the turn would end, as Triton does, so that 1 goes twice before 2 goes."""
    return claim.turn + claim.priority, claim.priority, claim.order


class ModelLimiter:
    """The claims of one model version's instances."""

    def __init__(self, limiter: RateLimiter, instances: Iterable[Instance]) -> None:
        self._limiter = limiter
        self._claims = {instance: _claim(instance, self._wake) for instance in instances}
        self._instances = {claim: instance for instance, claim in self._claims.items()}
        self._dispatch: Callable[[], None] | None = None

    def open(self, dispatch: Callable[[], None]) -> None:
        """Enter the claims. `dispatch` is called when an instance may get what it waits for. Raises ConfigError."""
        self._dispatch = dispatch
        self._limiter.enter(list(self._claims.values()))

    def close(self) -> None:
        """Let go of everything."""
        self._dispatch = None
        self._limiter.leave(self._claims.values())

    def take(self, instances: Iterable[Instance]) -> Instance | None:
        """Return the one of these instances that is to execute now; None if they have to wait."""
        claim = self._limiter.take([self._claims[instance] for instance in instances])
        return None if claim is None else self._instances[claim]

    def give_back(self, instance: Instance) -> None:
        """Note that an instance has ended its execution, if it had one."""
        self._limiter.give_back(self._claims[instance])

    def kept_by(self, instance: Instance, stuck: Callable[[Instance], bool]) -> Instance | None:
        """Return one of the instances, of any model, that are `stuck` with what this one needs; None if there is none.

        It is one without which this instance can never execute.
        """
        claim = self._limiter.kept_by(
            self._claims[instance], lambda other: other.instance is not None and stuck(other.instance)
        )
        return None if claim is None else claim.instance

    def _wake(self) -> None:
        if self._dispatch is not None:
            self._dispatch()


def _claim(instance: Instance, wake: Callable[[], None]) -> Claim:
    plan = instance.plan
    needs: Counter[Resource] = Counter()
    for need in plan.rate.resources:
        needs[need.name, None if need.shared else plan.device_id] += need.count
    return Claim(needs, plan.rate.priority, wake, instance)
