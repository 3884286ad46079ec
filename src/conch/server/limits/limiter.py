# Compiled by mypyc in wheels.
"""Admission by requests and tokens per second, and the measured rates.

A `Meter` has all that one request of a model version and a tenant counts towards. It is looked up once for each
request; then a request costs integer additions. Belongs to the event loop's thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from conch.base.errors import LimitExceeded
from conch.domain.limits import UNLIMITED, Quantity
from conch.server.limits.table import ALL, LimitTable, SubjectShape

SLOT_NS: Final = 10_000_000
_SLOTS: Final = 101
WINDOW_NS: Final = 1_000_000_000
# Minimum age of a peak that a scrape drops, so that a second scraper sees it, too.
PEAK_HOLD_NS: Final = 30_000_000_000


class RateWindow:
    """Counts events of the last second, and their peak. The caller gives the time, of one monotonic clock, in ns.

    The second has 100 slots of 10 ms. The window counts the current slot and the 100 before it, so a limit on its total
    is never exceeded in any second, and a steady load reaches 99 % of the limit or more. All of a second's requests may
    come at once: a burst up to the limit is admitted, then as much as leaves the window. Counting allocates nothing.
    """

    __slots__ = ("_held_since", "_peak", "_previous_peak", "_slots", "last_slot", "total")

    def __init__(self, now: int) -> None:
        self.total = 0  # as of the last call of `advance` or `add`
        self._slots: list[int] = [0] * _SLOTS
        self.last_slot = now // SLOT_NS  # of the last call of `advance`
        self._peak = 0
        self._previous_peak = 0
        self._held_since = now

    def advance(self, now: int) -> int:
        """Drop what has left the window, and return its total. An earlier time than the last one counts as that."""
        slot = now // SLOT_NS
        last = self.last_slot
        if slot <= last:
            return self.total
        self.last_slot = slot
        if self.total:
            slots = self._slots
            if slot - last >= _SLOTS:
                last = slot - _SLOTS
            while last < slot:
                last += 1
                index = last % _SLOTS
                count = slots[index]
                if count:
                    self.total -= count
                    slots[index] = 0
        return self.total

    def add(self, count: int) -> None:
        """Count events at the time of the last `advance`."""
        self._slots[self.last_slot % _SLOTS] += count
        total = self.total + count
        self.total = total
        if total > self._peak:
            self._peak = total

    def wait_for(self, room: int, limit: int) -> int:
        """Return the nanoseconds until `room` events fit below `limit`, as far as the window knows."""
        excess = self.total + room - limit
        slot = self.last_slot - _SLOTS
        while excess > 0 and slot < self.last_slot:
            slot += 1
            excess -= self._slots[slot % _SLOTS]
        return (slot + _SLOTS - self.last_slot) * SLOT_NS

    def take_peak(self, now: int) -> int:
        """Return the largest total since the scrape before the last one, for one scrape.

        Scrapes less than `PEAK_HOLD_NS` apart count as one here. So two scrapers see every burst, whatever their
        intervals are, and any number of them if each scrapes at least once a minute.
        """
        total = self.advance(now)
        peak = max(self._peak, self._previous_peak)
        if now - self._held_since >= PEAK_HOLD_NS:
            self._previous_peak = self._peak
            self._peak = total
            self._held_since = now
        return peak


# Tenants with separate windows, besides those that limits name; the others share one.
MAX_TENANTS: Final = 1000
OTHER_TENANTS: Final = "_other"
# Rates of a tenant without requests for so long are dropped if another tenant needs the room.
_IDLE_NS: Final = 60_000_000_000
_REFUSED_ALL_RETRY_S: Final = 60.0


class Bucket:
    """The rates and limits of one model, version and tenant; of each, `ALL` is all together."""

    __slots__ = (
        "exceeded_enforced",
        "exceeded_soft",
        "model",
        "owed_until",
        "requests",
        "requests_enforced",
        "requests_soft",
        "tenant",
        "tokens",
        "tokens_enforced",
        "tokens_soft",
        "used",
        "version",
    )

    def __init__(self, model: str, version: str, tenant: str, now: int) -> None:
        self.model = model
        self.version = version
        self.tenant = tenant
        self.requests = RateWindow(now)
        self.tokens: RateWindow | None = None  # created with the first tokens
        self.used = now
        self.requests_soft = UNLIMITED
        self.requests_enforced = UNLIMITED
        self.tokens_soft = UNLIMITED
        self.tokens_enforced = UNLIMITED
        # Until when the tokens so far last at the enforced rate: more than a second ahead, requests are refused.
        self.owed_until = 0
        self.exceeded_soft = 0
        self.exceeded_enforced = 0

    def set_limits(self, table: LimitTable) -> None:
        """Adopt the limits of a table."""
        names = (self.model, self.version, self.tenant)
        self.requests_soft = _find(table, names, Quantity.REQUESTS, enforced=False)
        self.requests_enforced = _find(table, names, Quantity.REQUESTS, enforced=True)
        self.tokens_soft = _find(table, names, Quantity.TOKENS, enforced=False)
        self.tokens_enforced = _find(table, names, Quantity.TOKENS, enforced=True)

    def refusal(self, count: int, now: int) -> LimitExceeded | None:
        """Return the refusal of `count` requests at `now`; None if they are within the enforced limits."""
        requests = self.requests
        limit = self.requests_enforced
        if requests.advance(now) + count > limit:
            self.exceeded_enforced += 1
            # More than the limit at once never fit. Retry-After has whole seconds, rounded up.
            wait_s = _REFUSED_ALL_RETRY_S if count > limit else min(requests.wait_for(count, limit) / 1e9, 1.0)
            return LimitExceeded(self._text(limit, "requests"), retry_after_s=wait_s, quantity="requests")
        limit = self.tokens_enforced
        if limit < UNLIMITED:
            ahead = self.owed_until - now - WINDOW_NS
            if ahead > 0 or limit == 0:
                self.exceeded_enforced += 1
                wait_s = ahead / 1e9 if limit else _REFUSED_ALL_RETRY_S
                return LimitExceeded(self._text(limit, "tokens"), retry_after_s=wait_s, quantity="tokens")
        return None

    def count_exceeded(self, now: int) -> None:
        """Count a request that was admitted over a soft limit, if it was."""
        tokens = self.tokens
        over_tokens = tokens is not None and tokens.advance(now) > self.tokens_soft
        if over_tokens or self.requests.total > self.requests_soft:
            self.exceeded_soft += 1

    def count_tokens(self, count: int, now: int) -> None:
        """Count tokens of admitted requests."""
        tokens = self.tokens
        if tokens is None:
            tokens = self.tokens = RateWindow(now)
        tokens.advance(now)
        tokens.add(count)
        limit = self.tokens_enforced
        if 0 < limit < UNLIMITED:
            self.owed_until = max(self.owed_until, now) + count * WINDOW_NS // limit

    def _text(self, limit: int, unit: str) -> str:
        whose = "the server" if self.model == ALL else f"model '{self.model}'"
        if self.version != ALL:
            whose += f" version {self.version}"
        if self.tenant not in (ALL, ""):
            whose += f", tenant '{self.tenant}',"
        return f"{whose} exceeds its limit of {limit} {unit} per second"


class Meter:
    """What a request of one model version and tenant counts towards.

    That is the version's buckets, and those of the stages of an ensemble, which it counts towards `counts[i]` times. A
    call that a model makes counts towards the buckets of models only: the client's request has counted for the others.
    Tokens count towards all buckets, those of a stage also towards the ensemble's.
    """

    __slots__ = ("_buckets", "_counts", "_own", "_stages", "tenant", "weight")

    def __init__(
        self,
        tenant: str,
        own: Sequence[Bucket],
        stages: Mapping[tuple[str, str], tuple[Sequence[Bucket], int]],
        *,
        weight: int = 1,
        nested: bool = False,
    ) -> None:
        """Create a meter. `stages` have buckets, and requests for each of the ensemble, by model and version.

        `weight` is that of the tenant's requests where requests of several tenants wait.
        """
        self.tenant = tenant
        self.weight = weight
        self._own = list(own)
        counted = [bucket for bucket in own if bucket.model != ALL] if nested else list(own)
        self._buckets = counted + [bucket for buckets, _ in stages.values() for bucket in buckets]
        self._counts = [1] * len(counted) + [count for buckets, count in stages.values() for _ in buckets]
        self._stages: dict[tuple[str, str], Meter] = {}
        for stage, (buckets, _) in stages.items():
            both = [*own, *(bucket for bucket in buckets if bucket not in self._own)]
            meter = Meter(tenant, both, {}, weight=weight, nested=nested)
            meter._stages = self._stages  # of an ensemble among the stages
            self._stages[stage] = meter

    def stage(self, model: str, version: str) -> "Meter":
        """Return what tokens of a stage count towards, and calls that it makes."""
        return self._stages.get((model, version), self)

    def admit(self, now: int) -> LimitExceeded | None:
        """Count a request; return its refusal instead if that would exceed an enforced limit."""
        buckets, counts = self._buckets, self._counts
        slot = now // SLOT_NS
        for index in range(len(buckets)):
            bucket = buckets[index]
            requests = bucket.requests
            if slot > requests.last_slot:
                requests.advance(now)
            # Whether it is refused is looked at more closely only if it may be: this runs for every request.
            if requests.total + counts[index] > bucket.requests_enforced or bucket.tokens_enforced < UNLIMITED:
                refusal = bucket.refusal(counts[index], now)
                if refusal is not None:
                    return refusal
        for index in range(len(buckets)):
            bucket = buckets[index]
            bucket.used = now
            requests = bucket.requests
            requests.add(counts[index])
            if requests.total > bucket.requests_soft or bucket.tokens_soft < UNLIMITED:
                bucket.count_exceeded(now)
        return None

    def add_tokens(self, count: int, now: int) -> None:
        """Count tokens of the prompt or the answer; `now` is of the clock of requests' timelines."""
        for bucket in self._own:
            bucket.count_tokens(count, now)


