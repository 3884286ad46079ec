"""Remove secrets from JSON, by patterns of their keys, also in JSON that is a text within JSON."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

REDACTED: Final = "[redacted]"
# Secrets, by the usual names of their fields.
DEFAULT_RULES: Final = (
    "*password*", "*passwd*", "*secret*", "*api?key*", "*apikey*", "*access?key*", "*private?key*", "*credential*",
    "authorization", "*_token", "token", "accesstoken", "cookie*", "set-cookie", "*session?id*", "ssn",
)  # fmt: skip
_MAX_DEPTH = 64
_MAX_NESTED_CHARACTERS = 1 << 20


class Redaction:
    """Replaces the values of some keys by "[redacted]".

    A rule is the pattern of a key at any depth, such as `*password*`, or of the end of a path, such as
    `messages.content`; items of lists are at the path of their list. Upper and lower case are equal.
    """

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self._rules = [rule.lower().split(".") for rule in (*DEFAULT_RULES, *rules) if rule]

    def of_json(self, value: Any) -> Any:
        """Return a JSON value without the values that rules name, and without what is nested too deeply."""
        return self._redacted(value, ())

    def of_text(self, text: str) -> str:
        """Return a text; if it is a JSON object or list, without the values that rules name."""
        return self._of_text(text, ())

    def _redacted(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            return REDACTED
        if isinstance(value, dict):
            return {
                key: REDACTED
                if self._matches((*path, str(key).lower()))
                else self._redacted(part, (*path, str(key).lower()))
                for key, part in value.items()
            }
        if isinstance(value, list):
            return [self._redacted(part, (*path, "")) for part in value]
        return self._of_text(value, path) if isinstance(value, str) else value

    def _of_text(self, text: str, path: tuple[str, ...]) -> str:
        if not text.lstrip().startswith(("{", "[")):
            return text
        if len(text) > _MAX_NESTED_CHARACTERS:
            return REDACTED
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
        redacted = self._redacted(value, (*path, ""))
        return text if redacted == value else orjson.dumps(redacted).decode()

    def _matches(self, path: tuple[str, ...]) -> bool:
        keys = [key for key in path if key]  # without the indices of lists
        return any(len(rule) <= len(keys) and all(map(fnmatchcase, keys[-len(rule) :], rule)) for rule in self._rules)
