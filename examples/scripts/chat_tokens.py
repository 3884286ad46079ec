"""The chat model's tokens: byte pairs, merged as they are frequent, over words cut as Qwen2 cuts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, START, END)

# Qwen2's pattern in the words of `re`: \p{L} is [^\W\d_].
_WORDS = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\w\r\n]|_)?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# GPT-2 writes each byte as a character that can be seen.
_CHARACTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}


class Tokens:
    """A vocabulary and its merges."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        self.merges = merges
        self.texts = [_CHARACTERS[byte] for byte in range(256)] + ["".join(pair) for pair in merges] + list(SPECIAL)
        self._rank = {pair: rank for rank, pair in enumerate(merges)}
        self._id = {text: number for number, text in enumerate(self.texts)}
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def special(self, name: str) -> int:
        """The number of one of `SPECIAL`."""
        return self._id[name]

    def encode(self, text: str) -> list[int]:
        """Text without special tokens → numbers."""
        return [token for word in _WORDS.findall(text) for token in self._word(word)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Numbers → text; special tokens as they are written."""
        bytes_of = {character: byte for byte, character in _CHARACTERS.items()}
        text = "".join(self.texts[token] for token in tokens)
        return bytes(bytes_of[character] for character in text).decode(errors="replace")

    def _word(self, word: str) -> list[int]:
        if word not in self._known:
            parts = [_CHARACTERS[byte] for byte in word.encode()]
            while len(parts) > 1:
                best = min(pairwise(parts), key=lambda pair: self._rank.get(pair, 1 << 30))
                if best not in self._rank:
                    break
                parts = merge(parts, best)
            self._known[word] = [self._id[part] for part in parts]
        return self._known[word]


def learn(texts: Iterable[str], vocabulary: int) -> Tokens:
    """Merge the most frequent neighbours until there are `vocabulary` tokens, including `SPECIAL`."""
    counts = Counter(word for text in texts for word in _WORDS.findall(text))
    words = [([_CHARACTERS[byte] for byte in word.encode()], count) for word, count in sorted(counts.items())]
    pairs: Counter[tuple[str, str]] = Counter()
    for parts, count in words:
        for pair in pairwise(parts):
            pairs[pair] += count
    merges: list[tuple[str, str]] = []
    while len(merges) < vocabulary - 256 - len(SPECIAL):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for index, (parts, count) in enumerate(words):
            if best[0] not in parts or (merged := merge(parts, best)) == parts:
                continue
            pairs.subtract({pair: count * n for pair, n in Counter(pairwise(parts)).items()})
            for pair in pairwise(merged):
                pairs[pair] += count
            words[index] = (merged, count)
        pairs += Counter()
    return Tokens(merges)


def merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """`parts` with each occurrence of the pair made one."""
    merged: list[str] = []
    position = 0
    while position < len(parts):
        step = 2 if tuple(parts[position : position + 2]) == pair else 1
        merged.append("".join(parts[position : position + step]))
        position += step
    return merged
