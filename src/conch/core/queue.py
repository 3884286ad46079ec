"""The requests that wait for one model: by priority, bounded, each with the time its policy allows.

The queue alone refuses for lack of room. It holds no clock: the owner passes the time in and asks when to look again.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, count
from math import inf

from conch.core.pace import Pace
from conch.core.pending import Pending, State
from conch.errors import QueueFull
from conch.model_config import DynamicBatching, QueuePolicy, TimeoutAction

_UNBOUNDED = QueuePolicy()


class PolicyQueue:
    """First in, first out within a priority level; lower level numbers first; delayed requests last of their level.

    Without dynamic batching there is one level and no policy, as in Triton's default scheduler. `default_size` bounds
    each level whose policy does not; 0 bounds none.
    """

    def __init__(self, batching: DynamicBatching | None, default_size: int = 0) -> None:
        self._levels = batching.priority_levels if batching else 0
        self._default_level = batching.default_priority_level if batching else 0
        self._policies = {
            level: batching.priority_queue_policies.get(level, batching.default_queue_policy)
            if batching
            else _UNBOUNDED
            for level in self._level_numbers()
        }
        self._bounds = {level: p.max_queue_size or default_size or inf for level, p in self._policies.items()}
        self._least_bound = min(self._bounds.values())
        self._room = sum(self._bounds.values())
        # Linked lists, in effect: thousands may leave from the middle at once, when their clients give up.
        self._waiting: dict[int, OrderedDict[Pending, None]] = {level: OrderedDict() for level in self._level_numbers()}
        self._delayed: dict[int, OrderedDict[Pending, None]] = {level: OrderedDict() for level in self._level_numbers()}
        # In the order of service.
        self._queues = [q for level in self._level_numbers() for q in (self._waiting[level], self._delayed[level])]
        self._expiries: list[tuple[int, int, Pending]] = []
        self._order = count()
        self._pace = Pace()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Pending]:
        """Iterate in the order of service."""
        return chain.from_iterable(self._queues)

    def __repr__(self) -> str:
        return f"<PolicyQueue {self._size} waiting>"

    def _level_numbers(self) -> range:
        return range(1, self._levels + 1) if self._levels else range(1)

    def push(self, pending: Pending, now: int) -> None:
        """Admit a request. Raises QueueFull if its level holds as many as its policy allows."""
        level = pending.request.priority
        if not 1 <= level <= self._levels:
            level = self._default_level if self._levels else 0
        policy = self._policies[level]
        if self._size >= self._least_bound and self._is_full(level) and not pending.request.admitted:
            raise self._refusal(now)
        timeout_us = _timeout_us(policy, pending.request.timeout_us)
        if timeout_us:
            pending.expires = now + timeout_us * 1000
            self._note_expiry(pending)
        pending.level = level
        self._waiting[level][pending] = None
        self._size += 1

    def refusal(self, now: int) -> QueueFull | None:
        """Return what `push` would raise now whatever the priority; None if some request would be admitted."""
        if self._size < self._room or not all(map(self._is_full, self._bounds)):
            return None
        return self._refusal(now)

    def put_back(self, pending: Pending) -> None:
        """Put a request that was taken and not executed at the head of its level."""
        waiting = self._waiting[pending.level]
        waiting[pending] = None
        waiting.move_to_end(pending, last=False)
        self._size += 1
        if pending.expires:
            self._note_expiry(pending)

    def pop(self, number: int) -> list[Pending]:
        """Take the first `number` requests in the order of service."""
        taken: list[Pending] = []
        for queue in self._queues:
            while queue and len(taken) < number:
                taken.append(queue.popitem(last=False)[0])
        self._size -= len(taken)
        self._pace.taken += len(taken)
        return taken

    def remove(self, pending: Pending) -> None:
        """Take one request out, wherever it stands. Does nothing if it is not here."""
        for queue in (self._waiting[pending.level], self._delayed[pending.level]):
            if pending in queue:
                del queue[pending]
                self._size -= 1

    def expire(self, now: int) -> list[Pending]:
        """Act on policies whose time has come: move the requests to delay, return those to reject.

        The rejected are still in the queue: they leave it as any request does that ends while it waits, by `remove`.
        """
        rejected: list[Pending] = []
        while self._expiries and self._expiries[0][0] <= now:
            pending = heapq.heappop(self._expiries)[2]
            if pending.state is not State.QUEUED:
                continue
            if self._policies[pending.level].timeout_action is TimeoutAction.DELAY:
                del self._waiting[pending.level][pending]
                self._delayed[pending.level][pending] = None
            else:
                rejected.append(pending)
        return rejected

    def next_expiry(self) -> int:
        """Return when `expire` has something to do (monotonic ns), 0 if never."""
        while self._expiries and self._expiries[0][2].state is not State.QUEUED:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else 0

    def _is_full(self, level: int) -> bool:
        return len(self._waiting[level]) + len(self._delayed[level]) >= self._bounds[level]

    def _refusal(self, now: int) -> QueueFull:
        """Refuse for lack of room, telling when those that wait now will have been served."""
        # The pace may have fallen since it was measured: it will not take less than the first of them has waited.
        waited = (now - next(iter(self)).queued) / 1e9
        seconds = self._pace.seconds_for(self._size, now) or 0.0
        return QueueFull("Exceeds maximum queue size", retry_after_s=max(seconds, waited))

    def _note_expiry(self, pending: Pending) -> None:
        # Requests leave the queue long before most of them would expire; do not let their entries pile up.
        if len(self._expiries) > 2 * self._size + 64:
            self._expiries = [entry for entry in self._expiries if entry[2].state is State.QUEUED]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (pending.expires, next(self._order), pending))


def _timeout_us(policy: QueuePolicy, requested_us: int) -> int:
    """Return how long a request may wait; its own wish counts where the policy lets it, and only to shorten."""
    if not policy.allow_timeout_override or requested_us <= 0:
        return policy.default_timeout_us
    if policy.default_timeout_us == 0:
        return requested_us
    return min(policy.default_timeout_us, requested_us)
