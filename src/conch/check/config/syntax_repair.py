"""Mistakes in the text of a configuration whose cure is certain, and those past which the check can read on."""

import re
from dataclasses import dataclass

from conch.check.finding import Edit
from conch.check.source import SourceFile

_DID_YOU_MEAN = re.compile(
    r"unknown (?:field|value) ['\"]?(?P<wrong>[^'\" ]+)['\"]? .*did you mean '?(?P<right>\w+)'?\?"
)
_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")


@dataclass(frozen=True, slots=True)
class Mending:
    """How a text may be read on. `certain`: nothing else can have been meant, so `--fix` may write it."""

    edits: tuple[Edit, ...]
    certain: bool


def mending(source: SourceFile, offset: int, said: str) -> Mending | None:
    """Return how to mend the mistake at a place, by what the parser says about it; None if that is anybody's guess."""
    if "is one message, not a list" in said:
        return _unwrapped(source.text, offset)
    if source.text[offset : offset + 1] == "]" and source.text[:offset].rstrip().endswith(","):
        comma = source.text.rfind(",", 0, offset)
        return Mending((Edit(comma, comma + 1, ""),), certain=True)
    if "is a string: write it in quotes" in said:
        word = re.compile(r"[\w.+-]+").match(source.text, offset)
        return Mending((Edit(offset, word.end(), f'"{word[0]}"'),), certain=True) if word else None
    if match := re.search(r"it is written without quotes: (\w+)", said):
        quoted = re.compile(r"[\"'][^\"'\n]*[\"']").search(source.text, max(offset - 1, 0))
        return Mending((Edit(quoted.start(), quoted.end(), match[1]),), certain=True) if quoted else None
    if match := _DID_YOU_MEAN.search(said):
        start = source.text.find(match["wrong"], max(offset - 1, 0))
        edit = Edit(start, start + len(match["wrong"]), match["right"])
        # TYPE_ forgotten is certain; a name that is near is not.
        return Mending((edit,), certain=match["right"] == f"TYPE_{match['wrong']}") if start >= 0 else None
    return None


def _unwrapped(text: str, start: int) -> Mending | None:
    """`field [ { … } ]` → `field { … }`, if there is one message in the list."""
    depth, messages = 0, 0
    for match in _TOKEN.finditer(text, start):
        mark = match[0]
        if mark in "[{":
            depth += 1
            messages += mark == "{" and depth == 2
        elif mark in "]}":
            depth -= 1
        if depth == 0:
            break
    else:
        return None
    opening = re.compile(r"\[[ \t]*").match(text, start)
    end = text.rfind("}", 0, match.start()) + 1
    # Two messages, none, or a comma or comment between the brackets: not for a program to decide.
    if mark != "]" or messages != 1 or opening is None or text[end : match.start()].strip():
        return None
    closing = end if "\n" not in text[end : match.start()] else match.start()
    return Mending((Edit(start, opening.end(), ""), Edit(closing, match.end(), "")), certain=True)
