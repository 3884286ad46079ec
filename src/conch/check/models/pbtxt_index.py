"""Index of the fields of a config.pbtxt: `dynamic_batching.preferred_batch_size[1]` → its offset in the text.

The text is parsed here again, because protobuf's parser, which has accepted it, keeps no offsets.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")
_WORD = re.compile(r"[A-Za-z_][\w.]*(?:\[\d+\])?(?:\.\w+(?:\[\d+\])?)*")
_QUOTED = re.compile(r"'([^']+)'")
_OPEN = {"{": "}", "<": ">"}
_MAX_DEPTH = 32  # of messages in each other; the schema has fewer
_MAX_CHARACTERS = 1 << 20  # of a text that was written by hand


class PbtxtIndex:
    """The offsets of fields by their paths, and of strings by their values."""

    def __init__(self, text: str) -> None:
        self.fields: dict[str, int] = {}
        self.strings: dict[str, int] = {}
        text = text if len(text) <= _MAX_CHARACTERS else ""
        self._tokens = [(match[0], match.start()) for match in _TOKEN.finditer(text) if match[0][0] != "#"]
        self._next = self._depth = 0
        self._message("", "")

    def locate(self, sentence: str) -> int:
        """Return the offset of the most specific field or string that a message names, 0 if it names none."""
        words = sorted(_WORD.findall(sentence), key=len, reverse=True)
        for word in (word for word in words if "." in word or "[" in word):
            for path in _shorter(word):
                if path in self.fields:
                    return self.fields[path]
        quoted = _QUOTED.findall(sentence)
        by_name = [path for word in quoted for path in self.fields if path.rpartition(".")[2] == word]
        for offset in (*map(self.fields.__getitem__, by_name), *(self.strings[w] for w in quoted if w in self.strings)):
            return offset
        return next((self.fields[word] for word in words if word in self.fields), 0)

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _message(self, prefix: str, end: str) -> None:
        counts: Counter[str] = Counter()
        while (token := self._peek()) and token != end:
            offset = self._tokens[self._next][1]
            self._next += 1
            if not (token[0].isalpha() or token[0] == "_"):  # separators
                continue
            if self._peek() == ":":
                self._next += 1
            path = f"{prefix}{token}"
            self.fields.setdefault(path, offset)
            if self._peek() == "[":
                self._next += 1
                while (inner := self._peek()) and inner != "]":
                    if inner == ",":
                        self._next += 1
                        continue
                    self._value(f"{path}[{counts[path]}]", self._tokens[self._next][1])
                    counts[path] += 1
                self._next += 1
            else:
                self._value(f"{path}[{counts[path]}]", offset)
                counts[path] += 1

    def _value(self, path: str, offset: int) -> None:
        first = path.removesuffix("[0]")
        self.fields.setdefault(path, offset)
        token = self._peek()
        if token in _OPEN:
            if self._depth == _MAX_DEPTH:
                self._next = len(self._tokens)
                return
            self._next += 1
            begin = len(self.fields)
            self._depth += 1
            self._message(f"{path}.", _OPEN[token])
            self._depth -= 1
            self._next += 1
            if first != path:  # the first element is also indexed without its number
                for inner, place in [*islice(self.fields.items(), begin, None)]:
                    if inner.startswith(f"{path}."):
                        self.fields.setdefault(first + inner[len(path) :], place)
            return
        if token[:1] in ("'", '"'):
            self.strings.setdefault(token[1:-1], self._tokens[self._next][1])
        self._next += 1


def _shorter(path: str) -> Iterator[str]:
    """Yield the path, then its parents."""
    while path:
        yield path
        path = path.rpartition("[" if path.endswith("]") else ".")[0]
