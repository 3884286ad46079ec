"""The rules of `conch check`, which `rules.toml` lists by family: what each finds, why it matters, and the remedy."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

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
