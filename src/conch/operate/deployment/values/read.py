"""Read values from files and `--set`, and explain what is wrong with them."""

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, get_args

import msgspec

from conch.base.errors import ConfigError
from conch.base.suggestion import closest
from conch.operate.deployment.kubernetes.refusals import refusals
from conch.operate.deployment.values.conflicts import conflicts
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.description import ValueKey, annotation_at, constraints, keys, plain_type
from conch.operate.deployment.values.native import native

_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL)
_KEY = re.compile(r"(?P<problem>.*) - at `key` in `\$\.?(?P<place>.*)`", re.DOTALL)
_PATTERN = re.compile(r"Expected `str` matching regex (['\"].*['\"])")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


def merge(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mappings of values as Helm does: later ones win, mappings are merged; a null stays, for the defaults."""
    merged: dict[str, Any] = {}
    for each in documents:
        _merge_into(merged, each)
    return merged


def _merge_into(merged: dict[str, Any], later: Mapping[str, Any]) -> None:
    for key, value in later.items():
        if not isinstance(value, Mapping):
            merged[key] = value
            continue
        before = merged.get(key)
        merged[key] = dict(before) if isinstance(before, dict) else {}
        _merge_into(merged[key], value)


def _without_null(value: Any) -> Any:
    """Return values without the keys whose value is null: they remove a default."""
    if isinstance(value, Mapping):
        return {key: _without_null(each) for key, each in value.items() if each is not None}
    return value


def read_values(document: Mapping[str, Any]) -> DeploymentValues:
    """Return the typed values of a mapping, in Conch's own names; missing keys have their defaults.

    Raises ConfigError with the place and what is allowed there.
    """
    document = merge([defaults(), document])
    _refuse_null(document)
    try:
        values = native(msgspec.convert(_without_null(document), DeploymentValues))
    except msgspec.ValidationError as error:
        raise ConfigError(_message(str(error), document)) from None
    for problem in chain(conflicts(values), refusals(values)):
        raise ConfigError(f"values: {problem}")
    return values


def _refuse_null(document: Mapping[str, Any]) -> None:
    """Refuse null where it does not remove a key of a mapping that Kubernetes defines. Raises ConfigError."""
    for key in keys(DeploymentValues()):
        value: Any = document
        for part in key.path:
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        if value is None and key.default is not None:
            raise ConfigError(f"values: {'.'.join(key.path)}: null is not valid; leave the key out for the default")


def defaults() -> dict[str, Any]:
    """Return the values without a file: what values.yaml contains."""
    document: dict[str, Any] = msgspec.to_builtins(DeploymentValues())
    return document


def _message(error: str, document: Mapping[str, Any]) -> str:
    """Return the error of msgspec with the place as YAML has it, and with what is allowed there."""
    if of_key := _KEY.fullmatch(error):
        return _key_message(of_key["problem"], *_found(of_key["place"], document, ""))
    found = _PLACE.fullmatch(error)
    assert found is not None
    problem, place = found["problem"], found["place"] or ""
    if unknown := _UNKNOWN.fullmatch(problem):
        known = [key.name for key in _children(place)]
        near = closest(unknown[1], known)
        suggestion = f"did you mean '{near}'? " if near else ""
        return f"values: unknown key '{_join(place, unknown[1])}'; {suggestion}Known: {', '.join(known)}"
    annotation = annotation_at(DeploymentValues, place)
    pattern = _pattern(problem)
    place, value = _found(place, document, pattern)
    if pattern:
        problem = f"'{value}' does not match {pattern}"
    elif problem.startswith("Expected `str`, got ") and not isinstance(value, list | dict):
        problem += "; quote it"
    limits = constraints(annotation)
    examples = " or ".join(str(example) for each in limits for example in each.examples or ())
    description = next((f" ({each.description})" for each in reversed(limits) if each.description), "")
    return f"values: {place}: {problem}{_allowed(annotation)}{examples and f'; such as {examples}'}{description}"


def _key_message(problem: str, place: str, value: Any) -> str:
    """Return the error of a key of a mapping, such as that of a label."""
    pattern = _pattern(problem)
    wrong = [key for key in value if not isinstance(key, str) or (pattern and not re.search(pattern, key))]
    text = f"does not match {pattern}" if pattern else "is not a text; quote it"
    return f"values: {place}: {', '.join(repr(key) for key in wrong)} {text}"


def _pattern(problem: str) -> str:
    """Return the pattern that a text does not match, which the error has as a literal; "" for other problems."""
    found = _PATTERN.fullmatch(problem)
    return str(literal_eval(found[1])) if found else ""


def _found(place: str, document: Any, pattern: str) -> tuple[str, Any]:
    """Return a place and its value; msgspec's `[...]`, any key of a mapping, becomes the key with the invalid value.

    That is one that is not a text, or does not match the pattern, or the longest one.
    """
    found = ""
    for part in re.findall(r"[^.\[\]]+|\[[^\]]*\]", place):
        if part == "[...]" and isinstance(document, Mapping):
            wrong = [key for key, value in document.items() if not isinstance(value, str)]
            wrong = wrong or [key for key, value in document.items() if pattern and not re.search(pattern, value)]
            part = next(iter(wrong or sorted(document, key=lambda key: -len(document[key]))), part)
        if part.startswith("["):
            document = document[int(part[1:-1])] if isinstance(document, list | tuple) else None
            found += part
        else:
            document = document.get(part) if isinstance(document, Mapping) else None
            found = _join(found, part)
    return found, document


def _children(place: str) -> list[ValueKey]:
    parent = tuple(place.split(".")) if place else ()
    return [key for key in keys(DeploymentValues()) if key.path[:-1] == parent]


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _allowed(annotation: Any) -> str:
    choices = [str(each) for each in get_args(plain_type(annotation)) if isinstance(each, str)]
    return f"; allowed: {', '.join(choices)}" if choices else ""
