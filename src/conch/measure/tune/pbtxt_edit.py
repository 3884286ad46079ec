"""Edit a config.pbtxt: fields that stay the same keep their text, comments included.

A number or string that changes is replaced in its place. A field that changes otherwise is written again as a whole.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from google.protobuf import text_format

from conch.domain.config.document import from_document, to_document
from conch.domain.config.pbtxt import parse_pbtxt
from conch.measure.tune.knobs import Document

_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")
_CLOSING = {"{": "}", "<": ">"}
_PARAMETERS = "parameters"

_Span: TypeAlias = tuple[int, int]
_Path: TypeAlias = tuple[str | int, ...]


def edit_pbtxt(text: str, change: Callable[[Document], Document], where: str, backend: str = "") -> str:
    """Return the text with the changes that `change` makes to its document.

    `backend` is the server's, for a text that names none. Raises ConfigError if the text is invalid.
    """
    own = to_document(parse_pbtxt(text, where))
    names_backend = bool(own.get("backend") or own.get("platform"))
    target = change(own if names_backend else {**own, "backend": backend})
    if not names_backend and target.get("backend") == backend:
        target["backend"] = own.get("backend", "")
    message = from_document(target, where)
    target = to_document(message)
    edited = text
    for name in changed_fields(own, target):
        edited = (
            _with_parameters(edited, own, target) if name == _PARAMETERS else _with_field(edited, name, own, target)
        )
    if to_document(parse_pbtxt(edited, where)) == target:
        return edited
    return text_format.MessageToString(message)  # a layout that this module does not know: comments are lost


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the top-level fields in which two documents differ."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def fields_text(document: Mapping[str, Any], names: list[str]) -> str:
    """Return some top-level fields of a document as text."""
    return text_format.MessageToString(
        from_document({name: document[name] for name in names if name in document}, "configuration")
    )


def _with_field(text: str, name: str, own: Document, target: Document) -> str:
    spans = _Spans(text)
    changes = list(_changes((name,), own.get(name), target.get(name)))
    if all(path in spans.leaves and isinstance(value, (int, str)) and value != "" for path, value in changes):
        for path, value in sorted(changes, key=lambda change: spans.leaves[change[0]], reverse=True):
            text = _replaced(text, spans.leaves[path], _scalar(value, text[spans.leaves[path][0]]))
        return text
    rendered = fields_text(target, [name]) if target.get(name) not in (None, "", 0, [], {}) else ""
    if target.get(name) == {}:
        rendered = f"{name} {{\n}}\n"
    occurrences = [span for field, span in spans.fields if field == name]
    if not occurrences:
        return _appended(text, rendered)
    for span in reversed(occurrences[1:]):
        text = _replaced(text, _with_line(text, span), "")
    if not rendered:
        return _replaced(text, _with_line(text, occurrences[0]), "")
    return _replaced(text, occurrences[0], rendered.rstrip())


def _with_parameters(text: str, own: Document, target: Document) -> str:
    before, after = own.get(_PARAMETERS, {}), target.get(_PARAMETERS, {})
    for key in {**before, **after}:
        if before.get(key) == after.get(key):
            continue
        spans = _Spans(text)
        entry = spans.parameters.get(key)
        value = after.get(key, {}).get("string_value")
        if entry is None:
            text = _appended(text, fields_text({_PARAMETERS: {key: after[key]}}, [_PARAMETERS]))
            continue
        leaf = (*entry, "value", 0, "string_value", 0)
        if value is not None and leaf in spans.leaves:
            text = _replaced(text, spans.leaves[leaf], _scalar(value, '"'))
        elif key not in after and (span := spans.messages.get(entry)) is not None:
            text = _replaced(text, _with_line(text, span), "")
    return text


def _changes(path: _Path, before: Any, after: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield path and value of each scalar that differs, other differences with None. Paths are those of `_Spans`."""
    if isinstance(path[-1], str) and not isinstance(before, list):
        path = (*path, 0)
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        for name in before:
            yield from _changes((*path, name), before[name], after[name])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes((*path, index), old, new)
    elif before != after:
        scalar = isinstance(after, (int, str)) and not isinstance(before, (Mapping, list))
        yield path, after if scalar else None


def _scalar(value: int | str, quote: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and quote in "\"'":
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _replaced(text: str, span: _Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


def _appended(text: str, new: str) -> str:
    return text + ("" if not text or text.endswith("\n") else "\n") + new


def _with_line(text: str, span: _Span) -> _Span:
    """Return the lines of a field, if nothing but a comment stands beside it."""
    start = text.rfind("\n", 0, span[0]) + 1
    newline = text.find("\n", span[1])
    end = len(text) if newline < 0 else newline + 1
    beside = text[span[1] : end].strip()
    alone = not text[start : span[0]].strip() and (not beside or beside.startswith("#"))
    return (start, end) if alone else span


class _Spans:
    """Where a text has its fields: `fields` at the top, `leaves` by path, `messages` by path.

    A path has an index after each name: the number of the value among those of that name in its message.
    """

    def __init__(self, text: str) -> None:
        self.fields: list[tuple[str, _Span]] = []
        self.leaves: dict[_Path, _Span] = {}
        self.messages: dict[_Path, _Span] = {}
        self.parameters: dict[str, _Path] = {}
        self._text = text
        self._tokens = [(match[0], match.span()) for match in _TOKEN.finditer(text) if match[0][0] != "#"]
        self._next = 0
        self._message((), "")
        for path, span in self.leaves.items():
            if path[0] == _PARAMETERS and path[2:] == ("key", 0):
                self.parameters[text[span[0] + 1 : span[1] - 1]] = path[:2]

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self) -> _Span:
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _message(self, path: _Path, end: str) -> None:
        counts: dict[str, int] = {}
        while (name := self._peek()) and name != end:
            start = self._take()[0]
            if name in ",;":
                continue
            if self._peek() == ":":
                self._take()
            if self._peek() == "[":
                self._take()
                while self._peek() not in ("]", ""):
                    if self._peek() == ",":
                        self._take()
                        continue
                    counts[name] = counts.get(name, -1) + 1
                    self._value((*path, name, counts[name]), self._tokens[self._next][1][0])
                self._take()
            else:
                counts[name] = counts.get(name, -1) + 1
                self._value((*path, name, counts[name]), start)
            if not path:
                self.fields.append((name, (start, self._tokens[self._next - 1][1][1])))

    def _value(self, path: _Path, start: int) -> None:
        closing = _CLOSING.get(self._peek())
        if closing is None:
            self.leaves[path] = self._take()
            return
        self._take()
        self._message(path, closing)
        self.messages[path] = (start, self._take()[1])
