"""The Services of a release."""

from typing import Annotated, Literal

from msgspec import Meta, field

from conch.operate.deployment.values.section import Annotations, KubernetesPart, Labels, Port, Section


class ServiceValues(Section, frozen=True):
    """The Service for clients, over HTTP and gRPC."""

    type: Annotated[
        Literal["ClusterIP", "NodePort", "LoadBalancer"], Meta(description="Who reaches it: the cluster or others")
    ] = "ClusterIP"
    http_port: Annotated[Port, Meta(description="Port of the Service for HTTP")] = 8000
    grpc_port: Annotated[Port, Meta(description="Port of the Service for gRPC")] = 8001
    metrics_port: Annotated[
        Port | None, Meta(description="Port for metrics on this Service too; null: only metricsService has one")
    ] = None
    labels: Annotated[Labels, Meta(description="More labels of the Service")] = field(default_factory=dict)
    annotations: Annotated[Annotations, Meta(description="Annotations, such as those of a cloud's load balancer")] = (
        field(default_factory=dict)
    )
    spec: Annotated[
        KubernetesPart, Meta(description="More fields of the Service's spec, such as externalTrafficPolicy")
    ] = field(default_factory=dict)


class ConnectionTestValues(Section, frozen=True):
    """The pod of `helm test`."""

    enabled: Annotated[
        bool, Meta(description="Create it for `helm test`; it asks the Service for readiness and metadata")
    ] = True
