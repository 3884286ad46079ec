"""Repair syntax errors of a configuration, so that the check can continue and `--fix` can write safe repairs."""

import re
from dataclasses import dataclass

from conch.check.finding import Edit
from conch.check.source import SourceFile

_DID_YOU_MEAN = re.compile(
    r"unknown (?:field|value) ['\"]?(?P<wrong>[^'\" ]+)['\"]? .*did you mean '?(?P<right>\w+)'?\?"
)
_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")


@dataclass(frozen=True, slots=True)
class Repair:
    """Edits that make a text parseable. `certain`: there is no other interpretation, so `--fix` may write them."""

    edits: tuple[Edit, ...]
    certain: bool


def find_repair(source: SourceFile, offset: int, error: str) -> Repair | None:
    """Return a repair of the mistake at a place, by the parser's error message; None if there is no obvious one."""
    if "is one message, not a list" in error:
        return _unwrapped(source.text, offset)
    if source.text[offset : offset + 1] == "]" and source.text[:offset].rstrip().endswith(","):
        comma = source.text.rfind(",", 0, offset)
        return Repair((Edit(comma, comma + 1, ""),), certain=True)
    if "is a string: write it in quotes" in error:
        word = re.compile(r"[\w.+-]+").match(source.text, offset)
        return Repair((Edit(offset, word.end(), f'"{word[0]}"'),), certain=True) if word else None
    if match := re.search(r"write it without quotes: (\w+)", error):
        quoted = re.compile(r"[\"'][^\"'\n]*[\"']").search(source.text, max(offset - 1, 0))
        return Repair((Edit(quoted.start(), quoted.end(), match[1]),), certain=True) if quoted else None
    if match := _DID_YOU_MEAN.search(error):
        start = source.text.find(match["wrong"], max(offset - 1, 0))
        edit = Edit(start, start + len(match["wrong"]), match["right"])
        # A missing TYPE_ is certain; a similar name is not.
        return Repair((edit,), certain=match["right"] == f"TYPE_{match['wrong']}") if start >= 0 else None
    return None


def _unwrapped(text: str, start: int) -> Repair | None:
    """Change `field [ { … } ]` to `field { … }`, if the list has exactly one message."""
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
    # With several messages, none, or a comma or comment between the brackets, the repair is not certain.
    if mark != "]" or messages != 1 or opening is None or text[end : match.start()].strip():
        return None
    closing = end if "\n" not in text[end : match.start()] else match.start()
    return Repair((Edit(start, opening.end(), ""), Edit(closing, match.end(), "")), certain=True)
