"""Incremental detokenization, where a character may consist of several tokens, and stop strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

# Decoders write it for bytes that are not (yet) a character.
_INCOMPLETE = "\ufffd"
# Tokens that are decoded again before new ones, since a token's text depends on those before it (a leading space).
# A character consists of up to four.
_CONTEXT_TOKENS = 4
# That one call of a decoder takes, so that its results stay small.
_CHUNK_TOKENS = 4096
# Byte tokens in vocabularies of SentencePiece.
_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")

DecodeMany = Callable[[list[list[int]]], list[str]]


def partial_character_tokens(vocabulary: Mapping[bytes, int]) -> frozenset[int]:
    """Return the tokens whose bytes are not whole characters."""
    return frozenset(token for spelling, token in vocabulary.items() if not _is_text(spelling))


def _is_text(spelling: bytes) -> bool:
    byte = _BYTE.fullmatch(spelling)
    if byte is not None:
        return int(byte[1], 16) < 0x80
    try:
        spelling.decode()
    except UnicodeDecodeError:
        return False
    return True


class TokenTexts:
    """A cache of tokens' texts, for tokens that are whole characters: nearly all. Each is decoded once.

    `anchor` is a token of plain text, after which tokens are decoded for their text in the middle of a sequence.
    `parts` are tokens that are not whole characters, which cannot be seen from the text of decoders that omit them.
    """

    __slots__ = ("_alone", "_anchor", "_behind", "_decode", "_parts")

    def __init__(self, decode: DecodeMany, anchor: int, parts: Container[int] = ()) -> None:
        self._decode = decode
        self._anchor = anchor
        self._parts = parts
        self._behind: dict[int, str | None] = {}  # a token's text after other tokens; None if part of a character
        self._alone: dict[int, str] = {}  # and at the beginning, where that differs

    def add(self, token_ids: Iterable[int]) -> None:
        """Decode the tokens that are not in the cache."""
        new = [token for token in token_ids if token not in self._behind]
        if not new:
            return
        anchored = [[self._anchor, token] for token in new]
        before, *texts = self._decode([[self._anchor], *([token] for token in new), *anchored])
        for token, alone, anchored_text in zip(new, texts, texts[len(new) :]):
            behind = anchored_text[len(before) :]
            if _INCOMPLETE in alone + anchored_text or not anchored_text.startswith(before) or token in self._parts:
                self._behind[token] = None
                continue
            self._behind[token] = behind
            if alone != behind:
                self._alone[token] = alone

    def add_all(self, vocabulary: int) -> None:
        """Decode every token, from 0: with one in most steps for the first time, each step would call the decoder."""
        for start in range(0, vocabulary, _CHUNK_TOKENS):
            self.add(range(start, min(start + _CHUNK_TOKENS, vocabulary)))

    def text(self, token_ids: Sequence[int], first: bool) -> str | None:
        """Return the text of cached tokens, `first` at the beginning of a sequence; None if one needs a decoder."""
        text = ""
        for token in token_ids:
            piece = self._behind[token]
            if piece is None:
                return None
            text += self._alone.get(token, piece) if first else piece
            first = first and not text  # tokens without text, such as special ones, do not count
        return text


class TextStream:
    """The incremental detokenizer of one sequence."""

    __slots__ = ("_context", "_held")

    def __init__(self) -> None:
        self._context: list[int] = []  # the last tokens whose text has been returned
        self._held: list[int] = []  # tokens whose text has not

    def add_known(self, token_ids: Sequence[int], pieces: TokenTexts) -> str | None:
        """Add new tokens and return their text if `pieces` has it; else return None and add nothing."""
        if self._held:
            return None
        text = pieces.text(token_ids, not self._context)
        if text:
            self._context = [*self._context, *token_ids][-_CONTEXT_TOKENS:]
        return text

    def add(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Add new tokens; return the two token lists to be decoded for `take`: with these tokens, and without."""
        self._held.extend(token_ids)
        return [*self._context, *self._held], self._context

    def take(self, text: str, before: str, last: bool) -> str:
        """Return the new text of the decoded lists. An incomplete character is held back unless `last`."""
        if text.endswith(_INCOMPLETE) and not last:
            return ""
        self._context = [*self._context, *self._held][-_CONTEXT_TOKENS:]
        self._held = []
        return text[len(before) :]


def decode_new(
    streams: Sequence[tuple[TextStream, Sequence[int], bool]], decode: DecodeMany, pieces: TokenTexts | None = None
) -> list[str]:
    """Return the new text of each stream, given its new tokens and whether they are its last."""
    if pieces is None:
        return _decoded(streams, decode)
    pieces.add({token for _, token_ids, _ in streams for token in token_ids})
    texts = [stream.add_known(token_ids, pieces) for stream, token_ids, _ in streams]
    rest = iter(_decoded([stream for stream, text in zip(streams, texts) if text is None], decode))
    return [next(rest) if text is None else text for text in texts]


def _decoded(streams: Sequence[tuple[TextStream, Sequence[int], bool]], decode: DecodeMany) -> list[str]:
    if not streams:
        return []
    windows = [stream.add(token_ids) for stream, token_ids, _ in streams]
    # One call for all, as the overhead of decoders is per call.
    texts = decode([tokens for window in windows for tokens in window])
    decoded = zip(streams, texts[::2], texts[1::2])
    return [stream.take(text, before, last) for (stream, _, last), text, before in decoded]


class StopStrings:
    """Finds stop strings in streamed text, and holds back text that may be the beginning of one."""

    __slots__ = ("_held", "_include", "_stops")

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = stops
        self._include = include  # whether the stop string is part of the text
        self._held = ""

    def feed(self, text: str, last: bool = False) -> tuple[str, str | None]:
        """Add text; return the text that can be sent, and the stop string that ends it, None without one."""
        if not self._stops:
            return text, None
        held = self._held + text
        matches = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if matches:
            # The first to be complete, as if tokens were characters; of those complete together, the longest.
            position, stop = min(matches, key=lambda match: (match[0] + len(match[1]), match[0]))
            self._held = ""
            return held[: position + len(stop) if self._include else position], stop
        keep = 0 if last else max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], None


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text are a beginning of the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
