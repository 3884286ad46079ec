"""Prompts that never repeat: words of one length near their start spell a number that is used once.

A server with a prefix cache answers a repeated prompt without computing it, so that its time to the first token says
little. The number is unique over all processes forked from the one that made it, and over all levels of a run; it
starts at random, so that a second run does not repeat the first one. All spellings have equally many bytes: a body is
changed in place, whatever its encoding.
"""

import fcntl
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final

from conch.measure.bench.prepared_request import ChangingBody

# Stands for the words in a prompt until it is encoded. No encoder changes it, and no text has it.
_MARK: Final = "\x7f"
_MARKED: Final = re.compile(b"\x7f+")
# Different prompts: enough that two runs hardly share one.
_SPACE: Final = 1 << 40
_BLOCK: Final = 256
_NUMBER: Final = struct.Struct("=Q")


class SharedCounter:
    """Numbers of which no two processes of a fork get the same."""

    def __init__(self) -> None:
        """Allocate shared memory, and the lock for it."""
        self._memory = mmap.mmap(-1, _NUMBER.size)
        self._lock = os.memfd_create("conch-bench-prompts")
        self._owner = -1
        self._next = self._end = 0

    def __del__(self) -> None:
        os.close(self._lock)

    def next(self) -> int:
        """Return the next number; a process takes 256 of them at a time."""
        process = os.getpid()
        if self._next == self._end or self._owner != process:
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
            (self._next,) = _NUMBER.unpack_from(self._memory)
            self._end = self._next + _BLOCK
            _NUMBER.pack_into(self._memory, 0, self._end)
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
            self._owner = process
        number: int = self._next
        self._next = number + 1
        return number


class UniqueWords:
    """Spells numbers in words of one length, the lowest digit first: prompts differ from the first of them on."""

    def __init__(self, words: Sequence[str]) -> None:
        """Keep the words of the most frequent length."""
        lengths = Counter(len(word.encode()) for word in words)
        self._length = lengths.most_common(1)[0][0]
        self.words = tuple(word for word in words if len(word.encode()) == self._length)
        self._counter = SharedCounter()
        self._start = int.from_bytes(os.urandom(8))

    def restrict(self, words: Sequence[str]) -> None:
        """Use only these words of `words`."""
        self.words = tuple(words)

    @property
    def size(self) -> int:
        """How many words are enough that prompts do not repeat in practice."""
        size = 1
        while len(self.words) ** size < _SPACE and len(self.words) > 1:
            size += 1
        return size

    def distinct(self, size: int) -> int:
        """Return the number of different texts of `size` words."""
        return int(len(self.words) ** size)

    def mark(self, size: int) -> str:
        """Return what stands for `size` words in a prompt."""
        return _MARK * (size * (self._length + 1) - 1)

    def fitting(self, characters: int) -> int:
        """Return how many words fit into `characters`, at most the property `size`."""
        return max(0, min(self.size, (characters + 1) // (self._length + 1)))

    def spelled(self, size: int) -> str:
        """Return `size` words that no call returned before, unless all have been."""
        words = self.words
        number = (self._start + self._counter.next()) % self.distinct(size)
        found = []
        for _ in range(size):
            number, digit = divmod(number, len(words))
            found.append(words[digit])
        return " ".join(found)

    def filled(self, text: str) -> str:
        """Return a text with new words where it is marked."""
        start = text.find(_MARK)
        if start < 0:
            return text
        length = text.count(_MARK)
        return text[:start] + self.spelled(self.fitting(length)) + text[start + length :]

    def changing(self, body: bytes) -> "UniqueBody | None":
        """Return the bodies that an encoded, marked prompt stands for; None if it is not marked, or not as it was."""
        found = _MARKED.findall(body)
        if len(found) != 1:
            return None
        before, after = body.split(found[0])
        return UniqueBody(self, before, self.fitting(len(found[0])), after)


class UniqueBody(ChangingBody):
    """Bodies that differ in a few words."""

    def __init__(self, words: UniqueWords, before: bytes, size: int, after: bytes) -> None:
        self._words = words
        self._before = before
        self._size = size
        self._after = after

    def next(self) -> bytes:
        return b"".join((self._before, self._words.spelled(self._size).encode(), self._after))
