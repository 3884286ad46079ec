"""Typed access to the fields of an OpenAI request, with errors that name the field."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.tensor import Buffer
from conch.protocols.http.message import header
from conch.protocols.openai.field_rules import FieldRules, rules

# Deeper than any schema or conversation, and supported by all encoders and templates.
MAX_DEPTH = 64
# Header with the ignored fields of a request.
IGNORED_HEADER = "X-Conch-Ignored"
_MAX_IGNORED = 16  # names in it
_MAX_NAME_CHARACTERS = 64
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)
_NO_RULES = rules()


class InvalidField(InvalidRequest):
    """The field `param` of an OpenAI request is invalid."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.param = param


class ObjectNotFound(NotFound):
    """A file, batch, response or adapter does not exist. Its code is not the one of an unknown model."""


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


class IgnoredField(NamedTuple):
    """A field of a request that has no effect. `known`: its name is one of ours, not any that a client has sent."""

    name: str
    refusal: str  # what a strict server answers
    known: bool

    @property
    def shown(self) -> str:
        """The name for headers and logs."""
        return _UNSAFE.sub("?", self.name[:_MAX_NAME_CHARACTERS])


class ReadCall(Protocol):
    """What a reader makes of a body."""

    @property
    def ignored(self) -> Sequence[IgnoredField]:
        """The fields without an effect."""


def ignored_header(ignored: Sequence[IgnoredField]) -> bytes:
    """Return the header line with the names of ignored fields, of which some may be omitted; b"" for none."""
    if not ignored:
        return b""
    names = list(dict.fromkeys(field.shown for field in ignored))
    more = ["..."] if len(names) > _MAX_IGNORED else []
    return header(IGNORED_HEADER.encode(), ", ".join([*names[:_MAX_IGNORED], *more]).encode())


class Fields:
    """The fields of one request, read by name; `done` decides on the others by `rules`.

    Those of inner objects are decided on together with their parent's.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        rules: FieldRules = _NO_RULES,
        *,
        parent: "Fields | None" = None,
        name: str = "",
    ) -> None:
        self._document = document
        self._rules: FieldRules = rules if parent is None else parent._rules
        self._prefix: str = "" if parent is None else f"{parent._prefix}{name}."
        self._read: set[str] = set()
        self._inner: list[Fields] = []
        self._ignored: list[IgnoredField] = [] if parent is None else parent._ignored
        if parent is not None:
            parent._inner.append(self)

    def given(self, names: Sequence[str]) -> "list[str]":
        """Return those of some fields that are not missing or null."""
        return [name for name in names if self._document.get(name) is not None]

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
        return None if value is None else Fields(value, parent=self, name=name)

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

    def ignore(self, *names: str) -> None:
        """Note that fields have no effect, which may be paths such as `messages[].name`."""
        for name in names:
            self._read.add(name)
            self._note_ignored(f"{self._prefix}{name}")

    def done(self) -> tuple[IgnoredField, ...]:
        """Return the fields that are ignored: of those that have not been read, also in inner objects.

        Raises InvalidField for those that are refused.
        """
        for name, value in self._document.items():
            if name not in self._read:
                self._decide(name, value)
        self._read.update(self._document)
        for inner in self._inner:
            inner.done()
        return tuple(self._ignored)

    def _decide(self, name: str, value: Any) -> None:
        path = f"{self._prefix}{name}"
        rule = self._rules.get(path)
        if rule is None:
            self._note_ignored(path)
        elif value is None or value in rule.neutral:
            return
        elif rule.decision == "refused":
            raise self.wrong(name, _unsupported(path, rule.note))
        elif rule.decision == "ignored":
            self._note_ignored(path)

    def _note_ignored(self, path: str) -> None:
        rule = self._rules.get(path)
        text = f"Unrecognized request argument supplied: {path}" if rule is None else _unsupported(path, rule.note)
        self._ignored.append(IgnoredField(path, text, rule is not None))

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


def _unsupported(path: str, note: str) -> str:
    return f"'{path}' is not supported{': ' if note else ''}{note}"
