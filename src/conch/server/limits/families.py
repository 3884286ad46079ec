"""The families of rates and limits for `/metrics`."""

from collections.abc import Iterable, Iterator, Mapping
from time import monotonic_ns

from conch.domain.exposition import Family, Labels, Point
from conch.domain.limits import UNLIMITED
from conch.domain.metrics import limits as catalog
from conch.domain.metrics.metric import MetricDefinition
from conch.server.limits.limiter import Bucket
from conch.server.limits.manager import LimitManager

# Ensemble and its version, stage and its version, and the requests of the stage.
StageCount = tuple[str, str, str, str, int]


def limit_families(manager: LimitManager, stages: Iterable[StageCount], *, measuring: bool) -> Iterator[Family]:
    """Yield the families of a server. `measuring`: whether the limiter is installed."""
    limiter = manager.limiter
    if measuring:
        yield from _rates(limiter.buckets)
        yield _one(catalog.LIMIT_TENANTS, limiter.tenants)
        yield _one(catalog.LIMIT_TENANTS_OVERFLOW, limiter.overflowed)
        yield Family.of(
            catalog.STAGE_REQUESTS,
            [Point(number, dict(zip(catalog.STAGE_REQUESTS.labels, names, strict=True))) for *names, number in stages],
        )
    sources = manager.sources.items()
    yield Family.of(catalog.LIMIT_CHANGES, [Point(state.changes, {"source": name}) for name, state in sources])
    yield Family.of(catalog.LIMIT_SOURCE_UP, [Point(int(state.up), {"source": name}) for name, state in sources])
    if manager.last_change:
        yield _one(catalog.LIMIT_LAST_CHANGE, manager.last_change)
    if manager.audit is not None:
        yield _one(catalog.LIMIT_AUDIT_RECORDS, manager.audit.seq)
        yield _one(catalog.LIMIT_AUDIT_FAILURES, manager.audit_failures)


def _rates(buckets: list[Bucket]) -> Iterator[Family]:
    now = monotonic_ns()
    labelled = [(_labels(bucket), bucket) for bucket in buckets]
    tokens = [(labels, bucket.tokens) for labels, bucket in labelled if bucket.tokens is not None]
    requests = [(labels, bucket.requests) for labels, bucket in labelled]
    yield Family.of(catalog.REQUEST_RATE, [Point(window.advance(now), labels) for labels, window in requests])
    yield Family.of(catalog.REQUEST_RATE_PEAK, [Point(window.take_peak(now), labels) for labels, window in requests])
    yield Family.of(catalog.TOKEN_RATE, [Point(window.advance(now), labels) for labels, window in tokens])
    yield Family.of(catalog.TOKEN_RATE_PEAK, [Point(window.take_peak(now), labels) for labels, window in tokens])
    yield _limits(
        catalog.REQUEST_RATE_LIMIT,
        [(labels, bucket.requests_soft, bucket.requests_enforced) for labels, bucket in labelled],
    )
    yield _limits(
        catalog.TOKEN_RATE_LIMIT, [(labels, bucket.tokens_soft, bucket.tokens_enforced) for labels, bucket in labelled]
    )
    yield Family.of(
        catalog.LIMIT_EXCEEDED,
        [
            Point(count, {**labels, "enforced": enforced})
            for labels, bucket in labelled
            for enforced, count, limited in (
                ("false", bucket.exceeded_soft, min(bucket.requests_soft, bucket.tokens_soft)),
                ("true", bucket.exceeded_enforced, min(bucket.requests_enforced, bucket.tokens_enforced)),
            )
            if count or limited < UNLIMITED
        ],
    )


def _limits(metric: MetricDefinition, rows: Iterable[tuple[Mapping[str, str], int, int]]) -> Family:
    points = [
        Point(value, {**labels, "enforced": enforced})
        for labels, soft, hard in rows
        for enforced, value in (("false", soft), ("true", hard))
        if value < UNLIMITED
    ]
    return Family.of(metric, points)


def _labels(bucket: Bucket) -> Labels:
    return Labels({"model": bucket.model, "version": bucket.version, "tenant": bucket.tenant})


def _one(metric: MetricDefinition, value: float) -> Family:
    return Family.of(metric, [Point(value)])
