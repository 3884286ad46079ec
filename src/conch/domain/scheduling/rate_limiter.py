"""`--rate-limit=execution_count`: an instance executes when it holds the resources that its configuration names.

A resource is a number of units, shared by all models of the server, on each device or over all of them. Claims that
wait are served in turn: of two instances that need the same resource, one of priority 2 executes half as often as one
of priority 1 (Triton's rule: https://github.com/triton-inference-server/server, "Rate Limiter"). The first in turn
reserves the free units of its resources, so that many small claims cannot starve a large one. An idle claim does not
accumulate turns.

A limiter knows no requests. A model calls `acquire` before each execution; `wake` is called when a retry may succeed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TypeAlias

from conch.base.command_line.flag_values import ResourceLimit
from conch.base.errors import ConfigError

# Name and device, which is None for a resource that all devices share.
Resource: TypeAlias = tuple[str, int | None]


class Claim:
    """The resources of each execution of an instance. `wake` is called when a claim that waits may be granted."""

    __slots__ = ("held", "holder", "needs", "order", "priority", "retried", "turn", "wake")

    def __init__(
        self,
        needs: Mapping[Resource, int],
        priority: int,
        wake: Callable[[], None],
        holder: object = None,
    ) -> None:
        self.needs = needs
        self.holder = holder  # the instance
        self.priority = max(priority, 1)  # 0 is Triton's default and means 1
        self.wake = wake
        self.held = False
        self.turn = 0
        self.order = 0  # among equal turns
        self.retried = False  # whether it has called `acquire` since it was woken

    def __repr__(self) -> str:
        return f"<Claim {dict(self.needs)}, priority {self.priority}, turn {self.turn}{', held' if self.held else ''}>"


class RateLimiter:
    """The resources of one server. `limits` come from the command line; without any, each execution fits alone.

    Belongs to the event loop's thread.
    """

    def __init__(self, limits: Sequence[ResourceLimit] = ()) -> None:
        self._limits = {(limit.name.lower(), limit.device): limit.count for limit in limits}
        self._claims: list[Claim] = []
        self._used: Counter[Resource] = Counter()
        self._waiting: dict[Claim, None] = {}
        self._now = 0  # the turn of the claim granted last
        self._orders = count()

    def __repr__(self) -> str:
        return f"<RateLimiter {dict(self._used)} in use, {len(self._waiting)} waiting>"

    def register(self, claims: Sequence[Claim]) -> None:
        """Register claims. Raises ConfigError if one can never be granted, or confuses global and device resources."""
        for claim in claims:
            for resource, number in claim.needs.items():
                self._check(resource, number, claims)
        self._claims += claims
        self._wake_waiting()  # a larger claim may have raised the total of a resource

    def remove(self, claims: Iterable[Claim]) -> None:
        """Remove claims and release what they hold."""
        for claim in claims:
            self._waiting.pop(claim, None)
            self._release(claim)
            if claim in self._claims:
                self._claims.remove(claim)
        self._wake_waiting()

    def acquire(self, claims: Sequence[Claim]) -> Claim | None:
        """Grant and return one of these claims, of instances that could execute the same request.

        Returns None if none can be granted now; then they wait, and are woken.
        """
        for claim in claims:
            claim.retried = True
            if claim not in self._waiting:
                claim.turn = max(claim.turn, self._now)
                claim.order = next(self._orders)
        ranked = sorted(claims, key=_rank)
        for claim in ranked:
            if self._fits(claim) and not self._must_wait_behind(claim, claims):
                self._waiting.pop(claim, None)
                self._used.update(claim.needs)
                claim.held = True
                self._now = max(self._now, claim.turn)
                claim.turn += claim.priority
                return claim
        self._waiting.update(dict.fromkeys(ranked))
        return None

    def release(self, claim: Claim) -> None:
        """Release what a claim holds, and wake the claims that wait for it. A no-op if it holds nothing.

        The claim itself is woken with the others: it may have more to execute, and be first in turn.
        """
        if claim.held:
            self._release(claim)
            claim.order = next(self._orders)
            self._waiting[claim] = None
            self._wake_waiting()

    def blocker(self, claim: Claim, stuck: Callable[[Claim], bool]) -> Claim | None:
        """Return a claim that is `stuck` and holds what this one cannot execute without; None if there is none."""
        for resource, number in claim.needs.items():
            holders = [
                holder for holder in self._claims if holder.held and holder.needs.get(resource) and stuck(holder)
            ]
            if sum(holder.needs[resource] for holder in holders) + number > self._total(resource):
                return holders[0]
        return None

    def _release(self, claim: Claim) -> None:
        if claim.held:
            claim.held = False
            self._used.subtract(claim.needs)

    def _wake_waiting(self) -> None:
        """Wake in turn the claims that can be granted; what earlier ones lack stays reserved for them."""
        reserved: set[Resource] = set()
        for claim in sorted(self._waiting, key=_rank):
            if claim not in self._waiting:
                continue
            if reserved.isdisjoint(claim.needs) and self._fits(claim):
                claim.retried = False
                claim.wake()
                if not claim.retried:  # it has nothing left to execute
                    self._waiting.pop(claim, None)
            if claim in self._waiting:
                reserved |= claim.needs.keys()

    def _fits(self, claim: Claim) -> bool:
        return all(self._used[resource] + number <= self._total(resource) for resource, number in claim.needs.items())

    def _must_wait_behind(self, claim: Claim, own: Sequence[Claim]) -> bool:
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
        """Return the limit of the command line: the device's, else the one for every device; None without limits.

        Once the command line names any resource, the limit of the others is 0, as in Triton.
        """
        if not self._limits:
            return None
        name, device = resource[0].lower(), resource[1]
        general = self._limits.get((name, None), 0)
        if device is not None:
            return max(self._limits.get((name, device), 0), general)
        # A global resource has no device.
        return max((number for (limited, _), number in self._limits.items() if limited == name), default=0)

    def _check(self, resource: Resource, number: int, claims: Iterable[Claim]) -> None:
        name, device = resource
        limit = self._limit(resource)
        if limit is not None and limit < number:
            raise ConfigError(
                f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {number}: set --rate-limit-resource={name}:{number}"
            )
        others = {needed for claim in (*self._claims, *claims) for needed in claim.needs if needed[0] == name}
        if any((other is None) != (device is None) for _, other in others):
            raise ConfigError(
                f'Resource "{name}" is present as both global and device-specific resource in the model configuration. '
                "It must be one of them in all models"
            )


def _rank(claim: Claim) -> tuple[int, int, int]:
    """Return the sort key of a claim: the end of its turn, as in Triton: priority 1 goes twice before 2 goes."""
    return claim.turn + claim.priority, claim.priority, claim.order
