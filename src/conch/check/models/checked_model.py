"""A checked model: its folder, its configuration as far as that is complete, and the places of fields in the file."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from conch.check.finding import Place
from conch.check.source import SourceFile
from conch.domain.model_config import ModelConfig
from conch.server.repository.store import ModelFiles

_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")
_WORD = re.compile(r"[A-Za-z_][\w.]*(?:\[\d+\])?(?:\.\w+(?:\[\d+\])?)*")
_QUOTED = re.compile(r"'([^']+)'")
_OPEN = {"{": "}", "<": ">"}
_MAX_DEPTH = 32  # of messages in each other; the schema has fewer
_MAX_CHARACTERS = 1 << 20  # of a text that was written by hand


class PbtxtIndex:
    """The offsets of fields by their paths, such as `dynamic_batching.preferred_batch_size[1]`, and of strings.

    The text is parsed here again, because protobuf's parser, which has accepted it, keeps no offsets.
    """

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


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder and the text of its configuration, if it has one."""

    directory: Path
    source: SourceFile | None  # config.pbtxt

    @property
    def name(self) -> str:
        """The model's name."""
        return self.directory.name

    def locate(self, sentence: str) -> Place:
        """Return the place in the configuration that a message is about; the folder of a model without one."""
        if self.source is None:
            return Place(self.directory)
        # Messages name unnamed groups by their default name, which the text does not contain.
        sentence = re.sub(rf"instance group '?{re.escape(self.name)}_(\d+)", r"instance_group[\1]", sentence)
        return self.source.at(PbtxtIndex(self.source.text).locate(sentence))

    def field(self, path: str) -> Place:
        """Return the place of a field such as `output[0].dims`; the beginning of the file if it is absent."""
        if self.source is None:
            return Place(self.directory)
        return self.source.at(PbtxtIndex(self.source.text).fields.get(path, 0))


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model whose configuration could be read, perhaps after fields with errors were fixed or removed.

    `config` has the defaults, and is completed from the model file if that can be read without its framework.
    """

    folder: ModelFolder
    files: ModelFiles
    config: ModelConfig

    @property
    def name(self) -> str:
        """The model's name."""
        return self.folder.name

    @property
    def directory(self) -> Path:
        """`<repository>/<model>`."""
        return self.folder.directory

    @property
    def knows_tensors(self) -> bool:
        """Whether inputs and outputs are known."""
        return bool(self.config.inputs) and bool(self.config.outputs)

    def completed(self, config: ModelConfig) -> "CheckedModel":
        """Return a copy of the model with a more complete configuration."""
        return replace(self, config=config)
