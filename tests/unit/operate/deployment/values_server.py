"""Cases of the server's own objects."""

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
CONTAINER = {"name": "extra", "image": "registry.example.com/extra:1"}

CASES: dict[str, dict[str, Any]] = {
    "image by tag": {"image": {"tag": "1.2", "pullSecrets": [{"name": "registry"}]}, "replicaCount": 0},
    "image by digest": {"image": {"digest": DIGEST, "pullPolicy": "Always"}},
    "image by name": {"image": {"name": "registry.example.com/conch:2", "digest": DIGEST}},
    "services": {
        "service": {
            "type": "LoadBalancer",
            "httpPort": 80,
            "labels": {"team": "vision", "app.kubernetes.io/component": "front"},
            "annotations": {"a": "true"},
            "spec": {"externalTrafficPolicy": "Local"},
        },
        "metricsService": {"port": 9090, "labels": {"scraped": "yes"}, "annotations": {"b": "1"}},
    },
    "server flags": {
        "server": {
            "exitTimeoutSecs": 300,
            "loadModels": ["densenet_onnx", "simple: echo"],
            "logFormat": "json",
            "limitsKubernetes": True,
            "extraArgs": ["--log-verbose=1", "--metrics-config=summary_latencies=true"],
        },
        "environment": [{"name": "A", "value": "1"}, {"name": "EMPTY"}],
        "secretEnvironment": [{"name": "B", "secretName": "b", "key": "c"}],
        "environmentFrom": [{"configMapRef": {"name": "settings"}}],
    },
    "mode poll": {"server": {"modelControlMode": "poll"}, "modelRepository": {"path": "s3://models/production"}},
    "without a token of the account": {"serviceAccount": {"create": False}, "termination": {"preStopSeconds": 0}},
    "own account": {
        "serviceAccount": {"name": "identity", "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}},
        "server": {"limitsKubernetes": True},
    },
    "foreign account": {"serviceAccount": {"create": False, "name": "others"}},
    "repository in a claim": {"modelRepository": {"claimName": "models", "subPath": "production"}},
    "repository in an image volume": {
        "kubernetesVersion": "1.33",
        "modelRepository": {"image": "registry.example.com/models:1", "path": "/opt/models"},
    },
    "repository by an init container": {
        "modelRepository": {
            "pull": "registry.example.com/models:1",
            "pullArgs": ["--model=densenet_onnx"],
            "registrySecret": "registry",
        },
        "extraInitContainers": [CONTAINER],
    },
    "repository by an init container, without login": {"modelRepository": {"pull": "registry.example.com/models:1"}},
    "repository on the node": {"modelRepository": {"volume": {"hostPath": {"path": "/opt/triton-models"}}}},
    "repository in S3": {
        "modelRepository": {"path": "s3://bucket/models", "credentialsSecret": "aws", "registrySecret": "registry"}
    },
    "secrets": {
        "secrets": {
            "hubToken": {"secretName": "hf-model-pull", "key": "password"},
            "apiKeys": {"secretName": "keys", "key": "keys.txt"},
            "tls": {"secretName": "certificate", "mutual": True},
        }
    },
    "TLS of the server only": {"secrets": {"tls": {"secretName": "certificate"}}},
    "TLS of all ports": {
        "secrets": {"tls": {"secretName": "certificate", "http": True, "metrics": True}},
        "service": {"metricsPort": 8002},
        "monitoring": {"enabled": True},
    },
    "TLS of HTTP only": {"secrets": {"tls": {"secretName": "certificate", "http": True, "grpc": False}}},
    "TLS of metrics only": {
        "secrets": {"tls": {"secretName": "certificate", "metrics": True, "grpc": False}},
        "monitoring": {"enabled": True, "monitor": "ServiceMonitor"},
    },
    "stateful": {"workload": {"kind": "StatefulSet", "annotations": {"a": "b"}}, "cache": {"storageClassName": "fast"}},
    "stateful, default class": {"workload": {"kind": "StatefulSet"}, "autoscaling": {"type": "hpa"}},
    "stateful with one claim": {"workload": {"kind": "StatefulSet"}, "cache": {"claimName": "shared"}},
    "incidents": {"incidents": {"enabled": True, "size": "500Mi"}},
    "incidents in a claim": {"incidents": {"enabled": True, "claimName": "incidents"}},
    "recreate": {"workload": {"updateStrategy": "Recreate"}, "cache": {"claimName": "cache"}},
    "rolling by percent": {"workload": {"maxUnavailable": "25%", "maxSurge": "50%"}},
    "devices": {
        "parallelism": {"tensor": 4, "pipeline": 2},
        "resources": {"limits": {"memory": "64Gi"}, "requests": None},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}],
    },
    "devices by number": {"accelerator": {"count": 2, "resource": "aws.amazon.com/neuron", "tolerate": False}},
    "products": {
        "accelerator": {"products": ["NVIDIA-A10G", "NVIDIA-L4"], "runtimeClassName": "nvidia"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    },
    "time slices": {"accelerator": {"sharing": "time-slicing", "products": ["Tesla-T4"]}},
    "MPS": {"accelerator": {"sharing": "mps"}},
    "MIG": {"accelerator": {"sharing": "mig", "migProfile": "1g.10gb", "count": 2}},
    "all devices": {"accelerator": {"sharing": "all-devices", "runtimeClassName": "nvidia"}},
    "scheduling": {
        "kubernetesVersion": "1.31",
        "priorityClassName": "serving",
        "resources": {"claims": [{"name": "gpu"}]},
        "nodeSelector": {"pool": "gpu"},
        "topologySpread": {"topologyKeys": []},
        "podLabels": {"app.kubernetes.io/part-of": "shop"},
        "podAnnotations": {"sidecar.istio.io/inject": "true"},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "podSpec": {
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.1"]},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        },
    },
    "extra parts": {
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        "extraContainers": [CONTAINER],
        "extraInitContainers": [{**CONTAINER, "name": "first"}],
    },
    "no security contexts, as null removes what is there": {
        "podSecurityContext": dict.fromkeys(
            ("runAsNonRoot", "runAsUser", "fsGroup", "fsGroupChangePolicy", "seccompProfile")
        ),
        "securityContext": dict.fromkeys(("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities")),
        "resources": {"requests": None},
        "modelRepository": {"pull": "registry.example.com/models:1"},
    },
    "names of other charts": {
        "gpu": ["NVIDIA-A10G"],
        "model": {"name": "gpt2", "tensorrtLlm": {"parallelism": {"tensor": 2, "pipeline": 2}}},
        "triton": {"image": {"name": "registry.example.com/custom:1", "pullSecrets": [{"name": "ngc-container-pull"}]}},
        "modelRepositoryPath": "s3://bucket/model_repository",
    },
    "no connection test": {"connectionTest": {"enabled": False}},
    "a connection test where metadata need a key": {"secrets": {"apiKeys": {"secretName": "keys"}}},
}
