"""What a check finds: which rule is broken, where, what it is there, and what would be right."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Severity(Enum):
    """An error fails when the model is loaded or used, a warning probably does something else than was meant."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `id` is stable: people write it into `--ignore` and into their pipelines."""

    id: str
    severity: Severity
    title: str  # what is wrong, in a few words
    why: str  # what comes of it
    cure: str  # what would be right, where the finding does not say it better


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, 1-based; line 0 is the file, or the folder, as a whole."""

    path: Path
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else str(self.path)


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that the finding is about, and what is there."""

    place: Place
    what: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters `start` to `end` of a file's text, and what belongs there."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one place. `edits` mend it, all in the file of the place; () where that is not safe."""

    rule: Rule
    place: Place
    message: str
    cure: str = ""
    related: tuple[Related, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def what_to_do(self) -> str:
        """The cure, the finding's own or the rule's."""
        return self.cure or self.rule.cure
