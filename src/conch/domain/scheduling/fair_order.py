# Compiled by mypyc in wheels.
"""Waiting requests of several tenants in a fair order: start-time fair queueing, by weights.

In virtual time a request of n inferences lasts n divided by its tenant's weight. The tenant's requests follow each
other without gaps, and the one that starts earliest is served next. So tenants that have requests waiting get shares in
proportion to their weights, and a tenant gains nothing by sending requests one by one, or all at once.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from conch.domain.scheduling.waiting import Waiting

W = TypeVar("W", bound=Waiting)


class _Tenant(Generic[W]):
    """The requests of one tenant, first in, first out."""

    __slots__ = ("end", "inferences", "order", "waiting", "weight")

    def __init__(self, order: int, weight: int) -> None:
        self.order = order
        self.weight = weight
        self.waiting: OrderedDict[W, None] = OrderedDict()
        self.inferences = 0
        self.end = 0.0  # virtual time of the end of the request that was served last


class FairOrder(Generic[W]):
    """The requests of one priority level that wait, of all tenants."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[W]] = {}
        self._now = 0.0  # virtual time: the start of the request that was served last
        self._size = 0
        self._joined = 0

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<FairOrder {self._size} of {len(self._tenants)} tenants>"

    def __iter__(self) -> Iterator[W]:
        """Iterate in the order of service."""
        for _, _, _, request in self._service():
            yield request

    def add(self, request: W) -> None:
        """Add a request of its tenant, behind the tenant's others."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            self._joined += 1
            tenant = self._tenants[request.tenant] = _Tenant(self._joined, request.weight)
            tenant.end = self._now
        tenant.weight = request.weight  # which may have changed
        tenant.waiting[request] = None
        tenant.inferences += request.batch_size
        self._size += 1

    def restore(self, request: W) -> None:
        """Add a request that was taken and not executed, before the tenant's others."""
        self.add(request)
        tenant = self._tenants[request.tenant]
        tenant.waiting.move_to_end(request, last=False)
        tenant.end -= request.batch_size / tenant.weight

    def has(self, request: W) -> bool:
        """Whether a request waits here."""
        tenant = self._tenants.get(request.tenant)
        return tenant is not None and request in tenant.waiting

    def heads(self) -> list[W]:
        """Return the first request of each tenant that has one."""
        return [next(iter(tenant.waiting)) for tenant in self._tenants.values() if tenant.waiting]

    def take(self, number: int) -> list[W]:
        """Remove and return up to `number` requests in the order of service."""
        taken: list[W] = []
        for start, _, tenant, request in self._service():
            if len(taken) == number:
                break
            self._now = start
            tenant.end = start + request.batch_size / tenant.weight
            taken.append(request)
        for request in taken:
            self.remove(request)
        if len(self._tenants) > 1:
            self._forget_idle()
        return taken

    def remove(self, request: W) -> bool:
        """Remove a request; return whether it was here."""
        if not self.has(request):
            return False
        tenant = self._tenants[request.tenant]
        del tenant.waiting[request]
        tenant.inferences -= request.batch_size
        self._size -= 1
        return True

    def before(self, name: str, weight: int) -> int:
        """Return how many inferences are served before a new request of a tenant."""
        tenant = self._tenants.get(name)
        own = tenant.inferences if tenant is not None else 0
        # Until the new request starts, the others get what fits into that virtual time.
        start = (max(tenant.end, self._now) if tenant is not None else self._now) + own / weight
        total = own
        for other in self._tenants.values():
            if other is not tenant and other.waiting:
                room = (start - max(other.end, self._now)) * other.weight
                total += min(other.inferences, max(int(room), 0))
        return total

    def evictable(self, name: str, weight: int, size: int = 1) -> W | None:
        """Return the newest request of the tenant with the most inferences by weight, for a new one of `size`.

        None if the newcomer's tenant has as many, or nearly. Requests that must not be refused are not considered.
        """
        tenant = self._tenants.get(name)
        own = ((tenant.inferences if tenant is not None else 0) + size) / weight
        largest, most = None, own
        for other in self._tenants.values():
            share = other.inferences / other.weight
            if other is not tenant and share > most:
                largest, most = other, share
        if largest is not None:
            for request in reversed(largest.waiting):
                if not request.admitted:
                    return request
        return None

    def _service(self) -> Iterator[tuple[float, int, _Tenant[W], W]]:
        """Yield virtual start, order of the tenant, tenant and request, in the order of service."""
        heap: list[tuple[float, int, _Tenant[W], W]] = []
        iterators: dict[int, Iterator[W]] = {}
        for tenant in self._tenants.values():
            if tenant.waiting:
                iterator = iterators[tenant.order] = iter(tenant.waiting)
                heap.append((max(tenant.end, self._now), tenant.order, tenant, next(iterator)))
        heapify(heap)
        while heap:
            entry = heappop(heap)
            yield entry
            start, order, tenant, request = entry
            following = next(iterators[order], None)
            if following is not None:
                heappush(heap, (start + request.batch_size / tenant.weight, order, tenant, following))

    def _forget_idle(self) -> None:
        """Drop the tenants that have nothing waiting and are not ahead of the others."""
        idle = [name for name, tenant in self._tenants.items() if not tenant.waiting and tenant.end <= self._now]
        for name in idle:
            del self._tenants[name]
