"""The rules for manifests of Kubernetes and for Helm charts. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

MANIFEST_INVALID = Rule(
    "manifest-invalid",
    _ERROR,
    "Object that does not match the schema of Kubernetes",
    "The API server refuses the object, or drops the unknown field without an effect.",
    "Correct the field; `kubectl explain` shows what an object has.",
)
SCHEMA_UNCHECKED = Rule(
    "schema-unchecked",
    _NOTICE,
    "Manifests that were not compared with the schemas of Kubernetes",
    "Unknown fields and wrong types in them are not found.",
    "Install the schemas: pip install 'conch-server[check]'",
)
CHART_INVALID = Rule(
    "chart-invalid",
    _ERROR,
    "Chart that Helm cannot render",
    "helm install and helm upgrade fail with the same message.",
    "Correct the template or the value that the message names.",
)
CHART_UNRENDERED = Rule(
    "chart-unrendered",
    _NOTICE,
    "Chart that was not rendered",
    "Only the values and what the templates say as they are was checked, not the objects that they create.",
    "Install what renders charts: the program helm, or pip install 'conch-server[charts]'",
)
SELECTOR_MISMATCH = Rule(
    "selector-mismatch",
    _ERROR,
    "Workload whose selector does not match its pods",
    "The API server refuses the workload.",
    "Give the pods in `spec.template.metadata.labels` the labels of `spec.selector.matchLabels`.",
)
SERVICE_SELECTS_NOTHING = Rule(
    "service-selects-nothing",
    _WARNING,
    "Service whose selector matches no pods",
    "The Service has no endpoints: every connection to it fails.",
    "Select labels that the pods have.",
)
PORT_UNKNOWN = Rule(
    "port-unknown",
    _ERROR,
    "Named port that the container does not have",
    "Probes fail for ever, or the Service has no endpoints for the port.",
    "Name the port in the container's `ports`, or use its number.",
)
VOLUME_UNKNOWN = Rule(
    "volume-unknown",
    _ERROR,
    "Mount of a volume that the pod does not have",
    "The API server refuses the pod.",
    "Add the volume to the pod's `volumes`, or correct the name.",
)
PROBE_KILLS_LOADING = Rule(
    "probe-kills-loading",
    _WARNING,
    "Liveness probe that ends a server while it loads models",
    "Kubernetes restarts the server before its models are loaded, for ever.",
    "Add a startupProbe on /v2/health/ready with failureThreshold × periodSeconds above the longest load, such as "
    "30 × 10 s.",
)
PROBE_LIVENESS_READY = Rule(
    "probe-liveness-ready",
    _WARNING,
    "Liveness probe on readiness",
    "A server that reloads a model is not ready for a moment: Kubernetes restarts it instead of waiting.",
    "Use /v2/health/live for the livenessProbe, and /v2/health/ready for the readinessProbe.",
)
PROBE_MISSING = Rule(
    "probe-missing",
    _WARNING,
    "Server without a readiness probe",
    "It receives requests while it loads its models, and they fail.",
    "Add a readinessProbe on /v2/health/ready.",
)
SHM_SMALL = Rule(
    "shm-small",
    _WARNING,
    "Server without a volume at /dev/shm",
    "A container has 64 MiB of shared memory: Python models and tensor parallelism run out of it.",
    "Mount an emptyDir with `medium: Memory` and a sizeLimit at /dev/shm.",
)
GPU_UNLIMITED = Rule(
    "gpu-unlimited",
    _WARNING,
    "GPUs without a limit",
    "The container uses GPUs that the scheduler does not know of: other pods are placed on them, and memory runs out.",
    "Set `resources.limits` nvidia.com/gpu and remove NVIDIA_VISIBLE_DEVICES; to share a GPU, use time slicing, MPS or "
    "MIG of the device plug-in.",
)
GPU_REQUEST = Rule(
    "gpu-request",
    _ERROR,
    "Request of GPUs without an equal limit",
    "The API server refuses the pod: GPUs cannot be overcommitted.",
    "Set `resources.limits` to the same number; the request can be left out.",
)
PDB_BLOCKS_DRAIN = Rule(
    "pdb-blocks-drain",
    _WARNING,
    "PodDisruptionBudget that permits no eviction",
    "Nodes cannot be drained: upgrades of the cluster wait for ever.",
    "Use maxUnavailable: 1, or a minAvailable below the number of replicas.",
)
AUTOSCALER_NO_REQUEST = Rule(
    "autoscaler-no-request",
    _ERROR,
    "Autoscaler on the utilisation of a resource that the pods do not request",
    "Utilisation is a share of the request: the autoscaler shows <unknown> and never scales.",
    "Set `resources.requests` in every container, or scale on a metric of the server.",
)
AUTOSCALER_RANGE = Rule(
    "autoscaler-range",
    _ERROR,
    "Autoscaler with a minimum above its maximum",
    "The API server refuses the autoscaler.",
    "Set minReplicas to at most maxReplicas.",
)
AUTOSCALER_TWICE = Rule(
    "autoscaler-twice",
    _WARNING,
    "Two autoscalers for one workload",
    "Each overwrites the number of replicas of the other.",
    "Keep one; a ScaledObject of KEDA creates its own HorizontalPodAutoscaler.",
)
CONTROL_PUBLIC = Rule(
    "control-public",
    _WARNING,
    "Model control open to the outside",
    "Everyone who reaches the port can load and unload models, and read their files through configuration overrides.",
    "Restrict it with --http-restricted-api=model-repository:KEY=VALUE (and --grpc-restricted-protocol), or make the "
    "Service a ClusterIP.",
)
METRICS_PUBLIC = Rule(
    "metrics-public",
    _NOTICE,
    "Metrics open to the outside",
    "Names of models, tenants and pods, and the load, are public.",
    "Leave the metrics port out of the public Service; give it a ClusterIP Service.",
)
GRACE_PERIOD = Rule(
    "grace-period",
    _WARNING,
    "Exit timeout above the pod's grace period",
    "Kubernetes kills the server while it finishes its requests.",
    "Set terminationGracePeriodSeconds above the server's --exit-timeout-secs.",
)
INIT_CONTAINER_SCRATCH = Rule(
    "init-container-scratch",
    _ERROR,
    "Init container runs a program of an image that has none",
    "An image FROM scratch contains no cp and no shell: the pod stays in Init:CrashLoopBackOff.",
    "Mount the image as a volume (`image:` volume source), serve it with --model-repository=oci://…, or copy a static "
    "program into the image: COPY --from=busybox:1.37-musl /bin/busybox /bin/cp",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
