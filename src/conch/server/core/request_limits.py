"""The limits of a server, from its options, and their metrics."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic_ns

from conch.base.kubernetes.api import KubernetesApi, PodIdentity
from conch.domain.exposition import Family, Labels, Point
from conch.domain.limits import UNLIMITED
from conch.server.core.inference import Inference
from conch.server.limits.audit_log import AuditLog
from conch.server.limits.kubernetes_source import KubernetesSource
from conch.server.limits.limiter import Bucket, Limiter
from conch.server.limits.manager import LimitManager
from conch.server.options.server_options import ServerOptions


def limit_manager(options: ServerOptions, inference: Inference) -> LimitManager:
    """Return the manager of the limits that requests to `inference` are admitted by. Raises ConfigError."""
    audit = None
    if options.limits_audit_log:
        audit = AuditLog(Path(options.limits_audit_log), retention_days=options.limits_audit_retention_days)
    kubernetes = None
    if options.limits_kubernetes:
        pod = PodIdentity.of_this_pod()
        kubernetes = KubernetesSource(KubernetesApi(pod.server), pod)
    return LimitManager(
        install=partial(_install, inference),
        served=lambda: ((id(model), model.config.name, str(model.version)) for model in inference.models()),
        file=options.limits_file,
        audit=audit,
        measure=options.limits_measure,
        kubernetes=None if kubernetes is None else kubernetes.watch,
    )


def limit_metrics(manager: LimitManager, inference: Inference) -> Iterator[Family]:
    """Yield the families of rates and limits."""
    limiter = inference.limiter
    if limiter is not None:
        inference.measure(limiter)
        yield from _rates(limiter.buckets)
        yield _one("conch_limit_tenants", limiter.tenants)
        yield _one("conch_limit_tenants_overflow_total", limiter.overflowed)
        yield Family.of("conch_ensemble_stage_requests", list(_stages(inference)))
    sources = manager.sources.items()
    yield Family.of("conch_limit_changes_total", [Point(state.changes, {"source": name}) for name, state in sources])
    yield Family.of("conch_limit_source_up", [Point(int(state.up), {"source": name}) for name, state in sources])
    if manager.last_change:
        yield _one("conch_limit_last_change_timestamp_seconds", manager.last_change)
    if manager.audit is not None:
        yield _one("conch_limit_audit_records", manager.audit.seq)
        yield _one("conch_limit_audit_failures_total", manager.audit_failures)


def _install(inference: Inference, limiter: Limiter | None) -> None:
    inference.limiter = limiter


def _stages(inference: Inference) -> Iterator[Point]:
    """Yield how many requests each request of an ensemble makes of its stages."""
    for model in inference.models():
        if model.config.is_ensemble:
            for stage, requests in inference.stages(model).items():
                if requests.exact:
                    labels = {
                        "model": model.config.name,
                        "version": str(model.version),
                        "stage": stage.config.name,
                        "stage_version": str(stage.version),
                    }
                    yield Point(requests.number, labels)


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
