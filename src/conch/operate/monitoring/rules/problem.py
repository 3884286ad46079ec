"""What is wrong with a rule."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

# never: no series make the alert fire. wrong: it does not do what it says. doubtful: perhaps not.
Verdict: TypeAlias = Literal["never", "wrong", "doubtful"]


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong with a rule; `offset` is the place in its expression."""

    verdict: Verdict
    code: str
    message: str
    offset: int = 0
