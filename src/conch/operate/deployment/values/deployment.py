"""All values of a deployment."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.monitoring import MonitoringValues
from conch.operate.deployment.values.network.metrics_service import MetricsServiceValues
from conch.operate.deployment.values.network.network_policy import NetworkPolicyValues
from conch.operate.deployment.values.network.service import ConnectionTestValues, ServiceValues
from conch.operate.deployment.values.other_charts import ModelValues, TritonValues
from conch.operate.deployment.values.pod.accelerator import AcceleratorValues, ParallelismValues
from conch.operate.deployment.values.pod.container import (
    CacheValues,
    EnvironmentVariable,
    ProbesValues,
    SecretVariable,
    SharedMemoryValues,
    TemporaryFilesValues,
)
from conch.operate.deployment.values.pod.image import ImageValues
from conch.operate.deployment.values.pod.limits import LimitAnnotationValues
from conch.operate.deployment.values.pod.model_repository import ModelRepositoryValues
from conch.operate.deployment.values.pod.secrets import SecretsValues
from conch.operate.deployment.values.pod.server import ServerValues
from conch.operate.deployment.values.pod.service_account import ServiceAccountValues
from conch.operate.deployment.values.pod.workload import TerminationValues, TopologySpreadValues, WorkloadValues
from conch.operate.deployment.values.scaling.autoscaling import AutoscalingValues
from conch.operate.deployment.values.scaling.disruption import DisruptionBudgetValues
from conch.operate.deployment.values.section import Annotations, Count, KubernetesPart, Labels, ObjectName, Section


def _resources() -> KubernetesPart:
    return {"requests": {"cpu": "500m", "memory": "1Gi"}}


def _pod_security_context() -> KubernetesPart:
    return {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _security_context() -> KubernetesPart:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


class DeploymentValues(Section, frozen=True):
    """The values of a release: what values.yaml of the chart contains."""

    kubernetes_version: Annotated[
        str,
        Meta(
            pattern=r"^1\.[3-9][0-9]$",
            examples=["1.30"],
            description="Oldest version of the cluster's nodes; it decides about fields that older ones lack",
        ),
    ] = "1.30"
    replica_count: Annotated[Count, Meta(description="Replicas; an autoscaler takes precedence")] = 1
    image: Annotated[ImageValues, Meta(description="The server's image")] = field(default_factory=ImageValues)
    server: Annotated[ServerValues, Meta(description="Flags of the server")] = field(default_factory=ServerValues)
    model_repository: Annotated[ModelRepositoryValues, Meta(description="Where the models come from")] = field(
        default_factory=ModelRepositoryValues
    )
    parallelism: Annotated[ParallelismValues, Meta(description="How a model is split over the GPUs of one pod")] = (
        field(default_factory=ParallelismValues)
    )
    accelerator: Annotated[AcceleratorValues, Meta(description="GPUs and other devices of a pod")] = field(
        default_factory=AcceleratorValues
    )
    resources: Annotated[
        KubernetesPart, Meta(description="Requests and limits of the server; devices are added to the limits")
    ] = field(default_factory=_resources)
    environment: Annotated[
        tuple[EnvironmentVariable, ...], Meta(description="Variables of the server: `[{name: …, value: …}]`")
    ] = ()
    secret_environment: Annotated[
        tuple[SecretVariable, ...],
        Meta(description="Variables whose values are in Secrets: `[{name: …, secretName: …, key: …}]`"),
    ] = ()
    environment_from: Annotated[
        tuple[KubernetesPart, ...], Meta(description="EnvFromSource objects: ConfigMaps and Secrets with variables")
    ] = ()
    secrets: Annotated[SecretsValues, Meta(description="Secrets that exist in the namespace")] = field(
        default_factory=SecretsValues
    )
    shared_memory: Annotated[SharedMemoryValues, Meta(description="Volume at /dev/shm")] = field(
        default_factory=SharedMemoryValues
    )
    temporary_files: Annotated[TemporaryFilesValues, Meta(description="Volume at /tmp")] = field(
        default_factory=TemporaryFilesValues
    )
    cache: Annotated[
        CacheValues, Meta(description="Volume at /cache: copies of remote repositories and of the Hub's models")
    ] = field(default_factory=CacheValues)
    workload: Annotated[WorkloadValues, Meta(description="The Deployment or StatefulSet")] = field(
        default_factory=WorkloadValues
    )
    probes: Annotated[ProbesValues, Meta(description="Probes of the server")] = field(default_factory=ProbesValues)
    termination: Annotated[TerminationValues, Meta(description="How a pod ends")] = field(
        default_factory=TerminationValues
    )
    service: Annotated[ServiceValues, Meta(description="The Service for clients, called like the release")] = field(
        default_factory=ServiceValues
    )
    connection_test: Annotated[
        ConnectionTestValues, Meta(description="The pod of `helm test`; `conch k8s render` leaves it out")
    ] = field(default_factory=ConnectionTestValues)
    metrics_service: Annotated[
        MetricsServiceValues, Meta(description="The Service for metrics, `<release>-metrics`")
    ] = field(default_factory=MetricsServiceValues)
    monitoring: Annotated[MonitoringValues, Meta(description="Objects of the Prometheus operator")] = field(
        default_factory=MonitoringValues
    )
    autoscaling: Annotated[AutoscalingValues, Meta(description="How the number of replicas follows the load")] = field(
        default_factory=AutoscalingValues
    )
    disruption_budget: Annotated[
        DisruptionBudgetValues, Meta(description="How many pods may be missing while nodes are drained")
    ] = field(default_factory=DisruptionBudgetValues)
    network_policy: Annotated[NetworkPolicyValues, Meta(description="Who may connect to the pods")] = field(
        default_factory=NetworkPolicyValues
    )
    limits: Annotated[
        LimitAnnotationValues, Meta(description="Limits of requests and tokens per second, as annotations")
    ] = field(default_factory=LimitAnnotationValues)
    service_account: Annotated[ServiceAccountValues, Meta(description="The service account of the pods")] = field(
        default_factory=ServiceAccountValues
    )
    node_selector: Annotated[Labels, Meta(description="Labels of the nodes for the pods")] = field(default_factory=dict)
    tolerations: Annotated[tuple[KubernetesPart, ...], Meta(description="Toleration objects")] = ()
    affinity: Annotated[
        KubernetesPart, Meta(description="Affinity object; accelerator.products adds the affinity to nodes")
    ] = field(default_factory=dict)
    topology_spread: Annotated[TopologySpreadValues, Meta(description="How replicas are spread")] = field(
        default_factory=TopologySpreadValues
    )
    priority_class_name: Annotated[ObjectName, Meta(description="PriorityClass of the pods")] = ""
    pod_labels: Annotated[Labels, Meta(description="More labels of the pods")] = field(default_factory=dict)
    pod_annotations: Annotated[Annotations, Meta(description="Annotations of the pods")] = field(default_factory=dict)
    pod_security_context: Annotated[
        KubernetesPart, Meta(description="PodSecurityContext; `runAsUser: null` lets OpenShift choose the user")
    ] = field(default_factory=_pod_security_context)
    security_context: Annotated[KubernetesPart, Meta(description="SecurityContext of the containers")] = field(
        default_factory=_security_context
    )
    pod_spec: Annotated[
        KubernetesPart, Meta(description="More fields of the pod's spec, such as dnsConfig or hostNetwork")
    ] = field(default_factory=dict)
    extra_volumes: Annotated[tuple[KubernetesPart, ...], Meta(description="More Volume objects")] = ()
    extra_volume_mounts: Annotated[
        tuple[KubernetesPart, ...], Meta(description="More VolumeMount objects of the server")
    ] = ()
    extra_containers: Annotated[tuple[KubernetesPart, ...], Meta(description="More Container objects")] = ()
    extra_init_containers: Annotated[
        tuple[KubernetesPart, ...], Meta(description="More Container objects that run before the server")
    ] = ()
    gpu: Annotated[tuple[str, ...], Meta(description="Other charts' name of accelerator.products")] = ()
    model: Annotated[ModelValues, Meta(description="Other charts' names of server.loadModels and parallelism")] = field(
        default_factory=ModelValues
    )
    triton: Annotated[TritonValues, Meta(description="Other charts' names of image.name and image.pullSecrets")] = (
        field(default_factory=TritonValues)
    )
    model_repository_path: Annotated[
        str,
        Meta(
            pattern=r"^((/.+|(s3|gs|as|oci|https?)://.+))?$",
            description="Other charts' name of modelRepository.path",
        ),
    ] = ""
    global_values: Annotated[
        KubernetesPart, Meta(description="What a chart that contains this one shares among its parts; ignored")
    ] = field(default_factory=dict, name="global")

    @property
    def kubernetes_minor(self) -> int:
        """The minor part of the cluster's version: 30 of 1.30."""
        return int(self.kubernetes_version.partition(".")[2])
