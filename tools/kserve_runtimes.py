"""Serving runtimes of deploy/kserve: how KServe starts Conch for a model format.

A ClusterServingRuntime is chosen automatically only for formats that no runtime of KServe serves: installing one must
not change services that run already. A ServingRuntime is installed into a namespace to serve all of its formats there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conch.base.yaml_documents import dump_documents

HTTP_PORT, GRPC_PORT, METRICS_PORT = 8080, 9000, 8002  # the first two are those of KServe's runtimes
MODEL_DIR = "/mnt/models"
_GROUP = "serving.kserve.io/v1alpha1"
_PRIORITY = 2  # above the 1 of KServe's runtimes, where both are chosen automatically
_WAIT_S = 600  # for the image of a modelcar to be pulled
_EXIT_TIMEOUT_S = 20  # with the hook of 5 s less than the 30 s of Kubernetes between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A name and the versions of `modelFormat`. `built_in`: whether a runtime of KServe serves it."""

    name: str
    versions: tuple[str, ...]
    built_in: bool


ONNX = ModelFormat("onnx", ("1",), built_in=True)


@dataclass(frozen=True, slots=True)
class ServingRuntime:
    """An image and the formats that it serves.

    `suffix` is that of the image's tag; `build` are the arguments of its build, "" for a published image.
    """

    name: str
    suffix: str
    build: str
    formats: tuple[ModelFormat, ...]
    generates: bool = False  # language models, which clients call over HTTP
    rows: int = 64  # of a request and a batch, where the model does not say; Triton's default is 4
    memory: str = "2Gi"
    shared_memory: str = "256Mi"
    limits: tuple[tuple[str, str], ...] = ()  # further resources

    def objects(self, version: str) -> Iterator[dict[str, Any]]:
        """Yield the cluster's runtimes: one for HTTP and one for gRPC, because Knative allows one port."""
        yield self.runtime(version)
        if not self.generates:
            yield self.runtime(version, grpc=True)

    def runtime(self, version: str, *, grpc: bool = False, namespaced: bool = False) -> dict[str, Any]:
        """Return the object for a version of the image."""
        return {
            "apiVersion": _GROUP,
            "kind": "ServingRuntime" if namespaced else "ClusterServingRuntime",
            "metadata": {"name": f"{self.name}-grpc" if grpc else self.name},
            "spec": {
                "annotations": {
                    "prometheus.kserve.io/port": str(METRICS_PORT),
                    "prometheus.kserve.io/path": "/metrics",
                },
                "supportedModelFormats": list(self._formats(automatic=namespaced)),
                "protocolVersions": ["grpc-v2" if grpc else "v2"],
                "multiModel": False,
                "containers": [self._container(version, grpc=grpc)],
                "volumes": [
                    {"name": "tmp", "emptyDir": {}},
                    {"name": "cache", "emptyDir": {}},
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": self.shared_memory}},
                ],
            },
        }

    def _formats(self, *, automatic: bool) -> Iterator[dict[str, Any]]:
        for served in self.formats:
            chosen = {"autoSelect": True, "priority": _PRIORITY} if automatic or not served.built_in else {}
            for version in served.versions:
                yield {"name": served.name, "version": version, **({"autoSelect": False} | chosen)}

    def _container(self, version: str, *, grpc: bool) -> dict[str, Any]:
        resources = {"cpu": "1", "memory": self.memory, **dict(self.limits)}
        return {
            "name": "kserve-container",
            "image": image(version, self.suffix),
            "args": [
                "serve",
                "--model-name={{.Name}}",
                f"--model-dir={MODEL_DIR}",
                f"--model-dir-wait-secs={_WAIT_S}",
                f"--http-port={HTTP_PORT}",
                f"--grpc-port={GRPC_PORT}",
                f"--metrics-port={METRICS_PORT}",
                f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
                *([] if self.generates else [f"--backend-config=default-max-batch-size={self.rows}"]),
            ],
            # The image's default, which has no models here.
            "env": [{"name": "CONCH_MODEL_REPOSITORY", "value": ""}],
            "ports": [
                {"name": "h2c", "containerPort": GRPC_PORT, "protocol": "TCP"}
                if grpc
                else {"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"}
            ],
            **_probes(grpc=grpc),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "privileged": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"requests": dict(resources), "limits": resources},
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "cache", "mountPath": "/cache"},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }


def _probes(*, grpc: bool) -> Mapping[str, Any]:
    """Return the probes: a server that loads a model is alive and not ready, and is not restarted."""
    if grpc:
        # Knative probes readiness on the port of the service only. Health of gRPC is readiness.
        alive: dict[str, Any] = {"tcpSocket": {"port": GRPC_PORT}}
        ready: dict[str, Any] = {"grpc": {"port": GRPC_PORT}}
    else:
        alive = {"httpGet": {"path": "/v2/health/live", "port": HTTP_PORT}}
        ready = {"httpGet": {"path": "/v2/health/ready", "port": HTTP_PORT}}
    return {
        "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
    }


def image(version: str, suffix: str) -> str:
    """Return the reference of the image of a version."""
    return f"ghcr.io/conch-server/conch:{version}{suffix}"


RUNTIMES = (
    ServingRuntime("conch", "", "", (ONNX, ModelFormat("triton", ("2",), built_in=True))),
    ServingRuntime("conch-openvino", "-openvino", "", (ModelFormat("openvino", ("1",), built_in=False),)),
    ServingRuntime(
        "conch-trees",
        "-trees",
        "EXTRAS=fil,sklearn",
        (
            ModelFormat("xgboost", ("1", "2", "3"), built_in=True),
            ModelFormat("lightgbm", ("3", "4"), built_in=True),
            ModelFormat("sklearn", ("1",), built_in=True),
            ModelFormat("treelite", ("4",), built_in=False),
        ),
        rows=1024,
    ),
    ServingRuntime(
        "conch-pytorch", "-pytorch", "FLAVOUR=base EXTRAS=pytorch", (ModelFormat("pytorch", ("1", "2"), built_in=True),)
    ),
    ServingRuntime(
        "conch-genai",
        "-genai",
        "",
        (ModelFormat("gguf", ("1",), built_in=False), ModelFormat("openvino-genai", ("1",), built_in=False)),
        generates=True,
        memory="8Gi",
        shared_memory="1Gi",
    ),
    ServingRuntime(
        "conch-vllm",
        "-vllm",
        "FLAVOUR=base EXTRAS=vllm",
        (ModelFormat("huggingface", ("1",), built_in=True),),
        generates=True,
        memory="24Gi",
        shared_memory="4Gi",
        limits=(("nvidia.com/gpu", "1"),),
    ),
)


def runtime_files(version: str) -> Iterator[tuple[str, str]]:
    """Yield the files of the runtimes, by their paths in deploy/kserve, for a version of the image."""
    head = "# Generated by `make deploy-files` from tools/kserve_runtimes.py.\n"
    for runtime in RUNTIMES:
        yield f"runtimes/{runtime.name}.yaml", head + dump_documents(list(runtime.objects(version)))
    note = "# For one namespace: all InferenceServices there with these formats and no `runtime` are served by it.\n"
    yield "serving-runtime.yaml", head + note + dump_documents([RUNTIMES[0].runtime(version, namespaced=True)])
