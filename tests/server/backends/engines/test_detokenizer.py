"""Incremental detokenization: characters stay whole, no text is sent twice, and stop strings are never seen."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from conch.server.backends.child.conch_child.engine.detokenizer import (
    StopStrings,
    TextStream,
    TokenTexts,
    decode_new,
    partial_character_tokens,
)

TEXTS = st.text(st.sampled_from("ab é😀\n中"), max_size=60)


PARTS = partial_character_tokens({bytes([byte]): byte for byte in range(256)})


def decode(many: list[list[int]]) -> list[str]:
    """A tokenizer whose tokens are bytes."""
    return [bytes(tokens).decode("utf-8", "replace") for tokens in many]


def decode_leniently(many: list[list[int]]) -> list[str]:
    """A tokenizer that omits invalid bytes, as OpenVINO's do."""
    return [bytes(tokens).decode("utf-8", "ignore") for tokens in many]


@given(TEXTS, st.lists(st.integers(1, 3), min_size=1, max_size=80), st.booleans(), st.booleans())
def test_pieces_add_up_to_the_text(text: str, sizes: Sequence[int], by_themselves: bool, leniently: bool) -> None:
    data, pieces, stream = text.encode(), [], TextStream()
    decoder = decode_leniently if leniently else decode
    known = TokenTexts(decoder, ord("a"), PARTS if leniently else ()) if by_themselves else None
    position = 0
    for size in [*sizes, len(data)]:
        chunk, position = data[position : position + size], position + size
        (piece,) = decode_new([(stream, chunk, position >= len(data))], decoder, known)
        assert "\ufffd" not in piece
        pieces.append(piece)
        if position >= len(data):
            break
    assert "".join(pieces) == text


def test_which_tokens_are_parts_of_characters() -> None:
    written = [b"a", " é".encode(), b" \xe4\xb8", b"\xadx", b"<0x41>", b"<0xE4>", "▁the".encode(), b"<0xzz>", b""]
    assert partial_character_tokens({text: number for number, text in enumerate(written)}) == {2, 3, 5}


def test_an_incomplete_character_is_sent_at_the_end() -> None:
    stream = TextStream()
    assert decode_new([(stream, b"a\xc3", False)], decode) == [""]
    assert decode_new([(stream, b"", True)], decode) == ["a\ufffd"]


def test_streams_do_not_mix() -> None:
    first, second = TextStream(), TextStream()
    assert decode_new([(first, b"a", False), (second, "é".encode()[:1], False)], decode) == ["a", ""]
    assert decode_new([(first, b"b", True), (second, "é".encode()[1:], True)], decode) == ["b", "é"]
    assert decode_new([], decode) == []


WORDS = ["one", "two", "中", "<s>"]


def decode_words(many: list[list[int]]) -> list[str]:
    """A tokenizer that writes a blank before each word but the first, and nothing for its special token."""
    return [" ".join(WORDS[token] for token in tokens if token != 3) for tokens in many]


@given(st.lists(st.integers(0, 3), max_size=20))
def test_what_stands_before_a_token_is_minded(tokens: Sequence[int]) -> None:
    stream, pieces = TextStream(), TokenTexts(decode_words, 0)
    text_sent = [decode_new([(stream, [token], False)], decode_words, pieces)[0] for token in tokens]
    assert "".join(text_sent) == decode_words([list(tokens)])[0]


def test_a_token_is_decoded_when_it_is_first_seen() -> None:
    calls = []

    def counted(many: list[list[int]]) -> list[str]:
        calls.append(many)
        return decode(many)

    pieces = TokenTexts(counted, ord("a"))
    assert [decode_new([(TextStream(), b"abba", False)], counted, pieces) for _ in range(3)] == [["abba"]] * 3
    assert len(calls) == 1


STOPS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3)


@given(st.lists(st.text("abc", max_size=3), max_size=20), STOPS)
def test_text_ends_before_the_first_stop_string(pieces: Sequence[str], stops: Sequence[str]) -> None:
    finder, text_sent, stop_string = StopStrings(stops, include=False), "", None
    for number, piece in enumerate(pieces):
        new_text, stop_string = finder.feed(piece, number == len(pieces) - 1)
        text_sent += new_text
        # Text that was sent cannot be retracted, so it must not include part of a stop string.
        assert "".join(pieces).startswith(text_sent)
        if stop_string is not None:
            break
    text = "".join(pieces)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (text_sent, stop_string) == (text, None)
    else:
        assert stop_string is not None
        assert text_sent + stop_string == text[: min(ends)]


def test_a_stop_string_may_be_part_of_the_text() -> None:
    finder = StopStrings(["STOP"], include=True)
    assert finder.feed("one S") == ("one ", None)
    assert finder.feed("TOP two") == ("STOP", "STOP")


def test_the_beginning_of_a_stop_string_is_kept_back_until_it_is_none() -> None:
    finder = StopStrings(["</s>"], include=False)
    assert finder.feed("a</") == ("a", None)
    assert finder.feed("b") == ("</b", None)
    assert finder.feed("<", last=True) == ("<", None)
