"""The families of rates and limits for `/metrics`."""

from collections.abc import Iterable, Iterator, Mapping
from time import monotonic_ns

from conch.domain.exposition import Family, Labels, Point
from conch.domain.limits import UNLIMITED
from conch.server.limits.limiter import Bucket
from conch.server.limits.manager import LimitManager

_STAGE_LABELS = ("model", "version", "stage", "stage_version")
# Ensemble and its version, stage and its version, and the requests of the stage.
StageCount = tuple[str, str, str, str, int]


def limit_families(manager: LimitManager, stages: Iterable[StageCount], *, measuring: bool) -> Iterator[Family]:
    """Yield the families of a server. `measuring`: whether the limiter is installed."""
    limiter = manager.limiter
    if measuring:
        yield from _rates(limiter.buckets)
        yield _one("conch_limit_tenants", limiter.tenants)
        yield _one("conch_limit_tenants_overflow_total", limiter.overflowed)
        yield Family.of(
            "conch_ensemble_stage_requests",
            [Point(number, dict(zip(_STAGE_LABELS, names, strict=True))) for *names, number in stages],
        )
    sources = manager.sources.items()
    yield Family.of("conch_limit_changes_total", [Point(state.changes, {"source": name}) for name, state in sources])
    yield Family.of("conch_limit_source_up", [Point(int(state.up), {"source": name}) for name, state in sources])
    if manager.last_change:
        yield _one("conch_limit_last_change_timestamp_seconds", manager.last_change)
    if manager.audit is not None:
        yield _one("conch_limit_audit_records", manager.audit.seq)
        yield _one("conch_limit_audit_failures_total", manager.audit_failures)


def _rates(buckets: list[Bucket]) -> Iterator[Family]:
    now = monotonic_ns()
    labelled = [(_labels(bucket), bucket) for bucket in buckets]
    tokens = [(labels, bucket.tokens) for labels, bucket in labelled if bucket.tokens is not None]
    requests = [(labels, bucket.requests) for labels, bucket in labelled]
    yield Family.of("conch_request_rate", [Point(window.advance(now), labels) for labels, window in requests])
    yield Family.of("conch_request_rate_peak", [Point(window.take_peak(now), labels) for labels, window in requests])
    yield Family.of("conch_token_rate", [Point(window.advance(now), labels) for labels, window in tokens])
    yield Family.of("conch_token_rate_peak", [Point(window.take_peak(now), labels) for labels, window in tokens])
    yield _limits(
        "conch_request_rate_limit",
        [(labels, bucket.requests_soft, bucket.requests_enforced) for labels, bucket in labelled],
    )
    yield _limits(
        "conch_token_rate_limit", [(labels, bucket.tokens_soft, bucket.tokens_enforced) for labels, bucket in labelled]
    )
    yield Family.of(
        "conch_limit_exceeded_total",
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


def _limits(metric: str, rows: Iterable[tuple[Mapping[str, str], int, int]]) -> Family:
    points = [
        Point(value, {**labels, "enforced": enforced})
        for labels, soft, hard in rows
        for enforced, value in (("false", soft), ("true", hard))
        if value < UNLIMITED
    ]
    return Family.of(metric, points)


def _labels(bucket: Bucket) -> Labels:
    return Labels({"model": bucket.model, "version": bucket.version, "tenant": bucket.tenant})


def _one(metric: str, value: float) -> Family:
    return Family.of(metric, [Point(value)])
