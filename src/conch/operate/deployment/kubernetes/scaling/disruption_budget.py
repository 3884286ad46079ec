"""The PodDisruptionBudget, which keeps enough pods while nodes are drained."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues


def disruption_budget(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the PodDisruptionBudget, if the values ask for one."""
    budget = values.disruption_budget
    if not budget.enabled:
        return
    amounts = {"minAvailable": str(budget.min_available), "maxUnavailable": str(budget.max_unavailable)}
    yield {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": release.metadata("server"),
        "spec": {
            **{name: _amount(text) for name, text in amounts.items() if text},
            "selector": {"matchLabels": release.selector},
            # A pod that never becomes ready would otherwise block the drain of its node for ever.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _amount(text: str) -> int | str:
    return text if text.endswith("%") else int(text)
