"""The service account of the pods, and its rights."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.pod.limit_annotations import reads_limits
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues

_GROUP = "rbac.authorization.k8s.io"
# What following the annotations of the pod's owner needs.
_RULES = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {
        "apiGroups": ["apps"],
        "resources": ["replicasets", "deployments", "statefulsets"],
        "verbs": ["get", "list", "watch"],
    },
)


def service_account_name(values: DeploymentValues, release: Release) -> str:
    """Return the name of the account of the pods."""
    return values.service_account.name or (release.name if values.service_account.create else "default")


def service_account(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the account, and a Role with its binding if the server reads annotations."""
    account = values.service_account
    name = service_account_name(values, release)
    if account.create:
        metadata = release.metadata("server", annotations=account.annotations)
        yield {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {**metadata, "name": name},
            "automountServiceAccountToken": False,
        }
    if reads_limits(values):
        role = f"{release.name}-limits"
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Role",
            "metadata": release.metadata("server", "-limits"),
            "rules": [dict(rule) for rule in _RULES],
        }
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": release.metadata("server", "-limits"),
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": release.namespace}],
        }
