"""Rules of users: what a rule file of Prometheus or a PrometheusRule object contains, and what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from conch.base.durations import parse_prometheus_duration
from conch.base.suggestion import closest, did_you_mean
from conch.base.yaml_documents import YamlDocument, YamlPath

_KEYS = ("alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations")
_EXTENSIONS = ("debug", "update_entries_limit")  # of VictoriaMetrics
_GROUP_KEYS = ("name", "interval", "query_offset", "limit", "labels", "rules")
# Of Thanos, Mimir and VictoriaMetrics.
_GROUP_EXTENSIONS = (
    *("partial_response_strategy", "source_tenants", "align_evaluation_time_on_interval", "evaluation_delay"),
    *("type", "params", "headers", "notifier_headers", "concurrency", "tenant", "eval_offset", "eval_delay"),
    *("eval_alignment", "debug", "limit_evaluation"),
)
_NAMING = ("alert", "record", "expr")
_MIN_SIMILARITY = 0.6


@dataclass(frozen=True, slots=True)
class RuleFault:
    """Why Prometheus refuses a rule, and with it the file."""

    message: str
    line: int


@dataclass(frozen=True, slots=True)
class UserRule:
    """A rule of a user. `texts` are the templates of its annotations and labels.

    `line` is that of its first fault or of its expression. With faults, keys are those that are probably meant.
    """

    name: str
    is_alert: bool
    expr: str
    for_s: float
    line: int
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    document: dict[str, Any]
    faults: tuple[RuleFault, ...] = ()


def read_rules(document: YamlDocument) -> list[UserRule]:
    """Return the rules of a document: a rule file, a PrometheusRule object, or a list of rules."""
    rules = []
    for path, written in _rule_values(document.value):
        meant = _meant_keys(written)
        value = {meant.get(key, key): setting for key, setting in written.items()}
        faults = tuple(
            RuleFault(message, document.line(path if key is None else (*path, key)))
            for key, message in _faults(written, value, meant)
        )
        name = value.get("alert") or value.get("record") or "unnamed"
        try:
            for_s = parse_prometheus_duration(str(value["for"])) if value.get("for") is not None else 0
        except ValueError:
            for_s = 0
        labels, annotations = _mapping(value.get("labels")), _mapping(value.get("annotations"))
        texts = tuple(str(text) for text in (*labels.values(), *annotations.values()))
        line = faults[0].line if faults else document.line((*path, "expr"))
        expr = str(value.get("expr", "")).strip()
        rules.append(UserRule(str(name), "record" not in value, expr, for_s, line, tuple(labels), texts, value, faults))
    return rules


def group_faults(document: YamlDocument) -> list[RuleFault]:
    """Return why Prometheus refuses the groups of a rule file or a PrometheusRule object."""
    value = document.value
    prefix: YamlPath = ()
    if isinstance(value, dict) and value.get("kind") == "PrometheusRule":
        value, prefix = _mapping(value.get("spec")), ("spec",)
    groups = value.get("groups") if isinstance(value, dict) else None
    faults: list[RuleFault] = []
    names: set[str] = set()
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if isinstance(group, dict) and _is_group(group):
            path = (*prefix, "groups", index)
            faults += (RuleFault(text, document.line((*path, *key))) for key, text in _faults_of_group(group, names))
            names.add(str(group.get("name")))
    return faults


def _is_group(group: dict[Any, Any]) -> bool:
    """Return whether a mapping holds a list with a rule, whatever its key."""
    lists = (members for members in group.values() if isinstance(members, list))
    return any(isinstance(entry, dict) and _is_rule(entry, in_group=False) for members in lists for entry in members)


def _faults_of_group(group: dict[Any, Any], names: set[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of a key in a group, and what is wrong with it. `names` are those of the groups before."""
    shown = f"group '{group['name']}'" if group.get("name") else "a group"
    for key in map(str, group):
        if key not in (*_GROUP_KEYS, *_GROUP_EXTENSIONS):
            free = [key for key in _GROUP_KEYS if key not in group]
            hint = did_you_mean(key.lower(), free, f"; a group has {', '.join(_GROUP_KEYS)}")
            yield (key,), f"{shown}: unknown key '{key}'{hint}"
    if not group.get("name"):
        yield (), "a group has no name"
    elif str(group["name"]) in names:
        yield ("name",), f"{shown} is in the file twice"
    for key in ("interval", "query_offset"):
        try:
            if group.get(key) is not None:
                parse_prometheus_duration(str(group[key]))
        except ValueError:
            yield (key,), f"{shown}: {key}: '{group[key]}' is not a valid duration, such as 1m"


def _rule_values(value: Any, path: YamlPath = ()) -> Iterator[tuple[YamlPath, dict[str, Any]]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rule_values(item, (*path, index))
    elif isinstance(value, dict):
        if "rules" not in value and _is_rule(value, in_group="groups" in path):
            yield path, {str(key): setting for key, setting in value.items()}
            return
        for key in ("spec", "groups", "rules"):
            if key in value:
                yield from _rule_values(value[key], (*path, key))


def _is_rule(value: dict[Any, Any], *, in_group: bool) -> bool:
    """Return whether a mapping is meant as a rule. Outside of a group, it needs a name and an expression."""
    if not any(key in value for key in _NAMING):
        return False
    keys = {*value, *_meant_keys(value).values()}
    return in_group or ("expr" in keys and not keys.isdisjoint(("alert", "record")))


def _meant_keys(value: dict[Any, Any]) -> dict[str, str]:
    """Return the keys that are probably meant by unknown ones."""
    meant: dict[str, str] = {}
    for key in map(str, value):
        if key not in (*_KEYS, *_EXTENSIONS):
            free = [key for key in _KEYS if key not in value and key not in meant.values()]
            if near := closest(key.lower(), free, _MIN_SIMILARITY):
                meant[key] = near
    return meant


def _faults(written: dict[str, Any], value: dict[str, Any], meant: dict[str, str]) -> Iterator[tuple[str | None, str]]:
    """Yield the key, None for the whole rule, and what is wrong with it."""
    for key in written:
        if key in meant:
            yield key, f"unknown key '{key}'; did you mean '{meant[key]}'?"
        elif key not in (*_KEYS, *_EXTENSIONS):
            yield key, f"unknown key '{key}'; a rule has {', '.join(_KEYS)}"
    if "alert" in value and "record" in value:
        yield None, "both 'alert' and 'record' are given; make it two rules"
    elif "alert" not in value and "record" not in value:
        yield None, "'alert' or 'record' is missing: the rule has no name"
    if "expr" not in value:
        yield None, "'expr' is missing"
    elif not isinstance(value["expr"], str | int | float) or not str(value["expr"]).strip():
        yield "expr", "'expr' is not a query"
    for key in ("for", "keep_firing_for"):
        try:
            if value.get(key) is not None:
                parse_prometheus_duration(str(value[key]))
        except ValueError:
            yield key, f"{key}: '{value[key]}' is not a valid duration, such as 5m"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# never: no series make the alert fire. wrong: it does not do what it says. doubtful: perhaps not.
Verdict: TypeAlias = Literal["never", "wrong", "doubtful"]


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong with a rule; `offset` is the place in its expression."""

    verdict: Verdict
    code: str
    message: str
    offset: int = 0
