"""All objects of a release, in the order in which they are applied."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from conch.deployment.kubernetes.release import Release
from conch.deployment.kubernetes.services import services
from conch.deployment.kubernetes.workload import workload
from conch.deployment.values.deployment import DeploymentValues

Builder: TypeAlias = Callable[[DeploymentValues, Release], Iterable[dict[str, Any]]]

# A line for each module of this package that builds objects; it yields none where the values ask for none.
_BUILDERS: tuple[Builder, ...] = (
    services,
    workload,
)


def objects(values: DeploymentValues, release: Release) -> list[dict[str, Any]]:
    """Return the objects that `helm install` creates with these values, field by field equal to the chart's."""
    return [each for build in _BUILDERS for each in build(values, release)]
