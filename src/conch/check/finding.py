"""Findings of `conch check`, and its rules, which `rules.toml` lists by family: what is wrong, why, and the remedy."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from conch.base.extras import for_this_installation

_FILE = Path(__file__).with_name("rules.toml")
_MANIFESTS = "Manifests of Kubernetes and Helm charts"
_MONITORING = "Alerts, dashboards, monitors, limits and autoscalers"


class Severity(Enum):
    """An error fails when the model is loaded or used; a warning probably has an unintended effect."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `id` is stable: it is used with `--ignore` and in CI pipelines."""

    id: str
    severity: Severity
    title: str  # what is wrong, in a few words
    why: str  # the consequence
    cure: str  # the remedy, unless the finding has a more specific one


@cache
def families() -> Mapping[str, tuple[Rule, ...]]:
    """Return the rules by the headings of the reference page, `docs/check.md`."""
    return {
        family: tuple(
            Rule(id_, Severity(texts["severity"]), texts["title"], texts["why"], texts["cure"])
            for id_, texts in rules.items()
        )
        for family, rules in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
    }


@cache
def rules() -> Mapping[str, Rule]:
    """Return all rules by id."""
    return {rule.id: rule for family in families().values() for rule in family}


@cache
def unapplied_rules() -> Mapping[str, frozenset[str]]:
    """Return the rules for a package that is missing, with the rules that are not applied without it."""
    manifests, monitoring = ({rule.id for rule in families()[family]} for family in (_MANIFESTS, _MONITORING))
    of_compose = {"compose-gpu", "compose-invalid", "config-elsewhere", "image-latest", "secret-text"}
    return {
        "monitoring-unchecked": frozenset(manifests | monitoring | of_compose | {"file-syntax"}),
        "schema-unchecked": frozenset({"manifest-invalid"}),
        "chart-unrendered": frozenset(manifests | monitoring),
    }


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
        return self.cure or for_this_installation(self.rule.cure)
