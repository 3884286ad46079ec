"""Findings of `conch check`: what is wrong, where, and the remedy."""

from dataclasses import dataclass
from pathlib import Path

from conch.check.rules import Rule, rules


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
    """Another place that the finding is about, with a description."""

    place: Place
    what: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the characters `start` to `end` of a file's text."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one place. `edits` fix it in the file of the place; () if no automatic fix is safe."""

    rule_id: str
    place: Place
    message: str
    cure: str = ""
    related: tuple[Related, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def rule(self) -> Rule:
        """The broken rule."""
        return rules()[self.rule_id]

    @property
    def what_to_do(self) -> str:
        """The remedy: the finding's if it has one, else the rule's."""
        return self.cure or self.rule.cure
