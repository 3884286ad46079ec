"""Streamed text breaks between words."""

import io
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from conch.clients.word_wrap import WordWrap
from tests.support.terminal_text import without_erased

COLUMNS = 20
WORDS = st.text(st.sampled_from("abcdefg.,éß"), min_size=1, max_size=COLUMNS - 2)


class Terminal(io.StringIO):
    """What stdout is on a terminal."""

    def isatty(self) -> bool:
        return True


def lines_of(*pieces: str, term: str = "xterm") -> list[str]:
    """The lines that a terminal of 20 columns shows of a text in pieces."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", str(COLUMNS))
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(sys, "stdout", Terminal())
        text = "".join(map(WordWrap().wrapped, pieces))
    return without_erased(text).split("\n")


@given(st.lists(WORDS, max_size=30), st.lists(st.integers(0, 400), max_size=12))
def test_no_split_of_the_text_breaks_a_word(words: list[str], cuts: list[int]) -> None:
    text = " ".join(words)
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    lines = lines_of(*(text[start:end] for start, end in pairwise(places)))
    assert all(cell_len(line.rstrip()) < COLUMNS for line in lines)
    assert " ".join(lines).split() == words


def test_line_breaks_and_indents_of_the_text_stay() -> None:
    assert lines_of("- one\n  - two\n\nthree") == ["- one", "  - two", "", "three"]


def test_code_and_words_longer_than_a_line_are_left_to_the_terminal() -> None:
    code = "print(first, second, third, fourth)"
    url = "https://example.com/a/long/path"
    assert lines_of(f"See:\n```python\n{code}\n```\nat {url} as it is") == [
        *("See:", "```python", code, "```"),
        *("at ", f"{url} as it ", "is"),
    ]


def test_ideographs_break_anywhere_and_take_two_columns() -> None:
    assert lines_of("机器学习模型服务系统是一个很好的工具。") == ["机器学习模型服务系", "统是一个很好的工具", "。"]


def test_terminals_without_a_cursor_get_the_text() -> None:
    assert lines_of("a text of more than twenty columns", term="dumb") == ["a text of more than twenty columns"]
