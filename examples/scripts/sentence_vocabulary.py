"""Learns the sentence encoder's word pieces: the most frequent neighbours within words are joined, over and over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from wordpiece import INNER, words

Pair = tuple[str, str]


def learn(texts: Iterable[str], size: int) -> list[str]:
    """Return the pieces, `size` of them, every letter that occurs among them."""
    counts = Counter(word for text in texts for word in words(text))
    spelt = [[word[0], *(INNER + letter for letter in word[1:])] for word in sorted(counts)]
    weights = [counts[word] for word in sorted(counts)]
    pieces = sorted({part for parts in spelt for part in parts})
    pairs: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)

    def note(place: int, sign: int) -> None:
        for pair in pairwise(spelt[place]):
            pairs[pair] += sign * weights[place]
            places[pair].add(place)

    for place in range(len(spelt)):
        note(place, 1)
    while len(pieces) < size:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        pieces.append(best[0] + best[1].removeprefix(INNER))
        for place in places.pop(best):
            note(place, -1)
            spelt[place] = joined(spelt[place], best)
            note(place, 1)
        del pairs[best]
    return pieces


def joined(parts: list[str], pair: Pair) -> list[str]:
    """Return the parts of a word with every occurrence of the pair made one."""
    made: list[str] = []
    position = 0
    while position < len(parts):
        if tuple(parts[position : position + 2]) == pair:
            made.append(pair[0] + pair[1].removeprefix(INNER))
            position += 2
        else:
            made.append(parts[position])
            position += 1
    return made
