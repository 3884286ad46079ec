"""Limits of requests and tokens per second, as annotations that `kubectl annotate` changes without a restart."""

from typing import Annotated

from msgspec import Meta

from conch.operate.deployment.values.section import Count, KubernetesPart, Section


class LimitAnnotationValues(Section, frozen=True):
    """Annotations of the workload that the server reads with --limits-kubernetes."""

    max_qps: Annotated[Count | None, Meta(description="Requests per second of each model; null for no limit")] = None
    max_tokens_per_second: Annotated[
        Count | None, Meta(description="Tokens per second of each model; null for no limit")
    ] = None
    enforced: Annotated[bool, Meta(description="Refuse requests over the limits, instead of only counting them")] = (
        False
    )
    shared: Annotated[bool, Meta(description="The limits hold for all replicas together, not for each")] = False
    entries: Annotated[
        tuple[KubernetesPart, ...],
        Meta(description="Limits by model, version and tenant, as in a limits file: docs/observability/limits.md"),
    ] = ()
