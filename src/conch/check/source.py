"""The text of a checked file, with conversion between offsets and places."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

from conch.check.finding import Edit, Place

_MAX_BYTES = 4 << 20  # a larger file was not written by hand


class UncheckedFileError(Exception):
    """A file is not text that can be checked. The message is a predicate, such as `is not a regular file`."""


class NotTextError(UncheckedFileError):
    """A file is not UTF-8 text."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file and its text."""

    path: Path
    text: str

    @classmethod
    def open(cls, path: Path) -> "SourceFile":
        """Read a file. Raises UncheckedFileError if it is not a regular file of UTF-8 text within the size limit."""
        try:
            status = path.stat()
            if not S_ISREG(status.st_mode):  # reading a pipe would wait
                raise UncheckedFileError("is not a regular file")
            if status.st_size > _MAX_BYTES:
                raise UncheckedFileError(f"has {status.st_size} bytes; files over {_MAX_BYTES} bytes are not checked")
            # Bytes, because reading text would convert line ends.
            return cls(path, path.read_bytes().decode("utf-8").removeprefix("\ufeff"))
        except OSError as error:
            raise UncheckedFileError(f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise NotTextError(f"is not UTF-8 text: byte {error.start} is invalid") from None

    @classmethod
    def read(cls, path: Path) -> "SourceFile | None":
        """Read a file; None if it is not text that can be checked."""
        try:
            return cls.open(path)
        except UncheckedFileError:
            return None

    def at(self, offset: int) -> Place:
        """Return the place of a character."""
        starts = _line_starts(self.text)
        line = bisect_right(starts, offset)
        return Place(self.path, line, offset - starts[line - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place, the inverse of `at`."""
        starts = (*_line_starts(self.text), len(self.text) + 1)
        return starts[min(line, len(starts)) - 1] + column - 1

    @property
    def lines(self) -> int:
        """The number of lines."""
        return len(_line_starts(self.text))

    def span(self, number: int) -> slice:
        """Return where a line, 1-based, stands in the text, without its end; empty if there is none."""
        starts = _line_starts(self.text)
        if not 0 < number <= len(starts):
            return slice(0, 0)
        return slice(starts[number - 1], starts[number] - 1 if number < len(starts) else len(self.text))

    def find(self, pattern: str) -> Place:
        """Return the place of the first match of a regular expression, or the whole file."""
        match = re.search(pattern, self.text, re.MULTILINE)
        return self.at(match.start()) if match else Place(self.path)

    def edited(self, edits: Iterable[Edit]) -> "SourceFile":
        """Return a copy with the edits applied."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            text = text[: edit.start] + edit.replacement + text[edit.end :]
        return SourceFile(self.path, text)


class SourceReader:
    """Reads files, each at most once."""

    def __init__(self, known: Iterable[SourceFile] = ()) -> None:
        self._sources: dict[Path, SourceFile | None] = {source.path: source for source in known}

    def open(self, path: Path) -> SourceFile:
        """Read a file and remember it. Raises UncheckedFileError as `SourceFile.open` does."""
        source = self._sources.get(path) or SourceFile.open(path)
        self._sources[path] = source
        return source

    def read(self, path: Path) -> SourceFile | None:
        """Return a file, None if it is not text that can be checked."""
        if path not in self._sources:
            self._sources[path] = SourceFile.read(path)
        return self._sources[path]


@lru_cache(maxsize=8)
def _line_starts(text: str) -> tuple[int, ...]:
    """Return the offsets of lines. Findings of a file follow each other, so few texts are remembered."""
    return (0, *(match.end() for match in re.finditer("\n", text)))


def before(offset: int, edits: Iterable[Edit]) -> int:
    """Convert an offset in the edited text to one in the text before the edits."""
    for edit in sorted(edits, key=lambda edit: edit.start):
        grown = len(edit.replacement) - (edit.end - edit.start)
        if offset >= edit.end + grown:
            offset -= grown
    return offset
