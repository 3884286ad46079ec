"""Fields in the arrays and objects of a request, such as `messages[].content[].type`, that no rule declares as used.

They are named by paths without indexes, so that a conversation of any length has few of them.
"""

from collections.abc import Mapping
from typing import Any, Final

from conch.protocols.openai.field_rules import FieldRule, FieldRules

# Paths of one field of a request. A client that invents names costs no more.
MAX_PATHS: Final = 64


class NestedRules:
    """The rules below one field of a request. `prefix` begins their names: `messages[].`.

    What has no rules below it, such as a JSON schema, is not looked into.
    """

    def __init__(self, prefix: str, rules: FieldRules) -> None:
        self._prefix = prefix
        below = {name.removeprefix(prefix): rule for name, rule in rules.items() if name.startswith(prefix)}
        direct = {name: rule for name, rule in below.items() if "." not in name}
        self._ignored: dict[str, FieldRule] = {
            name: rule for name, rule in direct.items() if rule.decision == "ignored" and not rule.conditional
        }
        self._accepted = frozenset(direct.keys() - self._ignored.keys())
        inner = dict.fromkeys(name.partition(".")[0] for name in below if "." in name)
        self._inner: list[tuple[str, NestedRules]] = [
            (name.removesuffix("[]"), NestedRules(f"{prefix}{name}.", rules)) for name in inner
        ]

    def undecided(self, value: Any) -> list[str]:
        """Return the paths of fields without an effect, in an object or an array of objects; `MAX_PATHS` at most."""
        paths: dict[str, None] = {}
        self._collect(value, paths)
        return list(paths)[:MAX_PATHS]

    def _collect(self, value: Any, paths: dict[str, None]) -> None:
        if isinstance(value, list):
            for element in value:
                if isinstance(element, dict):
                    self._look_into(element, paths)
        elif isinstance(value, dict):
            self._look_into(value, paths)

    def _look_into(self, fields: Mapping[str, Any], paths: dict[str, None]) -> None:
        if not fields.keys() <= self._accepted:
            for name, value in fields.items():
                if name in self._accepted or len(paths) >= MAX_PATHS:
                    continue
                rule = self._ignored.get(name)
                if rule is None or not (value is None or value in rule.neutral):
                    paths[self._prefix + name] = None
        for name, inner in self._inner:
            value = fields.get(name)
            if isinstance(value, (list, dict)):  # most contents are texts
                inner._collect(value, paths)
