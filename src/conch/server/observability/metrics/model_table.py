"""The table of models in the log at start, as in Triton."""

from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

_HEADINGS = ("Model", "Version", "Status")
_STATUS_WIDTH = 88


class ModelRow(NamedTuple):
    """One model version. `reason` is empty if it is READY."""

    name: str
    version: str
    state: str
    reason: str = ""


def model_table(rows: Sequence[ModelRow]) -> str:
    """Return the table as text without a final newline. Long lines of reasons are wrapped."""
    cells = [((row.name,), (row.version,), _status(row)) for row in rows]
    columns = zip(*[((heading,) for heading in _HEADINGS), *cells], strict=True)
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [rule, _line(_HEADINGS, widths), rule]
    for cell in cells:
        lines += [_line(parts, widths) for parts in zip_longest(*cell, fillvalue="")]
    lines.append(rule)
    return "\n".join(lines)


def _status(row: ModelRow) -> tuple[str, ...]:
    text = f"{row.state}: {row.reason}" if row.reason else row.state
    return tuple(part for line in text.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    # Long words are not broken, so that paths and commands can be copied.
    return wrap(line, _STATUS_WIDTH, break_long_words=False, break_on_hyphens=False) or [""]


def _line(parts: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f" {part:<{width}} " for part, width in zip(parts, widths, strict=True))
    return "|".join(["", *padded, ""])
