# Compiled by mypyc in wheels.
"""The queue of a model: priority levels, bounds and timeouts (Triton's queue policies).

Only the queue rejects requests for lack of room. It has no clock: the owner passes in the time, and `next_expiry`
returns when to call `expire`. `ServiceRate` measures how fast it is served, for the Retry-After of rejected requests.
"""

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from math import inf
from typing import Final, Generic, TypeVar

from conch.base.errors import QueueFull, request_prefix
from conch.domain.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from conch.domain.scheduling.fair_order import FairOrder
from conch.domain.scheduling.waiting import State, Waiting

# The least that one measurement covers.
_MIN_WINDOW_NS: Final = 1_000_000_000
_MIN_WINDOW_REQUESTS: Final = 10
# Without rejections for this long, the measurement starts again: what happened between two overloads says nothing
# about either.
_MAX_GAP_NS: Final = 10_000_000_000

# The queue does not know the ids of requests: `QueueFull.of_request` adds them.
QUEUE_IS_FULL: Final = request_prefix("") + "Exceeds maximum queue size"

W = TypeVar("W", bound=Waiting)

_UNBOUNDED: Final = QueuePolicy()
# Empty levels that are kept for the next request.
_MAX_EMPTY_LEVELS: Final = 64


class ServiceRate:
    """Counts requests that leave a queue. Measures only while requests are rejected; otherwise it costs an addition."""

    __slots__ = ("_last_use", "_per_ns", "_since", "_taken_before", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._taken_before = 0
        self._since = 0
        self._last_use = -_MAX_GAP_NS
        self._per_ns = 0.0

    def __repr__(self) -> str:
        return f"<ServiceRate {self._per_ns * 1e9:.1f} a second>"

    def seconds_for(self, number: int, now: int) -> float | None:
        """Return the time in seconds to serve `number` requests at the recent rate; None if that is not known yet.

        `now` is monotonic ns.
        """
        if now - self._last_use >= _MAX_GAP_NS:
            self._taken_before, self._since, self._per_ns = self.taken, now, 0.0
        self._last_use = now
        taken, elapsed = self.taken - self._taken_before, now - self._since
        per_ns = self._per_ns
        if elapsed >= _MIN_WINDOW_NS and taken >= _MIN_WINDOW_REQUESTS:
            per_ns = self._per_ns = taken / elapsed
            self._taken_before, self._since = self.taken, now
        elif not per_ns and elapsed:
            per_ns = taken / elapsed
        return number / per_ns / 1e9 if per_ns else None


class _Level(Generic[W]):
    """The requests of one priority level, in ordered dictionaries: requests leave from the middle in constant time."""

    __slots__ = ("ahead", "bound", "delayed", "fair", "inferences", "number", "policy", "tenant", "waiting")

    def __init__(self, number: int, policy: QueuePolicy, bound: float) -> None:
        self.number = number
        self.policy = policy
        self.bound = bound
        self.waiting: OrderedDict[W, None] = OrderedDict()  # of one tenant, in the order of their arrival
        self.tenant = ""
        self.fair: FairOrder[W] | None = None  # instead, while requests of several tenants wait
        self.delayed: OrderedDict[W, None] = OrderedDict()
        self.inferences = 0  # of all that can be popped
        self.ahead = 0  # requests sent ahead to an instance, whose execution has not begun

    def __lt__(self, other: "_Level[W]") -> bool:
        return self.number < other.number

    def __iter__(self) -> Iterator[W]:
        return chain(self.waiting if self.fair is None else self.fair, self.delayed)

    @property
    def size(self) -> int:
        return (len(self.waiting) if self.fair is None else len(self.fair)) + len(self.delayed) + self.ahead

    def add(self, pending: W, *, first: bool = False) -> None:
        """Add a request, last or first of its tenant."""
        self.inferences += pending.batch_size
        if self.fair is None:
            if not self.waiting or pending.tenant == self.tenant:
                self.tenant = pending.tenant
                self.waiting[pending] = None
                if first:
                    self.waiting.move_to_end(pending, last=False)
                return
            self._share()
        fair = self.fair
        assert fair is not None
        if first:
            fair.restore(pending)
        else:
            fair.add(pending)

    def take(self, number: int) -> list[W]:
        """Remove and return up to `number` requests in the order of service."""
        taken: list[W] = []
        if self.fair is not None:
            taken = self.fair.take(number)
            if not self.fair:
                self.fair = None
        while self.waiting and len(taken) < number:
            taken.append(self.waiting.popitem(last=False)[0])
        while self.delayed and len(taken) < number:
            taken.append(self.delayed.popitem(last=False)[0])
        for pending in taken:
            self.inferences -= pending.batch_size
        return taken

    def remove(self, pending: W) -> bool:
        """Remove a request; return whether it was here."""
        if pending in self.waiting:
            del self.waiting[pending]
        elif pending in self.delayed:
            del self.delayed[pending]
        elif self.fair is None or not self.fair.remove(pending):
            return False
        elif not self.fair:
            self.fair = None
        self.inferences -= pending.batch_size
        return True

    def delay(self, pending: W) -> None:
        """Serve a request after all others of the level."""
        if pending not in self.delayed and self.remove(pending):
            self.delayed[pending] = None
            self.inferences += pending.batch_size

    def before(self, tenant: str, weight: int) -> int:
        """Return how many inferences are served before a new request of a tenant."""
        if self.fair is not None:
            return self.fair.before(tenant, weight)
        return self.inferences if not self.waiting or tenant == self.tenant else 0

    def evictable(self, tenant: str, weight: int, size: int = 1) -> W | None:
        """Return the request that makes room for one of a tenant with less than its share; None if there is none."""
        if self.fair is None:
            if not self.waiting or tenant == self.tenant:
                return None
            self._share()
        return self.fair.evictable(tenant, weight, size) if self.fair is not None else None

    def oldest(self) -> int:
        """Return when the first of the requests was queued, monotonic ns; 0 if there is none."""
        first = [next(iter(queue)).queued for queue in (self.waiting, self.delayed) if queue]
        if self.fair is not None:
            first.append(min([pending.queued for pending in self.fair.heads()]))
        return min(first, default=0)

    def _share(self) -> None:
        """Serve the tenants by their shares from now on."""
        fair = self.fair = FairOrder()
        for pending in self.waiting:
            fair.add(pending)
        self.waiting.clear()


class PolicyQueue(Generic[W]):
    """First in, first out within a priority level; lower level numbers first; delayed requests last of their level.

    Requests of several tenants in one level are served by the tenants' weights.

    Without dynamic batching there is one level and no policy, as in Triton's default scheduler. `default_size` bounds
    each level whose policy does not; 0 is unbounded.
    """

    def __init__(self, batching: DynamicBatching | None, default_size: int = 0) -> None:
        self._levels = batching.priority_levels if batching else 0
        self._default_level = batching.default_priority_level if batching and self._levels else 0
        self._default_policy = batching.default_queue_policy if batching else _UNBOUNDED
        self._policies = dict(batching.priority_queue_policies) if batching and self._levels else {}
        self._default_size = default_size
        # A configuration may have 2^64 levels; only those in use take memory. By number, the order of service.
        self._in_use: list[_Level[W]] = []
        self._by_number: dict[int, _Level[W]] = {}
        # The bounds if all levels were in use.
        bounds = [self._bound(policy) for policy in self._policies.values()]
        others = max(self._levels, 1) - len(bounds)
        others_bound = self._bound(self._default_policy)
        self._min_bound = min([*bounds, others_bound] if others else bounds)
        self._room = sum(bounds) + (others * others_bound if others else 0)
        self._expiries: list[tuple[int, int, W]] = []
        self._order = count()
        self._service_rate = ServiceRate()
        self._size = 0
        self._ahead = 0

    def __len__(self) -> int:
        """Return how many can be popped: those sent ahead count against the bounds only."""
        return self._size

    def __iter__(self) -> Iterator[W]:
        """Iterate in the order of service."""
        return chain.from_iterable(self._in_use)

    def __repr__(self) -> str:
        return f"<PolicyQueue {self._size} waiting>"

    def _bound(self, policy: QueuePolicy) -> float:
        return policy.max_queue_size or self._default_size or inf

    def _level(self, number: int) -> _Level[W]:
        """Return a level, and keep it in use from now on."""
        level = self._by_number.get(number)
        if level is None:
            if len(self._in_use) > 2 * self._size + _MAX_EMPTY_LEVELS:
                self._in_use = [level for level in self._in_use if level.size]
                self._by_number = {level.number: level for level in self._in_use}
            policy = self._policies.get(number, self._default_policy)
            level = self._by_number[number] = _Level(number, policy, self._bound(policy))
            insort(self._in_use, level)
        return level

    def push(self, pending: W, now: int, *, priority: int = 0, timeout_us: int = 0, admitted: bool = False) -> W | None:
        """Admit a request, which may wait for `timeout_us` if its policy permits; 0 for none.

        Return the request that has to end for it: one of the tenant with most, if the level is at its bound and the
        request's tenant has less than its share. Raises QueueFull if there is none, unless it was `admitted` before.
        """
        evicted: W | None = None
        number = priority
        if not 1 <= number <= self._levels:
            number = self._default_level
        level = self._level(number)
        if self._size + self._ahead >= self._min_bound and level.size >= level.bound and not admitted:
            evicted = level.evictable(pending.tenant, pending.weight, pending.batch_size)
            if evicted is None:
                raise self.rejection(now)
        timeout_us = _timeout_us(level.policy, timeout_us)
        if timeout_us:
            pending.expires = now + timeout_us * 1000
            self._push_expiry(pending, pending.expires)
        if pending.starts_by:
            self._push_expiry(pending, pending.starts_by)
        pending.level = number
        pending.admitted = admitted
        level.add(pending)
        self._size += 1
        return evicted

    def max_wait(self, priority: int, timeout_us: int) -> int:
        """Return after how many ns in the queue a request with its own timeout is rejected; 0 if it never is."""
        number = priority if 1 <= priority <= self._levels else self._default_level
        policy = self._policies.get(number, self._default_policy)
        return 0 if policy.timeout_action is TimeoutAction.DELAY else _timeout_us(policy, timeout_us) * 1000

    def before(self, priority: int, tenant: str, weight: int) -> int:
        """Return how many inferences are served before a new request of a tenant."""
        number = priority if 1 <= priority <= self._levels else self._default_level
        total = 0
        for level in self._in_use:
            if level.number < number:
                total += level.inferences
            elif level.number == number:
                total += level.before(tenant, weight)
        return total

    def refusal(self, now: int, tenant: str = "", weight: int = 1) -> QueueFull | None:
        """Return the error that `push` would raise for any priority; None if a request of some priority has room."""
        if self._size + self._ahead < self._room or len(self._in_use) < self._levels:
            return None
        if any(level.size < level.bound or level.evictable(tenant, weight) for level in self._in_use):
            return None
        return self.rejection(now)

    def requeue(self, pending: W) -> None:
        """Return a request that was popped and not executed to the head of its level."""
        self._level(pending.level).add(pending, first=True)
        self._size += 1
        for expiry in (pending.expires, pending.starts_by):
            if expiry:
                self._push_expiry(pending, expiry)

    def pop(self, number: int) -> list[W]:
        """Remove and return the first `number` requests in the order of service."""
        taken: list[W] = []
        for level in self._in_use:
            taken += level.take(number - len(taken))
            if len(taken) == number:
                break
        self._size -= len(taken)
        self._service_rate.taken += len(taken)
        return taken

    def like_first(self, limit: int) -> list[W]:
        """Return the first request of a queue that is not empty, and those of its level and group among the next.

        `limit` bounds how many are looked at.
        """
        level = next(level for level in self._in_use if level.size > level.ahead)
        first = next(iter(level))
        return [pending for pending in islice(level, limit) if pending.group_key == first.group_key]

    def take(self, chosen: Sequence[W]) -> None:
        """Remove requests that wait."""
        for pending in chosen:
            self.remove(pending)
        self._service_rate.taken += len(chosen)

    def note_ahead(self, taken: Iterable[W]) -> None:
        """Keep counting requests that were popped, but are not executed yet, against the bounds of their levels."""
        for pending in taken:
            pending.ahead = True
            self._level(pending.level).ahead += 1
            self._ahead += 1

    def begin(self, pending: W) -> None:
        """Stop counting a request that was sent ahead: its execution has begun, or it has ended."""
        pending.ahead = False
        self._by_number[pending.level].ahead -= 1
        self._ahead -= 1

    def remove(self, pending: W) -> None:
        """Remove a request, wherever it stands. A no-op if it is not queued."""
        level = self._by_number.get(pending.level)
        if level is not None and level.remove(pending):
            self._size -= 1

    def expire(self, now: int) -> list[W]:
        """Apply the timeout actions that are due: demote the requests to delay, return those to reject.

        Requests whose deadline cannot be met any more are rejected too, also those sent ahead. Rejected requests are
        still queued: their end removes them, as it removes any request that ends while it waits.
        """
        rejected: list[W] = []
        while self._expiries and self._expiries[0][0] <= now:
            pending = heapq.heappop(self._expiries)[2]
            if pending.starts_by and pending.starts_by <= now and _may_expire(pending):
                rejected.append(pending)
                continue
            if pending.state is not State.QUEUED:
                continue
            level = self._by_number[pending.level]  # in use while the request is queued
            if level.policy.timeout_action is TimeoutAction.DELAY:
                level.delay(pending)
            else:
                rejected.append(pending)
        return rejected

    def next_expiry(self) -> int:
        """Return when the next timeout is due (monotonic ns), 0 if never."""
        while self._expiries and not _may_expire(self._expiries[0][2]):
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else 0

    def next_start_by(self) -> int:
        """Return when a request has to begin if that is the next timeout (monotonic ns), else 0."""
        at = self.next_expiry()
        return at if at and at == self._expiries[0][2].starts_by and not self._expiries[0][2].ahead else 0

    def oldest(self) -> int:
        """Return when the request that has waited longest was queued (monotonic ns), 0 if none waits."""
        return min([level.oldest() for level in self._in_use if level.size > level.ahead], default=0)

    def rejection(self, now: int) -> QueueFull:
        """Return the rejection for lack of room, with an estimate of when the waiting requests have been served."""
        # The rate may have fallen since it was measured: it takes at least as long as the first request has waited.
        first = next(iter(self), None)
        waited = (now - first.queued) / 1e9 if first is not None else 0.0
        seconds = self._service_rate.seconds_for(self._size + self._ahead, now) or 0.0
        return QueueFull(QUEUE_IS_FULL, retry_after_s=max(seconds, waited))

    def _push_expiry(self, pending: W, at: int) -> None:
        # Most requests leave the queue long before they expire: drop their entries before these pile up.
        if len(self._expiries) > 2 * self._size + 64:
            self._expiries = [entry for entry in self._expiries if _may_expire(entry[2])]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (at, next(self._order), pending))


def _may_expire(pending: Waiting) -> bool:
    """Whether a request waits, or was sent ahead and has a deadline."""
    return pending.state is State.QUEUED or (pending.ahead and pending.starts_by > 0)


def _timeout_us(policy: QueuePolicy, requested_us: int) -> int:
    """Return how long a request may wait: its own timeout counts if the policy allows it, and only to shorten."""
    if not policy.allow_timeout_override or requested_us <= 0:
        return policy.default_timeout_us
    if policy.default_timeout_us == 0:
        return requested_us
    return min(policy.default_timeout_us, requested_us)
