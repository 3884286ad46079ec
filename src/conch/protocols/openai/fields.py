"""Typed access to the fields of an OpenAI request, with errors that name the field."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer

# Deeper than any schema or conversation, and supported by all encoders and templates.
MAX_DEPTH = 64


class InvalidField(InvalidRequest):
    """The field `param` of an OpenAI request is invalid."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.param = param


def read_object(body: Buffer, *, checked: bool = False) -> dict[str, Any]:
    """Parse a body as a JSON object. `checked`: its depth has been checked already. Raises InvalidField."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidField(None, f"We could not parse the JSON body of your request: {error}") from None
    if not isinstance(document, dict):
        raise InvalidField(None, "the body must be a JSON object")
    if not checked and _is_deeper(document, MAX_DEPTH):
        raise InvalidField(None, f"the body is nested too deeply: more than {MAX_DEPTH} levels")
    return document


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(element, levels - 1) for element in inner)


class Fields:
    """The fields of one request, read by name; `done` refuses those that have not been read."""

    def __init__(self, document: Mapping[str, Any], prefix: str = "") -> None:
        self._document = document
        self._prefix = prefix
        self._read: set[str] = set()

    def take(self, name: str) -> Any:
        """Return a field without a check; None if it is missing or null."""
        self._read.add(name)
        return self._document.get(name)

    def text(self, name: str) -> str | None:
        """Return a string."""
        value: str | None = self._typed(name, str, "a string")
        return value

    def required_text(self, name: str) -> str:
        """Return a required string."""
        value = self.text(name)
        if value is None:
            raise self.wrong(name, f"you must provide a '{self._prefix}{name}' parameter")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._typed(name, bool, "true or false")
        return default if value is None else bool(value)

    def integer(self, name: str) -> int | None:
        """Return an integer; 2.0 is valid too."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mistyped(name, "an integer", value)
        return value

    def number(self, name: str) -> float | None:
        """Return a number."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(name, "a number", value)
        return float(value)

    def object(self, name: str) -> dict[str, Any] | None:
        """Return an object."""
        value: dict[str, Any] | None = self._typed(name, dict, "an object")
        return value

    def list(self, name: str) -> list[Any] | None:
        """Return an array."""
        value: list[Any] | None = self._typed(name, list, "an array")
        return value

    def inner(self, name: str) -> "Fields | None":
        """Return the fields of an object in this one."""
        value = self.object(name)
        return None if value is None else Fields(value, f"{self._prefix}{name}.")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a string or an array of strings as strings."""
        value = self.take(name)
        if value is None:
            return ()
        given = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in given):
            raise self._mistyped(name, "a string or an array of strings", value)
        return tuple(given)

    def prompts(self, name: str, limit: int) -> "Sequence[str | Sequence[int]]":
        """Return a required prompt or array of up to `limit` prompts, each a text or token ids."""
        value = self.take(name)
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not value:
            raise self.wrong(name, f"'{name}' must be a string, an array of strings, of token ids or of such arrays")
        if all(isinstance(item, int) for item in value):
            value = [value]
        if len(value) > limit:
            raise self.wrong(name, f"'{name}' may hold {limit} texts at most, got {len(value)}")
        return [item if isinstance(item, str) else self.token_ids(name, item) for item in value]

    def token_ids(self, name: str, value: Any) -> "Sequence[int]":
        """Check for an array of token ids in a field, and return it."""
        if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**31 for item in value):
            return value
        raise self.wrong(name, f"'{self._prefix}{name}' must hold token ids, which are integers from 0")

    def refuse(self, name: str, harmless: Callable[[Any], bool], reason: str) -> None:
        """Refuse an unsupported field, unless its value has no effect."""
        value = self.take(name)
        if value is not None and not harmless(value):
            raise self.wrong(name, f"'{self._prefix}{name}' is not supported: {reason}")

    def done(self) -> None:
        """Refuse unknown fields: those that have not been read."""
        for name in self._document:
            if name not in self._read:
                raise self.wrong(name, f"Unrecognized request argument supplied: {self._prefix}{name}")

    def wrong(self, name: str, message: str) -> InvalidField:
        """Return the error for a field."""
        return InvalidField(f"{self._prefix}{name}", message)

    def _typed(self, name: str, kind: type, expected: str) -> Any:
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise self._mistyped(name, expected, value)
        return value

    def _mistyped(self, name: str, expected: str, value: Any) -> InvalidField:
        shown = orjson.dumps(value, default=str).decode()
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        return self.wrong(name, f"'{self._prefix}{name}' must be {expected}, got {shown}")
