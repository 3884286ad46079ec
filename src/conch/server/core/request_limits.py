"""The limits of a server, from its options, and their metrics."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from conch.base.kubernetes.api import KubernetesApi, PodIdentity
from conch.domain.exposition import Family
from conch.server.core.inference import Inference
from conch.server.limits.audit_log import AuditLog
from conch.server.limits.families import StageCount, limit_families
from conch.server.limits.kubernetes_source import KubernetesSource
from conch.server.limits.limiter import Limiter
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
    stages: list[StageCount] = []
    if limiter is not None:
        inference.measure(limiter)
        stages = [
            (model.config.name, str(model.version), stage.config.name, str(stage.version), requests.number)
            for model in inference.models()
            if model.config.is_ensemble
            for stage, requests in inference.stages(model).items()
            if requests.exact
        ]
    return limit_families(manager, stages, measuring=limiter is not None)


def _install(inference: Inference, limiter: Limiter | None) -> None:
    inference.limiter = limiter
