"""From tokens to text as they come: characters whose bytes are spread over tokens, and stop strings over characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# What decoders put where bytes are no, or not yet a, character.
_INCOMPLETE = "\ufffd"
# Tokens that are decoded again with the next ones: what comes before a token can change how it looks (a space at the
# beginning), so a few stay; so many at most, since decoding takes time. A character may take up to four.
_KEPT = 4
_MOST = 20

DecodeMany = Callable[[list[list[int]]], list[str]]


class TextStream:
    """The text of one sequence, told in pieces."""

    __slots__ = ("_shown", "_window")

    def __init__(self) -> None:
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that have been told

    def add(self, token_ids: Sequence[int]) -> list[int]:
        """Take new tokens; return those that are to be decoded for `take`."""
        self._window.extend(token_ids)
        return self._window

    def take(self, text: str, last: bool) -> str:
        """Return what is new in the window's text. What may become another character is kept back unless it is last."""
        if text.endswith(_INCOMPLETE) and not last:
            return ""
        new = text[self._shown :]
        self._shown = len(text)
        return new

    @property
    def full(self) -> bool:
        """Whether the window should be moved on: `anchor` says to where, and `move` does it."""
        return len(self._window) > _MOST

    @property
    def anchor(self) -> list[int]:
        """The tokens that would stay."""
        return self._window[-_KEPT:]

    def move(self, text: str) -> None:
        """Move the window on to its anchor, whose text this is. Not if that text is cut within a character."""
        if _INCOMPLETE not in text:
            self._window = self.anchor
            self._shown = len(text)


def tell(streams: Sequence[tuple[TextStream, Sequence[int], bool]], decode: DecodeMany) -> list[str]:
    """Give each stream its new tokens and whether they are its last; return the text that each has now to tell."""
    if not streams:
        return []
    texts = decode([stream.add(token_ids) for stream, token_ids, _ in streams])
    news = [stream.take(text, last) for (stream, _, last), text in zip(streams, texts)]
    # Not one that keeps something back: what has been shown is not all of it.
    full = [stream for (stream, _, _), text in zip(streams, texts) if stream.full and not text.endswith(_INCOMPLETE)]
    if full:
        for stream, text in zip(full, decode([stream.anchor for stream in full])):
            stream.move(text)
    return news


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
