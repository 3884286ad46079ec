"""Volumes of the pods, and where the server mounts them."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.values.deployment import DeploymentValues

SHARED_MEMORY, TEMPORARY, CACHE, MODELS = "shared-memory", "tmp", "cache", "models"
API_KEYS, TLS, REGISTRY = "api-keys", "tls", "registry"
API_KEYS_PATH, TLS_PATH, REGISTRY_PATH = "/etc/conch/api-keys", "/etc/conch/tls", "/etc/conch/registry"
_SECRET_MODE = 0o440


def volumes(values: DeploymentValues) -> list[dict[str, Any]]:
    """Return the volumes of a pod."""
    secrets, repository = values.secrets, values.model_repository
    found = []
    if has_shared_memory(values):
        memory = {"medium": "Memory", "sizeLimit": values.shared_memory.size}
        found.append({"name": SHARED_MEMORY, "emptyDir": memory})
    found.append({"name": TEMPORARY, "emptyDir": {"sizeLimit": values.temporary_files.size}})
    found += _cache(values)
    if source := _models(values):
        found.append({"name": MODELS, **source})
    if secrets.api_keys.secret_name:
        items = [{"key": secrets.api_keys.key, "path": "keys"}]
        found.append(_secret(API_KEYS, secrets.api_keys.secret_name, items))
    if secrets.tls.secret_name:
        found.append(_secret(TLS, secrets.tls.secret_name))
    if repository.registry_secret:
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]
        found.append(_secret(REGISTRY, repository.registry_secret, items))
    return [*found, *values.extra_volumes]


def mounts(values: DeploymentValues) -> list[dict[str, Any]]:
    """Return what the server mounts."""
    return [*_writable_mounts(values), *_read_only_mounts(values), *values.extra_volume_mounts]


def claim_templates(values: DeploymentValues) -> Iterator[dict[str, Any]]:
    """Yield the claims of each replica of a StatefulSet."""
    if values.workload.kind == "StatefulSet" and not values.cache.claim_name:
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": values.cache.size}},
        }
        if values.cache.storage_class_name:
            spec["storageClassName"] = values.cache.storage_class_name
        yield {"metadata": {"name": CACHE}, "spec": spec}


def has_shared_memory(values: DeploymentValues) -> bool:
    """Whether the chart mounts /dev/shm. With MPS the device plug-in does: it is how clients reach its daemon."""
    return values.accelerator.sharing != "mps"


def _cache(values: DeploymentValues) -> Iterator[dict[str, Any]]:
    if values.cache.claim_name:
        yield {"name": CACHE, "persistentVolumeClaim": {"claimName": values.cache.claim_name}}
    elif values.workload.kind == "Deployment":
        yield {"name": CACHE, "emptyDir": {"sizeLimit": values.cache.size}}


def _models(values: DeploymentValues) -> dict[str, Any]:
    """Return the source of the volume of models; empty if the image or the server has them."""
    repository = values.model_repository
    if repository.claim_name:
        return {"persistentVolumeClaim": {"claimName": repository.claim_name, "readOnly": True}}
    if repository.image:
        return {"image": {"reference": repository.image, "pullPolicy": values.image.pull_policy}}
    if repository.pull:
        return {"emptyDir": {"sizeLimit": repository.size}}
    return repository.volume


def _secret(name: str, secret: str, items: list[dict[str, str]] | None = None) -> dict[str, Any]:
    source: dict[str, Any] = {"secretName": secret, "defaultMode": _SECRET_MODE}
    return {"name": name, "secret": {**source, "items": items} if items else source}


def _writable_mounts(values: DeploymentValues) -> Iterator[dict[str, Any]]:
    if has_shared_memory(values):
        yield {"name": SHARED_MEMORY, "mountPath": "/dev/shm"}  # noqa: S108 - in the container
    yield {"name": TEMPORARY, "mountPath": "/tmp"}  # noqa: S108 - in the container
    yield {"name": CACHE, "mountPath": "/cache"}


def _read_only_mounts(values: DeploymentValues) -> Iterator[dict[str, Any]]:
    secrets, repository = values.secrets, values.model_repository
    if _models(values):
        mount: dict[str, Any] = {"name": MODELS, "mountPath": repository.path, "readOnly": True}
        yield {**mount, "subPath": repository.sub_path} if repository.sub_path else mount
    if secrets.api_keys.secret_name:
        yield {"name": API_KEYS, "mountPath": API_KEYS_PATH, "readOnly": True}
    if secrets.tls.secret_name:
        yield {"name": TLS, "mountPath": TLS_PATH, "readOnly": True}
    if repository.registry_secret:
        yield {"name": REGISTRY, "mountPath": REGISTRY_PATH, "readOnly": True}
