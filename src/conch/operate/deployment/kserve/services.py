"""InferenceServices: an example of each way to use the runtimes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CLASS = "serving.kserve.io/autoscalerClass"
_MODE = "serving.kserve.io/deploymentMode"
_STANDARD = {_MODE: "Standard"}
# While the proxies still send requests to a pod that ends. Knative drains by itself, and allows no such hook.
_DRAIN = {"preStop": {"sleep": {"seconds": 5}}}
_RATIO = 'avg(triton:queue_compute:ratio{{namespace="models", pod=~"{name}-predictor-.*"}})'


@dataclass(frozen=True, slots=True)
class KServeService:
    """One InferenceService. `model` and `predictor` are further fields of the specification's parts of these names."""

    name: str
    about: str
    format: str
    storage_uri: str
    runtime: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    predictor: Mapping[str, Any] = field(default_factory=dict)

    def object(self) -> dict[str, Any]:
        """Return the object."""
        metadata: dict[str, Any] = {"name": self.name}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        model = {
            "modelFormat": {"name": self.format},
            "protocolVersion": "v2",
            "runtime": self.runtime,
            "storageUri": self.storage_uri,
            **self.model,
        }
        return {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": metadata,
            "spec": {"predictor": {**self.predictor, "model": model}},
        }


SERVICES = (
    KServeService(
        "densenet",
        "an ONNX file, scaled by Knative on concurrent requests, down to none",
        "onnx",
        "s3://models/densenet",
        "conch",
        predictor={"minReplicas": 0, "maxReplicas": 4, "scaleMetric": "concurrency", "scaleTarget": 8},
    ),
    KServeService(
        "densenet-grpc",
        "the same model over gRPC",
        "onnx",
        "s3://models/densenet",
        "conch-grpc",
        model={"protocolVersion": "grpc-v2"},
    ),
    KServeService(
        "densenet-canary",
        "a tenth of the requests for the model at a new place; apply over the service that has the old one",
        "onnx",
        "s3://models/densenet-2",
        "conch",
        predictor={"canaryTrafficPercent": 10},
    ),
    KServeService(
        "densenet-keda",
        "a Deployment that KEDA scales on the ratio of queue time to compute time, by the shipped recording rule",
        "onnx",
        "s3://models/densenet",
        "conch",
        annotations={**_STANDARD, _CLASS: "keda"},
        model={"lifecycle": _DRAIN},
        predictor={
            "minReplicas": 1,
            "maxReplicas": 4,
            "autoScaling": {
                "metrics": [
                    {
                        "type": "External",
                        "external": {
                            "metric": {
                                "backend": "prometheus",
                                "serverAddress": "http://prometheus-operated.monitoring:9090",
                                "query": _RATIO.format(name="densenet-keda"),
                            },
                            "target": {"type": "Value", "value": "1"},
                        },
                    }
                ]
            },
        },
    ),
    KServeService(
        "densenet-hpa",
        "a Deployment that the HPA scales on CPU",
        "onnx",
        "pvc://models/densenet",
        "conch",
        annotations={**_STANDARD, _CLASS: "hpa"},
        model={"lifecycle": _DRAIN},
        predictor={"minReplicas": 1, "maxReplicas": 4, "scaleMetric": "cpu", "scaleTarget": 80},
    ),
    KServeService(
        "iris-xgboost", "a forest of XGBoost", "xgboost", "gs://kfserving-examples/models/xgboost/iris", "conch-trees"
    ),
    KServeService(
        "iris-lightgbm",
        "a forest of LightGBM",
        "lightgbm",
        "gs://kfserving-examples/models/lightgbm/iris",
        "conch-trees",
    ),
    KServeService(
        "iris-sklearn",
        "model.joblib, a pickle: the flag states that its source is trusted to run code",
        "sklearn",
        "gs://kfserving-examples/models/sklearn/1.0/model",
        "conch-trees",
        model={"args": ["--allow-pickled-models=true"]},
    ),
    KServeService(
        "detector",
        "a repository of Triton in an OCI image, with Python models and an ensemble (a modelcar)",
        "triton",
        "oci://registry.example.com/team/models:1",
        "conch",
    ),
    KServeService(
        "chat",
        "a language model on the CPU; of several GGUF files in the folder the argument chooses one",
        "gguf",
        "hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        "conch-genai",
        model={"args": ["--model-dir=/mnt/models/qwen2.5-0.5b-instruct-q4_k_m.gguf"]},
    ),
    KServeService(
        "chat-vllm",
        "a language model on a GPU; max_model_len and others are in the model.json beside the checkpoint",
        "huggingface",
        "hf://Qwen/Qwen2.5-1.5B-Instruct",
        "conch-vllm",
        predictor={"minReplicas": 1, "timeout": 600},
    ),
)
