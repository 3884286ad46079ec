"""What the types of values cannot say: values that contradict each other, or that are in the wrong place.

The templates of the chart have the same checks with the same messages (`templates/_checks.tpl`).
"""

import re
from collections.abc import Iterator

from conch.deployment.values.deployment import DeploymentValues

# What the chart sets itself, and the values for it: flags, fields of the pod's spec, fields of the Service's spec.
CHART_KEYS = {
    "server.extraArgs": {
        "--api-key-file": "secrets.apiKeys",
        "--exit-timeout-secs": "server.exitTimeoutSecs",
        "--grpc-port": "service.grpcPort",
        "--grpc-root-cert": "secrets.tls.mutual",
        "--grpc-server-cert": "secrets.tls",
        "--grpc-server-key": "secrets.tls",
        "--grpc-use-ssl": "secrets.tls",
        "--grpc-use-ssl-mutual": "secrets.tls.mutual",
        "--http-port": "service.httpPort",
        "--limits-kubernetes": "server.limitsKubernetes",
        "--load-model": "server.loadModels",
        "--log-format": "server.logFormat",
        "--metrics-port": "metricsService.port",
        "--model-control-mode": "server.modelControlMode",
        "--model-repository": "modelRepository.path",
        "--openai-api-key": "secrets.apiKeys",
        "--repository-verify-key": "modelRepository.verifyKeyConfigMap",
    },
    "podSpec": {
        "affinity": "affinity",
        "automountServiceAccountToken": "server.limitsKubernetes",
        "containers": "extraContainers",
        "imagePullSecrets": "image.pullSecrets",
        "initContainers": "extraInitContainers",
        "nodeSelector": "nodeSelector",
        "priorityClassName": "priorityClassName",
        "runtimeClassName": "accelerator.runtimeClassName",
        "securityContext": "podSecurityContext",
        "serviceAccountName": "serviceAccount.name",
        "terminationGracePeriodSeconds": "termination.marginSeconds",
        "tolerations": "tolerations",
        "topologySpreadConstraints": "topologySpread",
        "volumes": "extraVolumes",
    },
    "service.spec": {"ports": "service.httpPort", "selector": "podLabels", "type": "service.type"},
}
_API_KEY = re.compile(r"CONCH_(OPENAI_)?API_KEY")
_SHARED_MEMORY = re.compile(r"(?i)shm[-_]size")
_MIN_VERSION_OF_IMAGE_VOLUMES = 31
_REPOSITORY_SOURCES = "claimName, image, pull and volume"


def problems(values: DeploymentValues) -> Iterator[str]:
    """Yield what is wrong with values that are valid one by one. They have Conch's own names."""
    for each in values.environment:
        if _SHARED_MEMORY.fullmatch(each.name):
            yield f"environment: {each.name} does not change the size of /dev/shm; set sharedMemory.size"
        if _API_KEY.fullmatch(each.name):
            yield f"environment: {each.name} contains a secret; put the keys in a Secret, and set secrets.apiKeys"
    given = {
        "server.extraArgs": (argument.split("=")[0] for argument in values.server.extra_args),
        "podSpec": sorted(values.pod_spec),
        "service.spec": sorted(values.service.spec),
    }
    for place, names in given.items():
        for name in names:
            if name in CHART_KEYS[place]:
                yield f"{place}: {name} is set by the chart; use {CHART_KEYS[place][name]}"
    yield from _repository(values)
    yield from _accelerator(values)


def _repository(values: DeploymentValues) -> Iterator[str]:
    repository = values.model_repository
    sources = [each for each in (repository.claim_name, repository.image, repository.pull, repository.volume) if each]
    if len(sources) > 1:
        yield f"modelRepository: {_REPOSITORY_SOURCES} exclude each other; set one of them"
    if sources and "://" in repository.path:
        yield f"modelRepository.path: {repository.path} is not a folder; set none of {_REPOSITORY_SOURCES}"
    if repository.image and _minor(values) < _MIN_VERSION_OF_IMAGE_VOLUMES:
        yield "modelRepository.image: image volumes need kubernetesVersion 1.31 or later; use modelRepository.pull"
    if values.server.load_models and values.server.model_control_mode == "poll":
        yield "server.modelControlMode: poll excludes server.loadModels; use none or explicit"


def _accelerator(values: DeploymentValues) -> Iterator[str]:
    accelerator = values.accelerator
    if (accelerator.sharing == "mig") != bool(accelerator.mig_profile):
        yield "accelerator: sharing mig and migProfile go together; set both or none"
    shared = accelerator.sharing in ("time-slicing", "mps")
    if (accelerator.products or shared) and "nodeAffinity" in values.affinity:
        yield "affinity.nodeAffinity: accelerator.products and accelerator.sharing set it; remove it, or them"


def _minor(values: DeploymentValues) -> int:
    return int(values.kubernetes_version.partition(".")[2])
