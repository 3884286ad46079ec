"""How many pods may be missing while nodes are drained."""

from typing import Annotated

from msgspec import Meta

from conch.operate.deployment.values.section import Count, Section

_Amount = Count | Annotated[str, Meta(pattern="^([0-9]+|([0-9]{1,2}|100)%)?$")]


class DisruptionBudgetValues(Section, frozen=True):
    """The PodDisruptionBudget. Exactly one of minAvailable and maxUnavailable."""

    enabled: Annotated[bool, Meta(description="Create the PodDisruptionBudget")] = True
    min_available: Annotated[_Amount, Meta(description='Pods that stay, a number or a percentage such as "50%"')] = ""
    max_unavailable: Annotated[
        _Amount,
        Meta(description='Pods that may be missing, a number or a percentage; "" for none'),
    ] = 1
