"""Who may connect to the pods."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import KubernetesPart, ObjectName, Section


class EgressValues(Section, frozen=True):
    """Connections that the pods open: to object storage, registries, DNS."""

    enabled: Annotated[bool, Meta(description="Restrict what the pods connect to: DNS and the rules below")] = False
    rules: Annotated[
        tuple[KubernetesPart, ...],
        Meta(description="NetworkPolicyEgressRule objects; models from object storage need one for port 443"),
    ] = ()


class NetworkPolicyValues(Section, frozen=True):
    """The NetworkPolicy of the pods. It has an effect only where the cluster's network plug-in enforces policies."""

    enabled: Annotated[bool, Meta(description="Create the NetworkPolicy")] = False
    clients: Annotated[
        tuple[KubernetesPart, ...],
        Meta(description="NetworkPolicyPeer objects that may call HTTP and gRPC; empty: the pods of the namespace"),
    ] = ()
    metrics_namespace: Annotated[
        ObjectName, Meta(min_length=1, description="Namespace of Prometheus, the only one that may read the metrics")
    ] = "monitoring"
    egress: Annotated[EgressValues, Meta(description="Connections that the pods open")] = field(
        default_factory=EgressValues
    )
