"""The text of a checked file, with conversion between offsets and places."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from conch.check.finding import Edit, Place

_MAX_BYTES = 4 << 20  # a larger file was not written by hand


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file and its text."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "SourceFile | None":
        """Read a file; None if it cannot be read, is not a regular file of UTF-8 text or exceeds the size limit."""
        try:
            status = path.stat()
            if status.st_size > _MAX_BYTES or not S_ISREG(status.st_mode):  # reading a pipe would wait
                return None
            # Bytes, because reading text would convert line ends.
            return cls(path, path.read_bytes().decode("utf-8").removeprefix("\ufeff"))
        except (OSError, UnicodeDecodeError):
            return None

    def at(self, offset: int) -> Place:
        """Return the place of a character."""
        starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect_right(starts, offset)
        return Place(self.path, line, offset - starts[line - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place, the inverse of `at`."""
        lines = self.text.split("\n")
        return sum(len(each) + 1 for each in lines[: line - 1]) + column - 1

    def find(self, pattern: str) -> Place:
        """Return the place of the first match of a regular expression, or the whole file."""
        match = re.search(pattern, self.text, re.MULTILINE)
        return self.at(match.start()) if match else Place(self.path)

    def edited(self, edits: Iterable[Edit]) -> "SourceFile":
        """Return a copy with the edits applied."""
        text = self.text
        for edit in sorted(edits, key=lambda each: each.start, reverse=True):
            text = text[: edit.start] + edit.replacement + text[edit.end :]
        return SourceFile(self.path, text)


def before(offset: int, edits: Iterable[Edit]) -> int:
    """Convert an offset in the edited text to one in the text before the edits."""
    for edit in sorted(edits, key=lambda each: each.start):
        grown = len(edit.replacement) - (edit.end - edit.start)
        if offset >= edit.end + grown:
            offset -= grown
    return offset
