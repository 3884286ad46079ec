"""Rules of users: what a rule file of Prometheus or a PrometheusRule object contains."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conch.monitoring.promql import parse_duration
from conch.monitoring.yaml_documents import YamlDocument, YamlPath


@dataclass(frozen=True, slots=True)
class UserRule:
    """A rule of a user. `line` is that of its expression; `texts` are the templates of its annotations and labels."""

    name: str
    is_alert: bool
    expr: str
    for_s: float
    line: int
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    document: dict[str, Any]


def is_rule_document(value: Any) -> bool:
    """Return whether a document has rules: a rule file, a PrometheusRule object, or a list of rules."""
    return any(True for _ in _rule_values(value))


def read_rules(document: YamlDocument) -> list[UserRule]:
    """Return the rules of a document. Parts that are not rules are omitted: promtool reports them."""
    found = []
    for path, value in _rule_values(document.value):
        name = value.get("alert") or value.get("record")
        try:
            for_s = parse_duration(str(value["for"])) if value.get("for") else 0
        except ValueError:
            for_s = 0
        labels, annotations = _mapping(value.get("labels")), _mapping(value.get("annotations"))
        texts = tuple(str(text) for text in (*labels.values(), *annotations.values()))
        line = document.line((*path, "expr"))
        expr = str(value["expr"]).strip()
        found.append(UserRule(str(name), "alert" in value, expr, for_s, line, tuple(labels), texts, value))
    return found


def _rule_values(value: Any, path: YamlPath = ()) -> Iterator[tuple[YamlPath, dict[str, Any]]]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _rule_values(each, (*path, index))
    elif isinstance(value, dict):
        if isinstance(value.get("expr"), str | int | float) and ("alert" in value or "record" in value):
            yield path, value
            return
        for key in ("spec", "groups", "rules"):
            if key in value:
                yield from _rule_values(value[key], (*path, key))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
