"""How many pods may be missing while nodes are drained."""

from typing import Annotated

from msgspec import Meta

from conch.deployment.values.section import Section


class DisruptionBudgetValues(Section, frozen=True):
    """The PodDisruptionBudget. Exactly one of minAvailable and maxUnavailable."""

    enabled: Annotated[bool, Meta(description="Create the PodDisruptionBudget")] = True
    min_available: Annotated[
        str, Meta(pattern="^([0-9]+%?)?$", description='Pods that stay, a number or a percentage such as "50%"')
    ] = ""
    max_unavailable: Annotated[
        str,
        Meta(pattern="^([0-9]+%?)?$", description='Pods that may be missing, a number or a percentage; "" for none'),
    ] = "1"
