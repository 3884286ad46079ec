"""Text → numbers of word pieces: of each word the longest first piece, then the longest continuations."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

# Numbers that do not stand for pieces; pieces begin behind them.
PADDING, UNKNOWN, FIRST = 0, 1, 2
# Prefix of pieces that continue a word.
INNER = "##"
_WORDS = re.compile(r"[a-z]+|\d|[^\s\w]|[^\W\da-z]")
_MAX_WORD_LENGTH = 64


def words(text: str) -> list[str]:
    """Words, digits and signs in small letters, without accents; `snake_case` and `CamelCase` are cut."""
    cut = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", cut) if not unicodedata.combining(letter))
    return _WORDS.findall(plain.lower())


class WordPieces:
    """A vocabulary: the pieces in the order of their numbers."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._number = {piece: FIRST + index for index, piece in enumerate(pieces)}
        self._longest = max(map(len, pieces))
        self._word = lru_cache(maxsize=20_000)(self._cut)

    def encode(self, text: str, limit: int) -> list[int]:
        """Return the text's numbers, `limit` of them at most; at least one."""
        numbers: list[int] = []
        for word in words(text):
            numbers += self._word(word)
            if len(numbers) >= limit:
                break
        return numbers[:limit] or [UNKNOWN]

    def _cut(self, word: str) -> tuple[int, ...]:
        return tuple(self._pieces(word[:_MAX_WORD_LENGTH]))

    def _pieces(self, word: str) -> Iterator[int]:
        position, mark = 0, ""
        while position < len(word):
            for end in range(min(len(word), position + self._longest), position, -1):
                number = self._number.get(mark + word[position:end])
                if number is not None:
                    yield number
                    break
            else:
                yield UNKNOWN
                end = position + 1
            position, mark = end, INNER
