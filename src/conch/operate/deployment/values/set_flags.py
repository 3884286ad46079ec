r"""The syntax of Helm's --set: `a.b=c,list[0].x=1,names={x,y}`, with `\` before a literal comma, dot or bracket."""

import re
from typing import Any

from conch.base.errors import ConfigError

_INTEGER = re.compile(r"0|[1-9][0-9]*|[+-][0-9]+")
_WORDS = {"true": True, "false": False, "null": None}
_MAX_INDEX = 65536
_PART = re.compile(r"(?P<name>(?:\\.|[^\\.\[\]])*)(?P<indices>(?:\[\d+\])*)")


def apply_set(values: dict[str, Any], text: str, *, strings: bool = False) -> None:
    """Change values as `--set text` does, or as `--set-string text`. Raises ConfigError.

    A value of null is put in the place; merging with the defaults then removes the key.
    """
    for assignment in _split(text, ","):
        place, equals, value = _partition(assignment)
        if not equals or not place:
            raise ConfigError(f"--set {text}: '{assignment}' is not a valid assignment; write KEY=VALUE")
        _assign(values, _path(place, text), _value(value, strings), text)


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator outside of braces and without a backslash before it."""
    found, current, depth, escaped = [], "", 0, False
    for each in text:
        if escaped or each == "\\":
            escaped = not escaped
        elif each == separator and depth == 0:
            found.append(current)
            current = ""
            continue
        elif each in "{}":
            depth = max(0, depth + (1 if each == "{" else -1))
        current += each
    return [*found, current]


def _partition(assignment: str) -> tuple[str, str, str]:
    place, *rest = _split(assignment, "=")
    return place, "=" if rest else "", "=".join(rest)


def _path(place: str, text: str) -> list[str | int]:
    found: list[str | int] = []
    for part in _split(place, "."):
        match = _PART.fullmatch(part)
        if match is None or not match["name"]:
            raise ConfigError(f"--set {text}: '{place}' is not a valid key, such as a.b or list[0].c")
        found.append(_unescaped(match["name"]))
        found += [int(each) for each in re.findall(r"\d+", match["indices"])]
    if any(isinstance(each, int) and each > _MAX_INDEX for each in found):
        raise ConfigError(f"--set {text}: an index is over {_MAX_INDEX}")
    return found


def _value(text: str, strings: bool) -> Any:
    if text.startswith("{") and text.endswith("}"):
        inner = text[1:-1]
        return [_scalar(each, strings) for each in _split(inner, ",")] if inner else []
    return _scalar(text, strings)


def _scalar(text: str, strings: bool) -> Any:
    plain = _unescaped(text)
    if strings:
        return plain
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text == "[]":
        return []
    return int(text) if _INTEGER.fullmatch(text) else plain


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _assign(values: dict[str, Any], path: list[str | int], value: Any, text: str) -> None:
    container: Any = values
    for part, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(part, int):
            container += [None] * (part + 1 - len(container))
        if following is None:
            container[part] = value
            return
        empty: Any = [] if isinstance(following, int) else {}
        below = container[part] if isinstance(part, int) else container.get(part)
        if below is None:
            below = container[part] = empty
        if type(below) is not type(empty):
            raise ConfigError(f"--set {text}: the value of '{part}' is not a {_kind(empty)}")
        container = below


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "mapping"
