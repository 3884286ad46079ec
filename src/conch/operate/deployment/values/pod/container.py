"""Volumes, probes and environment of the pods."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import (
    ObjectName,
    PositiveCount,
    Quantity,
    SecretKey,
    Section,
    VariableName,
)


class SharedMemoryValues(Section, frozen=True):
    """An emptyDir in memory at /dev/shm. It counts as memory of the pod."""

    size: Annotated[Quantity, Meta(description="Size; with tensor parallelism several Gi")] = "1Gi"


class TemporaryFilesValues(Section, frozen=True):
    """An emptyDir at /tmp, the only other place where the server writes."""

    size: Annotated[Quantity, Meta(description="Size limit")] = "2Gi"


class CacheValues(Section, frozen=True):
    """A volume at /cache: copies of remote repositories and of the Hub's models."""

    size: Annotated[Quantity, Meta(description="Size limit; of a StatefulSet the size of each replica's volume")] = (
        "50Gi"
    )
    claim_name: Annotated[
        ObjectName, Meta(description="PersistentVolumeClaim for the cache, ReadWriteMany if there are several replicas")
    ] = ""
    storage_class_name: Annotated[
        ObjectName, Meta(description="Storage class of a StatefulSet's volumes; empty: the cluster's default")
    ] = ""


class ProbeValues(Section, frozen=True):
    """How often the kubelet asks, and how many failures have a consequence."""

    period_seconds: Annotated[PositiveCount, Meta(description="Time between two probes")] = 5
    timeout_seconds: Annotated[PositiveCount, Meta(description="Time after which a probe fails")] = 5
    failure_threshold: Annotated[PositiveCount, Meta(description="Failures in a row that have a consequence")] = 3


def _startup() -> ProbeValues:
    return ProbeValues(failure_threshold=120)


def _liveness() -> ProbeValues:
    return ProbeValues(period_seconds=10, failure_threshold=6)


class ProbesValues(Section, frozen=True):
    """The probes of the server. Loading does not end a pod: a server that loads its models is live and not ready."""

    startup: Annotated[
        ProbeValues, Meta(description="On /v2/health/live: time until the server listens; then the others begin")
    ] = field(default_factory=_startup)
    liveness: Annotated[ProbeValues, Meta(description="On /v2/health/live: restarts a server that hangs")] = field(
        default_factory=_liveness
    )
    readiness: Annotated[
        ProbeValues, Meta(description="On /v2/health/ready: requests are sent only to pods with loaded models")
    ] = field(default_factory=ProbeValues)


class EnvironmentVariable(Section, frozen=True):
    """A variable of the server."""

    name: Annotated[VariableName, Meta(min_length=1, description="Name of the variable")]
    value: Annotated[str, Meta(description="Value, a text: quote numbers")] = ""


class SecretVariable(Section, frozen=True):
    """A variable of the server whose value is in a Secret."""

    name: Annotated[VariableName, Meta(min_length=1, description="Name of the variable")]
    secret_name: Annotated[ObjectName, Meta(min_length=1, description="Name of the Secret")]
    key: Annotated[SecretKey, Meta(min_length=1, description="Key of the value in the Secret")]