class ModelMeters:
    """The meters of one model version by tenant, as of one generation of limits."""

    __slots__ = ("by_tenant", "calls_by_tenant", "generation", "model", "stages", "version")

    def __init__(self, model: str, version: str, stages: Mapping[tuple[str, str], int], generation: int) -> None:
        """Create the meters. `stages` are the requests that one request of an ensemble causes, by model and version."""
        self.model = model
        self.version = version
        self.stages = stages
        self.generation = generation
        self.by_tenant: dict[str, Meter] = {}
        self.calls_by_tenant: dict[str, Meter] = {}  # of calls that models make


class Limiter:
    """All buckets of a server."""

    def __init__(self) -> None:
        self.generation = 0  # changes when meters are no longer valid
        self.table = LimitTable()
        self.overflowed = 0  # requests of tenants without separate windows
        self._buckets: dict[tuple[str, str, str], Bucket] = {}
        self._tenants: dict[str, int] = {}  # when they were seen, monotonic ns
        self._swept = 0

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets, as of now."""
        return list(self._buckets.values())

    @property
    def tenants(self) -> int:
        """How many tenants have separate windows, besides those that limits name."""
        return len(self._tenants)

    def rate(self, model: str, version: str, now: int) -> int:
        """Return the requests of a model version in the last second, of all tenants."""
        return sum(
            bucket.requests.advance(now)
            for (name, number, tenant), bucket in self._buckets.items()
            if name == model and number == version and tenant != ALL
        )

    def set_table(self, table: LimitTable) -> None:
        """Replace the limits. What the windows have counted remains."""
        self.table = table
        for key, bucket in list(self._buckets.items()):
            if ALL in key and SubjectShape(*(name != ALL for name in key)) not in table.shapes:
                del self._buckets[key]
            else:
                bucket.set_limits(table)
        self.generation += 1

    def keep_models(self, served: frozenset[tuple[str, str]]) -> None:
        """Drop the rates of other model versions than these, and all meters, whose graph may have changed."""
        names = {model for model, _ in served}
        for key in list(self._buckets):
            model, version, _ = key
            if model != ALL and (model not in names or (version != ALL and (model, version) not in served)):
                del self._buckets[key]
        self.generation += 1

    def models_of(self, model: str, version: str, stages: Mapping[tuple[str, str], int]) -> ModelMeters:
        """Return empty meters of a model version."""
        return ModelMeters(model, version, stages, self.generation)

    def meter(self, meters: ModelMeters, tenant: str, now: int, *, nested: bool = False) -> Meter:
        """Return the meter of a tenant; one that many share if there are too many tenants.

        `nested`: it is for calls that models make for requests of the tenant.
        """
        known = self._known_tenant(tenant, now)
        if known is OTHER_TENANTS:
            self.overflowed += 1
        by_tenant = meters.calls_by_tenant if nested else meters.by_tenant
        meter = by_tenant.get(known)
        if meter is None:
            # What counts a client's requests counts the ensemble's request only.
            stages = {
                stage: ([bucket for bucket in self._of(*stage, known, now) if bucket.model != ALL], count)
                for stage, count in meters.stages.items()
            }
            own = list(self._of(meters.model, meters.version, known, now))
            weight = self.table.weight(meters.model, known)
            meter = by_tenant[known] = Meter(known, own, stages, weight=weight, nested=nested)
        return meter

    def _of(self, model: str, version: str, tenant: str, now: int) -> Iterator[Bucket]:
        """Yield the buckets of a request: its own, and one for each other shape that has a limit."""
        own = SubjectShape(model=True, version=True, tenant=True)
        for shape in (own, *(self.table.shapes - {own})):
            names = shape.names(model, version, tenant)
            bucket = self._buckets.get(names)
            if bucket is None:
                bucket = Bucket(*names, now)
                bucket.set_limits(self.table)
                if shape != own and not _limited(bucket):
                    continue
                self._buckets[names] = bucket
            yield bucket

    def _known_tenant(self, tenant: str, now: int) -> str:
        if not tenant or tenant in self._tenants or tenant in self.table.tenants:
            return tenant
        if len(self._tenants) >= MAX_TENANTS:
            self._sweep(now)
            if len(self._tenants) >= MAX_TENANTS:
                return OTHER_TENANTS
        self._tenants[tenant] = now
        return tenant

    def _sweep(self, now: int) -> None:
        """Drop tenants without requests, at most once a second."""
        if now - self._swept < WINDOW_NS:
            return
        self._swept = now
        used: dict[str, int] = {}
        for bucket in self._buckets.values():
            used[bucket.tenant] = max(used.get(bucket.tenant, 0), bucket.used)
        idle = {tenant for tenant in self._tenants if now - used.get(tenant, 0) > _IDLE_NS}
        if idle:
            for tenant in idle:
                del self._tenants[tenant]
            for key in [key for key in self._buckets if key[2] in idle]:
                del self._buckets[key]
            self.generation += 1


def _find(table: LimitTable, names: tuple[str, str, str], quantity: Quantity, *, enforced: bool) -> int:
    limit = table.find(names, quantity, enforced)
    return UNLIMITED if limit is None else limit.per_second


def _limited(bucket: Bucket) -> bool:
    return min(bucket.requests_soft, bucket.requests_enforced, bucket.tokens_soft, bucket.tokens_enforced) < UNLIMITED
