"""Limits as annotations of the workload, in the form that `--limits-kubernetes` reads."""

import json

from conch.domain.limits import ENFORCED, LIMITS, MAX_QPS, MAX_TOKENS, SHARED
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.pod.limits import LimitAnnotationValues


def limit_annotations(limits: LimitAnnotationValues) -> dict[str, str]:
    """Return the annotations; none where there are no limits."""
    found: dict[str, str] = {}
    if limits.max_qps is not None:
        found[MAX_QPS] = str(limits.max_qps)
    if limits.max_tokens_per_second is not None:
        found[MAX_TOKENS] = str(limits.max_tokens_per_second)
    if limits.entries:
        found[LIMITS] = json.dumps({"limits": list(limits.entries)}, sort_keys=True, separators=(",", ":"))
    if found:
        found |= {name: "true" for name, wanted in ((ENFORCED, limits.enforced), (SHARED, limits.shared)) if wanted}
    return found


def reads_limits(values: DeploymentValues) -> bool:
    """Whether the server follows the annotations, for which it asks the API server."""
    return values.server.limits_kubernetes or bool(limit_annotations(values.limits))
