"""The container of the server, and the one that copies its models."""

from collections.abc import Iterator
from typing import Any

from conch.operate.deployment.kubernetes.network.services import CONTAINER_PORTS, HTTP
from conch.operate.deployment.kubernetes.parts import without_empty
from conch.operate.deployment.kubernetes.pod.devices import resources
from conch.operate.deployment.kubernetes.pod.limit_annotations import reads_limits
from conch.operate.deployment.kubernetes.pod.volumes import (
    API_KEYS_PATH,
    MODELS,
    REGISTRY,
    REGISTRY_PATH,
    TLS_PATH,
    mounts,
)
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.pod.container import ProbeValues
from conch.operate.deployment.values.pod.image import ImageValues

_LIVE, _READY = "/v2/health/live", "/v2/health/ready"
_SHUTDOWN_DELAY_S = 2  # part of termination.marginSeconds


def image(values: ImageValues, release: Release) -> str:
    """Return the reference of the image."""
    if values.name:
        return values.name
    if values.digest:
        return f"{values.repository}@{values.digest}"
    return f"{values.repository}:{values.tag or release.chart_version}"


def server_container(values: DeploymentValues, release: Release) -> dict[str, Any]:
    """Return the container of the server."""
    return without_empty(
        {
            "name": "server",
            "image": image(values.image, release),
            "imagePullPolicy": values.image.pull_policy,
            "args": ["serve", *_flags(values), *values.server.extra_args],
            "env": list(environment(values)),
            "envFrom": _environment_from(values),
            "ports": [{"name": name, "containerPort": port} for name, port in CONTAINER_PORTS.items()],
            "startupProbe": _probe(_LIVE, values.probes.startup),
            "livenessProbe": _probe(_LIVE, values.probes.liveness),
            "readinessProbe": _probe(_READY, values.probes.readiness),
            "lifecycle": _lifecycle(values),
            "resources": resources(values),
            "securityContext": values.security_context,
            "volumeMounts": mounts(values),
        }
    )


def pull_containers(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the init container that copies the models of an OCI image. It is the server's image: no shell, no cp."""
    repository = values.model_repository
    if not repository.pull:
        return
    login = bool(repository.registry_secret)
    mounted = [{"name": MODELS, "mountPath": repository.path}]
    if login:
        mounted.append({"name": REGISTRY, "mountPath": REGISTRY_PATH})
    command = ["conch", "repo", "pull", "--sync", *repository.pull_args, repository.pull, repository.path]
    yield without_empty(
        {
            "name": "models",
            "image": image(values.image, release),
            "imagePullPolicy": values.image.pull_policy,
            "command": command,
            "env": [{"name": "DOCKER_CONFIG", "value": REGISTRY_PATH}] if login else [],
            "securityContext": values.security_context,
            "volumeMounts": mounted,
        }
    )


def _flags(values: DeploymentValues) -> Iterator[str]:
    server, secrets = values.server, values.secrets
    yield f"--model-repository={values.model_repository.path}"
    yield f"--model-control-mode={'explicit' if server.load_models else server.model_control_mode}"
    yield from (f"--load-model={name}" for name in server.load_models)
    yield f"--exit-timeout-secs={server.exit_timeout_secs}"
    # Clients whose connections outlive the endpoint, as gRPC's do, move to other pods without an error.
    yield f"--shutdown-delay-secs={_SHUTDOWN_DELAY_S}"
    yield f"--log-format={server.log_format}"
    if reads_limits(values):
        yield "--limits-kubernetes=true"
    if secrets.api_keys.secret_name:
        yield f"--api-key-file={API_KEYS_PATH}/keys"
    if secrets.tls.secret_name:
        yield "--grpc-use-ssl=true"
        yield f"--grpc-server-cert={TLS_PATH}/tls.crt"
        yield f"--grpc-server-key={TLS_PATH}/tls.key"
        if secrets.tls.mutual:
            yield "--grpc-use-ssl-mutual=true"
            yield f"--grpc-root-cert={TLS_PATH}/ca.crt"


def environment(values: DeploymentValues) -> Iterator[dict[str, Any]]:
    """Yield the variables of the server; those of the values are the last."""
    yield {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    token = values.secrets.hub_token
    if token.secret_name:
        yield _of_secret("HF_TOKEN", token.secret_name, token.key)
    if values.model_repository.registry_secret:
        yield {"name": "DOCKER_CONFIG", "value": REGISTRY_PATH}
    if values.accelerator.sharing == "all-devices":
        yield {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
        yield {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}
    yield from ({"name": each.name, "value": each.value} for each in values.environment)
    yield from (_of_secret(each.name, each.secret_name, each.key) for each in values.secret_environment)


def _of_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _environment_from(values: DeploymentValues) -> list[dict[str, Any]]:
    secret = values.model_repository.credentials_secret
    return [*([{"secretRef": {"name": secret}}] if secret else []), *values.environment_from]


def _probe(path: str, probe: ProbeValues) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": HTTP},
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "failureThreshold": probe.failure_threshold,
    }


def _lifecycle(values: DeploymentValues) -> dict[str, Any]:
    """Return what delays SIGTERM, while the Services' endpoints and load balancers drop the pod."""
    seconds = values.termination.pre_stop_seconds
    return {"preStop": {"sleep": {"seconds": seconds}}} if seconds else {}
