"""How replicas are run, replaced and ended."""

from typing import Annotated, Literal

from msgspec import Meta, field

from conch.operate.deployment.values.section import Annotations, Count, LabelKey, PositiveCount, Seconds, Section

Percentage = Annotated[str, Meta(pattern=r"^[0-9]+%$")]
Share = Annotated[str, Meta(pattern=r"^([0-9]{1,2}|100)%$")]


class WorkloadValues(Section, frozen=True):
    """The Deployment or StatefulSet, called like the release."""

    kind: Annotated[
        Literal["Deployment", "StatefulSet"],
        Meta(description="StatefulSet: each replica keeps its name and its cache, on a volume of cache.size"),
    ] = "Deployment"
    update_strategy: Annotated[
        Literal["RollingUpdate", "Recreate"],
        Meta(description="Recreate: end the old replicas first, where no GPU is free. A StatefulSet always rolls"),
    ] = "RollingUpdate"
    max_unavailable: Annotated[
        Count | Share, Meta(description="Replicas of a Deployment that may be missing during an update: 1 or 25%")
    ] = 0
    max_surge: Annotated[
        Count | Percentage, Meta(description="Additional replicas of a Deployment during an update: 1 or 25%")
    ] = 1
    progress_deadline_seconds: Annotated[
        PositiveCount, Meta(description="A Deployment reports failure after this time; pulling and loading can be slow")
    ] = 1800
    revision_history_limit: Annotated[Count, Meta(description="Old revisions to keep for a rollback")] = 5
    annotations: Annotated[Annotations, Meta(description="Annotations of the workload")] = field(default_factory=dict)


class TerminationValues(Section, frozen=True):
    """How a pod ends: wait, SIGTERM, drain. The grace period is preStop + server.exitTimeoutSecs + margin."""

    pre_stop_seconds: Annotated[
        Seconds,
        Meta(description="Time before SIGTERM, in which load balancers remove the pod while it still serves; 0: none"),
    ] = 10
    margin_seconds: Annotated[
        Seconds, Meta(description="Time after server.exitTimeoutSecs, in which the server stops its models")
    ] = 15


class TopologySpreadValues(Section, frozen=True):
    """How replicas are spread over zones and nodes."""

    topology_keys: Annotated[
        tuple[LabelKey, ...], Meta(description="Labels of nodes to spread over; empty: no spreading")
    ] = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    max_skew: Annotated[int, Meta(ge=1, description="Largest difference of replicas between two places")] = 1
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"], Meta(description="Whether a replica waits for a better place")
    ] = "ScheduleAnyway"
