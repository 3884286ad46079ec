"""The rules for prometheus-adapter, as a ConfigMap to be merged into the values of the adapter's chart."""

from collections.abc import Iterator
from typing import Any

from conch.base.yaml_documents import dump_documents
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.kubernetes.scaling.scaling_metrics import adapter_rules
from conch.operate.deployment.values.deployment import DeploymentValues

ADAPTER_VALUES = "values.yaml"


def adapter_values_file() -> str:
    """Return values of the chart of prometheus-adapter."""
    return dump_documents([{"rules": {"custom": adapter_rules()}}])


def adapter_config_map(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the ConfigMap where the HorizontalPodAutoscaler needs the adapter."""
    if values.autoscaling.type == "hpa" and values.autoscaling.adapter.config_map:
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": release.metadata("autoscaler", "-adapter-rules"),
            "data": {ADAPTER_VALUES: adapter_values_file()},
        }
