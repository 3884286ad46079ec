"""From tokens to text as they come: characters whose bytes are spread over tokens, and stop strings over characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

# What decoders put where bytes are no, or not yet a, character.
_INCOMPLETE = "\ufffd"
# Tokens that are decoded again before new ones: what comes before a token can change how it looks (a space at the
# beginning). A character may take up to four.
_KEPT = 4
# How some vocabularies write a token that is a byte.
_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

DecodeMany = Callable[[list[list[int]]], list[str]]


def parts_of_characters(vocabulary: Mapping[bytes, int]) -> frozenset[int]:
    """Return the tokens whose bytes are no whole characters."""
    return frozenset(token for written, token in vocabulary.items() if not _is_text(written))


def _is_text(written: bytes) -> bool:
    byte = _BYTE.fullmatch(written)
    if byte is not None:
        return int(byte[1], 16) < 0x80
    try:
        written.decode()
    except UnicodeDecodeError:
        return False
    return True


class Pieces:
    """The text of tokens that are text by themselves, which nearly all are: decoded once, when one is first seen.

    `anchor` is a token of plain text: how a token looks in the middle of a text is seen behind it. `parts` are those
    whose bytes are no characters by themselves; a decoder may leave such bytes out, so that its text does not show it.
    """

    __slots__ = ("_anchor", "_decode", "_known", "_parts")

    def __init__(self, decode: DecodeMany, anchor: int, parts: Container[int] = ()) -> None:
        self._decode = decode
        self._anchor = anchor
        self._parts = parts
        # token → its text at the beginning and behind others; None if it is a part of a character
        self._known: dict[int, tuple[str, str] | None] = {}

    def learn(self, token_ids: Iterable[int]) -> None:
        """Look at those that have not been seen before."""
        new = [token for token in token_ids if token not in self._known]
        if not new:
            return
        anchored = [[self._anchor, token] for token in new]
        before, *texts = self._decode([[self._anchor], *([token] for token in new), *anchored])
        for token, alone, behind in zip(new, texts, texts[len(new) :]):
            whole = _INCOMPLETE not in alone + behind and behind.startswith(before) and token not in self._parts
            self._known[token] = (alone, behind[len(before) :]) if whole else None

    def text(self, token_ids: Sequence[int], first: bool) -> str | None:
        """Return the text of learnt tokens, at the beginning of a text or not; None if it takes a decoder to know."""
        text = ""
        for token in token_ids:
            piece = self._known[token]
            if piece is None:
                return None
            text += piece[0 if first else 1]
            first = first and not text  # what shows nothing, such as a special token, does not count
        return text


class TextStream:
    """The text of one sequence, told in pieces."""

    __slots__ = ("_context", "_held")

    def __init__(self) -> None:
        self._context: list[int] = []  # the last tokens whose text has been told
        self._held: list[int] = []  # tokens whose text has not been told

    def skip(self, token_ids: Sequence[int], pieces: Pieces) -> str | None:
        """Take new tokens if their text is known without decoding; None otherwise."""
        if self._held:
            return None
        text = pieces.text(token_ids, not self._context)
        if text:
            self._context = [*self._context, *token_ids][-_KEPT:]
        return text

    def add(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Take new tokens; return what is to be decoded for `take`: with these tokens, and without."""
        self._held.extend(token_ids)
        return [*self._context, *self._held], self._context

    def take(self, text: str, before: str, last: bool) -> str:
        """Return what is new in the text. What may become another character is kept back unless it is last."""
        if text.endswith(_INCOMPLETE) and not last:
            return ""
        self._context = [*self._context, *self._held][-_KEPT:]
        self._held = []
        return text[len(before) :]


def tell(
    streams: Sequence[tuple[TextStream, Sequence[int], bool]], decode: DecodeMany, pieces: Pieces | None = None
) -> list[str]:
    """Give each stream its new tokens and whether they are its last; return the text that each has now to tell."""
    if pieces is None:
        return _decoded(streams, decode)
    pieces.learn({token for _, token_ids, _ in streams for token in token_ids})
    texts = [stream.skip(token_ids, pieces) for stream, token_ids, _ in streams]
    rest = iter(_decoded([stream for stream, text in zip(streams, texts) if text is None], decode))
    return [next(rest) if text is None else text for text in texts]


def _decoded(streams: Sequence[tuple[TextStream, Sequence[int], bool]], decode: DecodeMany) -> list[str]:
    if not streams:
        return []
    windows = [stream.add(token_ids) for stream, token_ids, _ in streams]
    # All of it in one call: it is by the calls that decoders are slow.
    texts = decode([tokens for window in windows for tokens in window])
    told = zip(streams, texts[::2], texts[1::2])
    return [stream.take(text, before, last) for (stream, _, last), text, before in told]


class StopStrings:
    """Finds stop strings in text that comes in pieces, and keeps back what may be the beginning of one."""

    __slots__ = ("_held", "_include", "_stops")

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include  # whether the stop string is part of the text
        self._held = ""

    def feed(self, text: str, last: bool = False) -> tuple[str, str | None]:
        """Take a piece; return what can be told, and the stop string that ends the text if one was found."""
        if not self._stops:
            return text, None
        held = self._held + text
        found = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if found:
            # The first to be complete, as if tokens were characters; of those that begin together, the shortest.
            position, stop = min(found, key=lambda each: (each[0] + len(each[1]), each[0]))
            self._held = ""
            return held[: position + len(stop) if self._include else position], stop
        keep = 0 if last else max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], None


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
