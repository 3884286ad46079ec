"""Prompts of random words with a given number of tokens, which if wanted never repeat.

Words of one length near their start then spell a number that is used once. A server with a prefix cache answers a
repeated prompt without computing it, so that its time to the first token says little. The number is unique over all
processes forked from the one that made it, and over all levels of a run; it starts at random, so that a second run does
not repeat the first one. All spellings have equally many bytes: a body is changed in place, whatever its encoding.
"""

import fcntl
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from conch.measure.bench.input_settings import Amount, InputError
from conch.measure.bench.inputs.vocabulary import TokenCounter, Vocabulary, text_of_tokens

# Stands for the words in a prompt until it is encoded. No encoder changes it, and no text has it.
_MARK: Final = "\x7f"
_MARKED: Final = re.compile(b"\x7f+")
# Different prompts: enough that two runs hardly share one.
_SPACE: Final = 1 << 40
_BLOCK: Final = 256
_NUMBER: Final = struct.Struct("=Q")
DEFAULT_WORDS = 64
_PREFIX_SEED, _BLOCK_SEED = 1, 2
# Words that are counted one by one: enough to spell numbers.
_MAX_COUNTED = 32


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
        chosen = []
        for _ in range(size):
            number, digit = divmod(number, len(words))
            chosen.append(words[digit])
        return " ".join(chosen)

    def filled(self, text: str) -> str:
        """Return a text with new words where it is marked."""
        start = text.find(_MARK)
        if start < 0:
            return text
        length = text.count(_MARK)
        return text[:start] + self.spelled(self.fitting(length)) + text[start + length :]

    def next_body(self, body: bytes) -> Callable[[], bytes] | None:
        """Return what makes the bodies that an encoded, marked prompt stands for; None if it has no whole mark."""
        marks = _MARKED.findall(body)
        if len(marks) != 1:
            return None
        before, after = body.split(marks[0])
        size = self.fitting(len(marks[0]))
        return lambda: b"".join((before, self.spelled(size).encode(), after))


class PromptWriter:
    """Writes different prompts, the same ones for the same seed.

    With a vocabulary that is not exact and a counter, prompts are cut to the exact number of tokens one by one.
    `unique` is for prompts that never repeat: they are marked where it puts words, right after what they share.
    """

    def __init__(
        self, vocabulary: Vocabulary, seed: int, counter: TokenCounter | None = None, *, unique: bool = False
    ) -> None:
        """Send requests to the counter if `unique` words have to be counted one by one."""
        self.vocabulary = vocabulary
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._cutter = None if vocabulary.exact else counter
        self.unique = UniqueWords(vocabulary.words) if unique else None
        self.fewest_distinct: int | None = None
        """How many different prompts the shortest one of those written so far stands for."""
        if self.unique is not None and self._cutter is not None:
            self.unique.restrict(_alike(self._cutter, vocabulary.first[0], self.unique.words[:_MAX_COUNTED]))

    @property
    def exact(self) -> bool:
        """Whether prompts have exactly the number of tokens that was asked for."""
        return self.vocabulary.exact or self._cutter is not None

    def amount(self, amount: Amount) -> int:
        """Return a random number in the range of an amount."""
        if not amount.spread:
            return amount.mean
        return int(self._rng.integers(amount.mean - amount.spread, amount.mean + amount.spread, endpoint=True))

    def prompt(self, tokens: int, prefix: Sequence[str] = (), *, first: bool = True, cut: bool = True) -> str:
        """Return a prompt of `tokens` tokens that starts with the words of a prefix.

        The first prompt of a conversation counts with what the chat template adds. `cut` allows to cut a text to the
        number of tokens, which sends requests. Raises InputError if the prefix and the template alone have more.
        """
        overhead = self.vocabulary.overhead if first else 0
        count = round((tokens - overhead) / self.vocabulary.tokens_per_word)
        if count < 1 or count < len(prefix):
            what = "the shared prefix and the chat template" if prefix else "the chat template"
            raise InputError(f"--prompt-tokens {tokens}: {what} alone have {overhead + len(prefix)} tokens")
        if self._cutter is not None and first and cut:
            shared = (*prefix, *self.words(0 if prefix else 1, self._rng))
            spelled = (self.unique.spelled(self.unique.size),) if self.unique is not None else ()
            longer = " ".join((*shared, *spelled, *self.words(2 * count + 16, self._rng, start=False)))
            text = text_of_tokens(self._cutter, longer, tokens)
            return self._marked(text, len(" ".join(shared)) + 1)
        words = self.words(count - len(prefix), self._rng, start=not prefix)
        if first and self.unique is not None:
            shared = (*prefix, *words[: 0 if prefix else 1])
            size = min(self.unique.size, count - len(shared))
            self._note_distinct(size)
            marks = [self.unique.mark(size)] if size else []
            return " ".join((*shared, *marks, *words[: count - len(shared) - size]))
        return " ".join((*prefix, *words))

    def _marked(self, text: str, start: int) -> str:
        """Mark the unique words of a text that was cut."""
        if self.unique is None:
            return text
        size = self.unique.fitting(len(text) - start)
        self._note_distinct(size)
        if not size:
            return text
        mark = self.unique.mark(size)
        return text[:start] + mark + text[start + len(mark) :]

    def _note_distinct(self, size: int) -> None:
        assert self.unique is not None
        distinct = self.unique.distinct(size)
        self.fewest_distinct = distinct if self.fewest_distinct is None else min(self.fewest_distinct, distinct)

    def prefix(self, number: int, tokens: int) -> list[str]:
        """Return the words of a shared prefix."""
        rng = np.random.default_rng((self._seed, _PREFIX_SEED, number))
        return self.words(round(tokens / self.vocabulary.tokens_per_word), rng)

    def blocks(self, hash_ids: Sequence[int], block_tokens: int, tokens: int) -> str:
        """Return a prompt of blocks: those with the same id have the same words, so that servers can share them.

        The last block is cut to the number of tokens; what the ids do not cover is random.
        """
        wanted = max(1, round((tokens - self.vocabulary.overhead) / self.vocabulary.tokens_per_word))
        words: list[str] = []
        for number in hash_ids:
            if len(words) >= wanted:
                break
            rng = np.random.default_rng((self._seed, _BLOCK_SEED, number))
            words += self.words(round(block_tokens / self.vocabulary.tokens_per_word), rng, start=not words)
        words += self.words(max(0, wanted - len(words)), self._rng, start=not words)
        return " ".join(words[:wanted])

    def words(self, count: int, rng: np.random.Generator, *, start: bool = True) -> list[str]:
        """Return random words; the first one, at the start of a prompt, is one that may stand there."""
        known = self.vocabulary
        words = [known.words[number] for number in rng.integers(0, len(known.words), count)]
        if start and words:
            words[0] = known.first[int(rng.integers(0, len(known.first)))]
        return words


def _alike(counter: TokenCounter, before: str, words: Sequence[str]) -> list[str]:
    """Return those words that have the same number of tokens after another one, as most of them have."""
    counted = [counter.count(f"{before} {word} {before}") for word in words]
    usual = Counter(counted).most_common(1)[0][0]
    return [word for word, tokens in zip(words, counted, strict=True) if tokens == usual]
