"""Streamed text on a terminal, whose lines break between words."""

import os
import sys
from typing import Final

from rich.cells import cell_len

from conch.base.command_line.say import terminal_columns

_FENCE: Final = "```"  # of Markdown, before and after code
_TAB: Final = 8


class WordWrap:
    """Breaks the lines of a text that comes in pieces where its next word has no room.

    A word is shown as it grows: once it is too long for the line, it is erased and continues in the next one. Code in
    Markdown's fences and words that are longer than a line are left to the terminal, so that they can be copied.
    """

    def __init__(self) -> None:
        self._line = ""  # since the last line break of the text
        self._word = ""  # since the last place to break
        self._column = 0  # on the terminal
        self._in_code = False

    def wrapped(self, piece: str) -> str:
        """Return what to print on stdout for the next piece: the piece itself for files and dumb terminals."""
        columns = terminal_columns(sys.stdout)
        if not columns or os.environ.get("TERM") == "dumb":
            return piece
        return "".join(self._shown(character, columns) for character in piece)

    def _shown(self, character: str, columns: int) -> str:
        if character == "\n":
            if self._line.lstrip().startswith(_FENCE):
                self._in_code = not self._in_code
            self._line = self._word = ""
            self._column = 0
            return character
        self._line += character
        if self._in_code:
            return character
        width = _TAB - self._column % _TAB if character == "\t" else cell_len(character)
        breaks = character.isspace() or width > 1  # between ideographs, too
        shown = character
        # The last column stays free: after it, terminals disagree about where the cursor is.
        if self._column + width >= columns and (breaks or self._column > cell_len(self._word)):
            if character.isspace():
                self._word, self._column = "", 0
                return "\n"
            shown = self._erased_word() + character
        self._word = "" if breaks else self._word + character
        self._column = (self._column + width) % columns
        return shown

    def _erased_word(self) -> str:
        """Return what moves the word into the next line."""
        self._column = cells = cell_len(self._word)
        return f"\x1b[{cells}D\x1b[K\n{self._word}" if cells else "\n"
