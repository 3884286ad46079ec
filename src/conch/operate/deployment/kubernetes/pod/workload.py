"""The workload that runs the server: a Deployment or a StatefulSet."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.parts import without_empty
from conch.operate.deployment.kubernetes.pod.devices import affinity, tolerations
from conch.operate.deployment.kubernetes.pod.limit_annotations import limit_annotations, reads_limits
from conch.operate.deployment.kubernetes.pod.server_container import pull_containers, server_container
from conch.operate.deployment.kubernetes.pod.service_account import service_account_name
from conch.operate.deployment.kubernetes.pod.volumes import claim_templates, volumes
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.pod.workload import WorkloadValues

# No earlier version of the object that Helm applied had `replicas`. Without the annotation, the chart sets the live
# number: Kubernetes would replace a field that Helm stops to set by its default, 1.
_AUTOSCALED = {"conch.ai/replicas": "autoscaler"}


def workload(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the Deployment or the StatefulSet."""
    kind = values.workload.kind
    autoscaled = values.autoscaling.type != "none"
    own = _of_deployment(values.workload) if kind == "Deployment" else _of_stateful_set(values, release)
    yield {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": release.metadata(
            "server",
            annotations={
                **values.workload.annotations,
                **(_AUTOSCALED if autoscaled else {}),
                **limit_annotations(values.limits),
            },
        ),
        "spec": {
            # An upgrade would undo what the autoscaler has done.
            **({} if autoscaled else {"replicas": values.replica_count}),
            "revisionHistoryLimit": values.workload.revision_history_limit,
            "selector": {"matchLabels": release.selector},
            **own,
            "template": {
                "metadata": without_empty(
                    {
                        "labels": {**release.labels("server"), **values.pod_labels},
                        "annotations": values.pod_annotations,
                    }
                ),
                "spec": pod_spec(values, release),
            },
        },
    }


def pod_spec(values: DeploymentValues, release: Release) -> dict[str, Any]:
    """Return the spec of a pod."""
    termination = values.termination
    grace = termination.pre_stop_seconds + values.server.exit_timeout_secs + termination.margin_seconds
    return without_empty(
        {
            "serviceAccountName": service_account_name(values, release),
            "automountServiceAccountToken": reads_limits(values),
            # A Service called conch-http would set CONCH_HTTP_PORT, which is a flag of the server.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace,
            "imagePullSecrets": [{"name": each.name} for each in values.image.pull_secrets],
            "priorityClassName": values.priority_class_name,
            "runtimeClassName": values.accelerator.runtime_class_name,
            "securityContext": values.pod_security_context,
            "initContainers": [*pull_containers(values, release), *values.extra_init_containers],
            "containers": [server_container(values, release), *values.extra_containers],
            "volumes": volumes(values),
            "nodeSelector": values.node_selector,
            "tolerations": tolerations(values),
            "affinity": affinity(values),
            "topologySpreadConstraints": _spread(values, release),
            **values.pod_spec,
        }
    )


def _of_deployment(values: WorkloadValues) -> dict[str, Any]:
    strategy: dict[str, Any] = {"type": values.update_strategy}
    if values.update_strategy == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": values.max_unavailable, "maxSurge": values.max_surge}
    return {"strategy": strategy, "progressDeadlineSeconds": values.progress_deadline_seconds}


def _of_stateful_set(values: DeploymentValues, release: Release) -> dict[str, Any]:
    return without_empty(
        {
            # The headless Service gives replicas their names in DNS.
            "serviceName": f"{release.name}-metrics",
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "volumeClaimTemplates": list(claim_templates(values)),
        }
    )


def _spread(values: DeploymentValues, release: Release) -> list[dict[str, Any]]:
    spread = values.topology_spread
    return [
        {
            "maxSkew": spread.max_skew,
            "topologyKey": key,
            "whenUnsatisfiable": spread.when_unsatisfiable,
            "labelSelector": {"matchLabels": release.selector},
        }
        for key in spread.topology_keys
    ]
