"""Read fields of Kubernetes objects, and quantities: errors name the path, the value and what is allowed there."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from conch.base.errors import ConfigError
from conch.base.suggestion import closest

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?")
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_MAX = 2**63 - 1


class ObjectReader:
    """Takes the fields of one mapping; `finish` rejects those that nothing took."""

    def __init__(self, document: object, path: str) -> None:
        if not isinstance(document, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {describe(document)}")
        self.path = path
        self._fields: dict[str, Any] = {str(key): value for key, value in document.items() if value is not None}
        self._known: set[str] = set()

    @classmethod
    def of_object(cls, document: Mapping[str, Any], api_version: str, kind: str) -> "tuple[str, ObjectReader]":
        """Return the name of an object, and the reader of its `spec`. Refuses other kinds and versions."""
        whole = cls(document, kind)
        for name, expected in (("kind", kind), ("apiVersion", api_version)):
            if document.get(name) != expected:
                raise whole.reject(name, expected)
        metadata = cls(document.get("metadata") or {}, "metadata")
        return metadata.text("name", "unnamed"), cls(document.get("spec"), "spec")

    def has(self, name: str) -> bool:
        """Return whether the field is present."""
        self._known.add(name)
        return name in self._fields

    def is_empty(self, name: str) -> bool:
        """Return whether a field is an empty mapping or list, which programs write that omit nothing."""
        return self._fields.get(name) in ({}, [])

    def reject(self, name: str, expected: str) -> ConfigError:
        """Return the error for an invalid field."""
        return ConfigError(f"{self.path}.{name}: expected {expected}, got {describe(self._fields.get(name))}")

    def any(self, *names: str) -> None:
        """Accept fields of which nothing is read."""
        self._known.update(names)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string that is not empty."""
        if not self.has(name) and default is not None:
            return default
        value = self._require(name)
        if not isinstance(value, str) or not value:
            raise self.reject(name, "a string")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """Return one of the allowed strings."""
        value = self.text(name, default)
        if value not in allowed:
            raise self.reject(name, f"one of {', '.join(allowed)}")
        return value

    def integer(self, name: str, minimum: int, maximum: int = 2**31 - 1, default: int | None = None) -> int:
        """Return an integer of a range."""
        value = default if not self.has(name) and default is not None else self._require(name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            limits = f"of at least {minimum}" if maximum == 2**31 - 1 else f"from {minimum} to {maximum}"
            raise self.reject(name, f"an integer {limits}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self._require(name) if self.has(name) else default
        if not isinstance(value, bool):
            raise self.reject(name, "true or false")
        return value

    def quantity(self, name: str) -> float:
        """Return a quantity greater than zero, such as 500m, 2 or 4Gi."""
        value = self._require(name)
        number = parse_quantity(value)
        if number is None or number <= 0:
            raise self.reject(name, "a quantity above zero, such as 500m, 2 or 4Gi")
        return number

    def tolerance(self, name: str) -> float:
        """Return a quantity of at least zero."""
        number = parse_quantity(self._require(name))
        if number is None or number < 0:
            raise self.reject(name, "a quantity of at least 0, such as 100m or 0.05")
        return number

    def mapping(self, name: str) -> "ObjectReader":
        """Return the reader of a mapping inside."""
        return ObjectReader(self._require(name), f"{self.path}.{name}")

    def labels(self, name: str) -> Mapping[str, str]:
        """Return a mapping of strings, empty where the field is absent."""
        value = self._fields.get(name, {}) if self.has(name) else {}
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            raise self.reject(name, "a mapping of strings")
        return {str(key): str(text) for key, text in value.items()}

    def items(self, name: str) -> "Iterator[ObjectReader]":
        """Yield the readers of the mappings of a list, none where the field is absent."""
        if not self.has(name):
            return
        value = self._fields[name]
        if not isinstance(value, list | tuple):
            raise self.reject(name, "a list")
        for index, item in enumerate(value):
            yield ObjectReader(item, f"{self.path}.{name}[{index}]")

    def finish(self) -> None:
        """Reject unknown fields, with the one that was probably meant."""
        for name in self._fields:
            if name not in self._known:
                near = closest(name, self._known)
                hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(self._known))}"
                raise ConfigError(f"{self.path}.{name}: unknown field; {hint}")

    def _require(self, name: str) -> Any:
        if not self.has(name):
            raise ConfigError(f"{self.path}.{name}: required")
        return self._fields[name]


def describe(value: object) -> str:
    """Return a value as an error shows it, shortened."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_quantity(value: object) -> float | None:
    """Return the number of a quantity, or None if it is not valid."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix in _DECIMAL or suffix in _BINARY:
        return float(number) * (_DECIMAL.get(suffix) or _BINARY[suffix])
    return float(number + (suffix or ""))


def milli(number: float) -> int:
    """Return thousandths, rounded up as Kubernetes does, at most the largest 64-bit integer."""
    scaled = number * 1000
    if abs(scaled) >= _MAX:
        return _MAX if scaled > 0 else -_MAX
    nearest = round(scaled)
    # A number such as 0.3 is not exact in binary: 300.00000000000006 means 300.
    return nearest if abs(scaled - nearest) < 1e-6 else ceil(scaled)


def format_quantity(number: float) -> str:
    """Return the shortest quantity of a number in thousandths: 1500m, 2."""
    thousandths = milli(number)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"
