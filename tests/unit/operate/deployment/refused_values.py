"""Values that are refused, with the texts of the refusals."""

from typing import Any

_COUNTER = {
    "type": "Pods",
    "pods": {
        "metric": {"name": "nv_inference_request_success"},
        "target": {"type": "AverageValue", "averageValue": "1000"},
    },
}
CRON = {"type": "cron", "name": "a", "metadata": {"timezone": "UTC"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"environment": [{"name": "shm-size", "value": "5g"}]},
        "environment: shm-size does not change the size of /dev/shm; set sharedMemory.size",
    ),
    ({"environment": [{"name": "SHM_SIZE", "value": "5g"}]}, "environment: SHM_SIZE does not change"),
    (
        {"environment": [{"name": "CONCH_OPENAI_API_KEY", "value": "sk-1"}]},
        "environment: CONCH_OPENAI_API_KEY contains a secret; put the keys in a Secret, and set secrets.apiKeys",
    ),
    (
        {"server": {"extraArgs": ["--log-verbose=1", "--http-port=9000"]}},
        "server.extraArgs: --http-port is set by the chart; use service.httpPort",
    ),
    (
        {"server": {"extraArgs": ["--openai-api-key=sk-1"]}},
        "server.extraArgs: --openai-api-key is set by the chart; use secrets.apiKeys",
    ),
    (
        {"server": {"extraArgs": ["--incident-dir=/tmp/incidents"]}},
        "server.extraArgs: --incident-dir is set by the chart; use incidents.enabled",
    ),
    ({"podSpec": {"volumes": []}}, "podSpec: volumes is set by the chart; use extraVolumes"),
    ({"service": {"spec": {"type": "NodePort"}}}, "service.spec: type is set by the chart; use service.type"),
    (
        {"modelRepository": {"claimName": "models", "pull": "registry.example.com/models:1"}},
        "modelRepository: claimName, image, pull and volume exclude each other; set one of them",
    ),
    (
        {"modelRepositoryPath": "s3://models", "modelRepository": {"claimName": "models"}},
        "modelRepository.path: s3://models is not a folder; set none of claimName, image, pull and volume",
    ),
    (
        {"modelRepository": {"image": "registry.example.com/models:1"}},
        "modelRepository.image: image volumes need kubernetesVersion 1.31 or later; use modelRepository.pull",
    ),
    (
        {"model": {"name": "gpt2"}, "server": {"modelControlMode": "poll"}},
        "server.modelControlMode: poll excludes server.loadModels; use none or explicit",
    ),
    ({"accelerator": {"sharing": "mig"}}, "accelerator: sharing mig and migProfile go together; set both or none"),
    ({"accelerator": {"migProfile": "1g.5gb"}}, "accelerator: sharing mig and migProfile go together"),
    (
        {"gpu": ["NVIDIA-A10G"], "affinity": {"nodeAffinity": {}}},
        "affinity.nodeAffinity: accelerator.products and accelerator.sharing set it; remove it, or them",
    ),
    ({"accelerator": {"sharing": "mps"}, "affinity": {"nodeAffinity": {}}}, "affinity.nodeAffinity: "),
    ({"monitoring": {"scrapeTimeoutSeconds": 7}}, "monitoring.scrapeTimeoutSeconds 7 exceeds monitoring.interval"),
    ({"autoscaling": {"type": "hpa", "minReplicas": 9}}, "autoscaling.minReplicas 9 exceeds autoscaling.maxReplicas 4"),
    ({"autoscaling": {"type": "hpa", "minReplicas": 0}}, "minReplicas 0 needs autoscaling.type keda"),
    ({"autoscaling": {"type": "hpa", "metrics": []}}, "the autoscaler needs one metric"),
    (
        {"autoscaling": {"type": "hpa", "customMetrics": [_COUNTER]}},
        "autoscaling.customMetrics has 'nv_inference_request_success', a counter: it only grows",
    ),
    ({"autoscaling": {"type": "keda", "minReplicas": 0}}, "minReplicas 0 needs a trigger in autoscaling.keda.triggers"),
    ({"autoscaling": {"type": "keda", "metrics": []}}, "the autoscaler needs one trigger"),
    (
        {"autoscaling": {"type": "keda", "keda": {"fallback": {"replicas": 5}}}},
        "autoscaling.keda.fallback.replicas 5 exceeds autoscaling.maxReplicas 4",
    ),
    ({"autoscaling": {"type": "keda", "keda": {"authentication": {"mode": "tls"}}}}, "secretName is empty"),
    ({"disruptionBudget": {"minAvailable": "1"}}, "needs either minAvailable or maxUnavailable"),
    ({"disruptionBudget": {"maxUnavailable": ""}}, "needs either minAvailable or maxUnavailable"),
    ({"disruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable 0 keeps all pods"),
    ({"disruptionBudget": {"maxUnavailable": "0%"}}, "maxUnavailable 0% keeps all pods, so no node can be drained"),
    (
        {"disruptionBudget": {"minAvailable": 1, "maxUnavailable": ""}},
        "disruptionBudget.minAvailable 1 keeps 1 of 1 replicas, so no node can be drained; use maxUnavailable 1",
    ),
    (
        {"disruptionBudget": {"minAvailable": "67%", "maxUnavailable": ""}, "replicaCount": 3},
        "disruptionBudget.minAvailable 67% keeps 3 of 3 replicas",
    ),
    (
        {
            "disruptionBudget": {"minAvailable": "2", "maxUnavailable": ""},
            "autoscaling": {"type": "hpa", "minReplicas": 2},
            "replicaCount": 9,
        },
        "disruptionBudget.minAvailable 2 keeps 2 of 2 replicas",
    ),
    ({"server": {"logFormat": None}}, "server.logFormat: null is not valid; leave the key out for the default"),
    (
        {"resources": {"limits": {"memory": "25GB"}}},
        "resources.limits.memory: 25GB is not a valid quantity, such as 500m, 2 or 4Gi",
    ),
    ({"resources": {"requests": {"cpu": -1}}}, "resources.requests.cpu: -1 is not a valid quantity"),
    ({"resources": {"limits": "4Gi"}}, "resources.limits is not a mapping of resources to quantities"),
    ({"resources": {"limit": {"cpu": 1}}}, "resources: unknown key 'limit'; Known: claims, limits, requests"),
    ({"podLabels": {"app": "other"}}, "podLabels: app is set by the chart; use another label"),
    ({"service": {"grpcPort": 8000}}, "service.grpcPort 8000 equals service.httpPort; use another port"),
    ({"service": {"metricsPort": 8001}}, "service.metricsPort 8001 equals service.grpcPort; use another port"),
    ({"secrets": {"tls": {"http": True}}}, "secrets.tls.http needs secrets.tls.secretName: without a certificate"),
    (
        {"secrets": {"tls": {"secretName": "a", "mutual": True, "grpc": False}}},
        "secrets.tls.mutual needs secrets.tls.grpc: clients of HTTP show no certificate",
    ),
    ({"secrets": {"tls": {"mutual": True}}}, "secrets.tls.mutual needs secrets.tls.secretName: without a certificate"),
    (
        {"workload": {"maxSurge": "0%", "maxUnavailable": 0}},
        "workload.maxUnavailable and workload.maxSurge are 0, so no pod can be replaced; set one of them to 1",
    ),
    (
        {"resources": {"requests": {"memory": "8Gi"}, "limits": {"memory": "4G"}}},
        "resources.requests.memory 8Gi exceeds resources.limits.memory 4G",
    ),
    (
        {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
        "resources.requests.cpu 2 exceeds resources.",
    ),
    (
        {"resources": {"requests": {"nvidia.com/gpu": 1}}},
        "resources.requests.nvidia.com/gpu 1 needs the same amount in resources.limits, as it is a device",
    ),
    (
        {"resources": {"requests": {"nvidia.com/gpu": 1}}, "accelerator": {"count": 2}},
        "resources.requests.nvidia.com/gpu 1 needs the same amount",
    ),
    (
        {"resources": {"claims": [{"name": "gpu"}]}, "podSpec": {"resourceClaims": [{"name": "other"}]}},
        "resources.claims: 'gpu' is not in podSpec.resourceClaims; add it there",
    ),
    ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims: 'gpu' is not in podSpec.resourceClaims"),
    (
        {"autoscaling": {"type": "hpa", "resources": [{}]}, "resources": {"requests": {"cpu": None}}},
        "autoscaling.resources: cpu needs resources.requests.cpu",
    ),
    (
        {"extraContainers": [{"name": "server", "image": "proxy"}]},
        "extraContainers: name 'server' is used by the pod already; use another one",
    ),
    ({"extraContainers": [{"image": "proxy"}]}, "extraContainers: an entry has no name"),
    (
        {"extraContainers": [{"name": "a", "image": "b"}], "extraInitContainers": [{"name": "a", "image": "b"}]},
        "extraInitContainers: name 'a' is used by the pod already",
    ),
    (
        {"extraInitContainers": [{"name": "models"}], "modelRepository": {"pull": "registry.example.com/models:1"}},
        "extraInitContainers: name 'models' is used by the pod already",
    ),
    ({"extraInitContainers": [{"name": "a"}, {"name": "a"}]}, "extraInitContainers: name 'a' is given twice"),
    ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes: name 'tmp' is used by the pod already"),
    (
        {"extraVolumes": [{"name": "cache", "emptyDir": {}}], "workload": {"kind": "StatefulSet"}},
        "extraVolumes: name 'cache' is used by the pod already",
    ),
    (
        {"extraVolumes": [{"name": "a", "emptyDir": {}}], "extraVolumeMounts": [{"name": "a", "mountPath": "/tmp"}]},
        "extraVolumeMounts: mountPath '/tmp' is used by the pod already",
    ),
    (
        {"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]},
        "extraVolumeMounts: 'a' is not a volume of the pod; add it to extraVolumes",
    ),
    (
        {"autoscaling": {"type": "hpa", "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}}},
        "autoscaling.behavior.scaleDown.stabilizationWindowSeconds: 3601 is not an integer from 0 to 3600",
    ),
    (
        {"autoscaling": {"type": "keda", "behavior": {"scaleUp": {"stabilizationWindowSeconds": -1}}}},
        "autoscaling.behavior.scaleUp.stabilizationWindowSeconds: -1 is not an integer from 0 to 3600",
    ),
    (
        {
            "autoscaling": {
                "type": "hpa",
                "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}},
            }
        },
        "autoscaling.behavior.scaleUp.policies.periodSeconds: 1801 is not an integer from 1 to 1800",
    ),
    (
        {
            "autoscaling": {
                "type": "hpa",
                "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]}},
            }
        },
        "autoscaling.behavior.scaleUp.policies.value: 0 is not an integer from 1 to",
    ),
    ({"environment": [{"name": "POD_NAME"}]}, "environment: name 'POD_NAME' is used by the pod already"),
    ({"environment": [{"name": "A"}, {"name": "A"}]}, "environment: name 'A' is given twice"),
    (
        {"environment": [{"name": "A"}], "secretEnvironment": [{"name": "A", "secretName": "s", "key": "k"}]},
        "secretEnvironment: name 'A' is used by the pod already",
    ),
    ({"image": {"pullSecrets": [{"name": "a"}, {"name": "a"}]}}, "image.pullSecrets: name 'a' is given twice"),
    (
        {"topologySpread": {"topologyKeys": ["zone", "zone"]}},
        "topologySpread.topologyKeys: topologyKey 'zone' is given twice",
    ),
    (
        {"autoscaling": {"type": "keda", "keda": {"triggers": [CRON, CRON]}}},
        "autoscaling.keda.triggers: name 'a' is given twice",
    ),
    (
        {"autoscaling": {"type": "keda", "keda": {"triggers": [{"type": "cron"}]}}},
        "autoscaling.keda.triggers[0] needs type and metadata, such as {type: cron, metadata: {timezone: UTC}}",
    ),
    (
        {"autoscaling": {"type": "keda", "keda": {"triggers": [{"type": "cron", "metadata": {"desiredReplicas": 3}}]}}},
        "autoscaling.keda.triggers[0].metadata.desiredReplicas is not a text; quote it",
    ),
]

# What the schema refuses: `conch k8s render` names the place and what is allowed there, Helm the place.
INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"image": None}, "image: null is not valid; leave the key out", "values: image: null is not valid"),
    ({"replicas": 2}, "unknown key 'replicas'; did you mean 'replicaCount'?", "replicas"),
    ({"image": {"version": "1"}}, "unknown key 'image.version'; Known: name, repository", "version"),
    ({"image": {"tag": 24.06}}, "image.tag: got number, want string; quote it (Tag; ", "/image/tag"),
    ({"image": {"digest": "sha256:1"}}, "image.digest: 'sha256:1' does not match", "/image/digest"),
    ({"image": {"pullPolicy": "Sometimes"}}, "one of 'Always', 'IfNotPresent', 'Never'", "/image/pullPolicy"),
    ({"replicaCount": -1}, "replicaCount: expected an integer from 0 to 2147483647 (Replicas; ", "/replicaCount"),
    ({"service": {"httpPort": 65536}}, "service.httpPort: expected an integer from 1 to 65535", "/service/httpPort"),
    ({"sharedMemory": {"size": "5g"}}, "sharedMemory.size: ", "/sharedMemory/size"),
    ({"workload": {"kind": "DaemonSet"}}, "one of 'Deployment', 'StatefulSet'", "/workload/kind"),
    ({"modelRepository": {"path": "models"}}, "modelRepository.path: ", "/modelRepository/path"),
    ({"kubernetesVersion": "1.29"}, "kubernetesVersion: ", "/kubernetesVersion"),
    (
        {"environment": [{"name": "A", "value": 1}]},
        "environment[0].value: got number, want string",
        "/environment/0/value",
    ),
    (
        {"secretEnvironment": [{"name": "A"}]},
        "secretEnvironment[0]: missing properties",
        "/secretEnvironment/0",
    ),
    ({"nodeSelector": {"gpu": True}}, "nodeSelector.gpu: got boolean, want string; quote", "/nodeSelector/gpu"),
    ({"cache": {"size": "5GB"}}, "cache.size: '5GB' does not match", "/cache/size"),
    ({"cache": {"size": "5GB"}}, "such as 512Mi or 8Gi (Size limit; ", "/cache/size"),
    (
        {"autoscaling": {"metrics": [{"name": "triton:queue:ratio"}]}},
        "autoscaling.metrics[0].name: value must be one of 'triton:queue_compute:ratio', ",
        "/autoscaling/metrics/0/name",
    ),
    ({"gpu": "NVIDIA-A10G"}, "gpu: got string, want array", "/gpu"),
    ({"autoscaling": {"type": "both"}}, "autoscaling.type: ", "/autoscaling/type"),
    ({"autoscaling": {"type": "both"}}, "one of 'none', 'hpa', 'keda'", "/autoscaling/type"),
    ({"autoscaling": {"hpa": {"enabled": True}}}, "unknown key 'autoscaling.hpa'; Known: type, minReplicas", "hpa"),
    ({"monitoring": {"monitor": "podmonitor"}}, "one of 'PodMonitor', 'ServiceMonitor', 'none'", "/monitoring/monitor"),
    ({"monitoring": {"rules": {"thresholds": {"objective": 99.9}}}}, "rules.thresholds.objective", "/objective"),
    ({"networkPolicy": {"metricsNamespace": ""}}, "Namespace of Prometheus", "/networkPolicy/metricsNamespace"),
    (
        {"autoscaling": {"metrics": [{"name": "nv_inference_count"}]}},
        "autoscaling.metrics[0].name: value must be one of",
        "/autoscaling/metrics",
    ),
    ({"autoscaling": {"metrics": [{"averageValue": "2Gi"}]}}, "averageValue", "/autoscaling/metrics"),
    ({"podLabels": {"owner": "us", "team": "a b"}}, "podLabels.team: 'a b' does not match", "/podLabels/team"),
    ({"podLabels": {"a": "b", "team": "x" * 64}}, "podLabels.team: maxLength: got 64, want 63", "/podLabels/team"),
    ({"podLabels": {"a b": "c"}}, "values: 'a b' does not match", "invalid propertyName 'a b'"),
    ({"podAnnotations": {"-a": "c"}}, "values: '-a' does not match", "propertyName '-a'"),
    (
        {"workload": {"progressDeadlineSeconds": 0}},
        "progressDeadlineSeconds: expected an integer from 1",
        "progressDeadline",
    ),
    ({"environment": [{"name": "A=B", "value": ""}]}, "environment[0].name: 'A=B' does not", "/environment/0/name"),
    ({"secrets": {"apiKeys": {"key": "a/b"}}}, "secrets.apiKeys.key: 'a/b' does not match", "/secrets/apiKeys/key"),
    ({"workload": {"maxUnavailable": "101%"}}, "workload.maxUnavailable: '101%' does not match", "maxUnavailable"),
    ({"disruptionBudget": {"minAvailable": "101%"}}, "minAvailable: '101%' does not match", "minAvailable"),
    ({"autoscaling": {"maxReplicas": 2**31}}, "maxReplicas: expected an integer from 1 to 2147483647", "maxReplicas"),
    ({"nodeSelector": {"gpu": "A100/40"}}, "nodeSelector.gpu: 'A100/40' does not match", "/nodeSelector/gpu"),
    ({"monitoring": {"labels": {"a": "_"}}}, "monitoring.labels.a: '_' does not match", "/monitoring/labels/a"),
    ({"serviceAccount": {"name": "Server"}}, "serviceAccount.name: 'Server' does not", "/serviceAccount/name"),
    ({"priorityClassName": "high_prio"}, "priorityClassName: 'high_prio' does not match", "/priorityClassName"),
    ({"cache": {"claimName": "My Cache"}}, "cache.claimName: 'My Cache' does not match", "/cache/claimName"),
    ({"image": {"pullSecrets": [{"name": "A"}]}}, "image.pullSecrets[0].name: 'A' does not", "pullSecrets/0/name"),
]
