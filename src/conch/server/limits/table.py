"""Which limit holds: precedence of sources, and of a name over `"*"`. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from conch.domain.limits import EACH, UNLIMITED, LimitKey, Limits, Quantity, Subject

# Sources, highest precedence first.
SOURCES = ("admin", "kubernetes", "file")
# The label of what a limit or a rate counts together.
ALL = "_all"


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """The limit of a key, its source, and the values of sources with lower precedence."""

    key: LimitKey
    per_second: int
    source: str
    overridden: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SubjectShape:
    """Which parts of a subject are given: limits of different shapes hold together."""

    model: bool
    version: bool
    tenant: bool

    @classmethod
    def of(cls, subject: Subject) -> "SubjectShape":
        """Return the shape of a subject."""
        return cls(*map(bool, subject.parts))

    def names(self, model: str, version: str, tenant: str) -> tuple[str, str, str]:
        """Return the parts of this shape, `ALL` for the others."""
        return (
            model if self.model else ALL,
            version if self.version else ALL,
            tenant if self.tenant else ALL,
        )


class LimitTable:
    """The limits of all sources, merged."""

    def __init__(self, sources: Mapping[str, Limits] | None = None) -> None:
        """Merge. For limit key, the first of `SOURCES` that sets it counts."""
        self.effective: dict[LimitKey, EffectiveLimit] = {}
        by_source = sources or {}
        for key in {key for limits in by_source.values() for key in limits}:
            values = {source: by_source[source][key] for source in SOURCES if key in by_source.get(source, ())}
            source, value = next(iter(values.items()))
            lower = {name: limit for name, limit in values.items() if name != source}
            self.effective[key] = EffectiveLimit(key, value, source, lower)
        self.shapes = frozenset(SubjectShape.of(key.subject) for key in self.effective)
        self.tenants = frozenset(key.subject.tenant for key in self.effective) - {"", EACH}

    def __bool__(self) -> bool:
        return bool(self.effective)

    def find(self, names: tuple[str, str, str], quantity: Quantity, enforced: bool) -> EffectiveLimit | None:
        """Return the limit of a model, version and tenant, of which `ALL` is all together; None if there is none.

        A name has precedence over `EACH`: of the model first, then of the version, then of the tenant.
        """
        for parts in _candidates(names):
            limit = self.effective.get(LimitKey(Subject(*parts), quantity, enforced))
            if limit is not None:
                return None if limit.per_second == UNLIMITED else limit
        return None

    def weight(self, model: str, tenant: str) -> int:
        """Return the weight of a tenant's requests to a model, 1 by default; one for the model has precedence."""
        for names in ((model, ALL, tenant), (ALL, ALL, tenant)):
            limit = self.find(names, Quantity.WEIGHT, enforced=False)
            if limit is not None:
                return limit.per_second
        return 1

    def tightest(self, versions: Iterable[tuple[str, str, int]], quantity: Quantity, *, enforced: bool) -> int | None:
        """Return the rate at which the first limit of several model versions is reached, all tenants together.

        `versions` are (model, version, number): how often each counts. None if there is no limit.
        """
        rates = [
            limit.per_second // number
            for model, version, number in versions
            for names in ((model, version, ALL), (model, ALL, ALL))
            if (limit := self.find(names, quantity, enforced)) is not None
        ]
        return min(rates, default=None)


def _candidates(names: tuple[str, str, str]) -> Iterator[tuple[str, str, str]]:
    # A tenant without a name is one of "each".
    yield from product(*(("",) if name == ALL else (name, EACH) if name else (EACH,) for name in names))
