"""Lines of the event log: each row is read as it was written, in compact form or not."""

import random
from collections.abc import Callable

import pytest

from conch.domain.events.layout import KINDS, TIME
from conch.domain.events.lines import Columns, ExchangeLine, ExecutionLine, Line, LineRing, RequestLine
from conch.domain.events.rows import BatchRow, ExchangeRow, RequestRow, Row

LINES: dict[str, tuple[Callable[[], Line], Callable[[], Row]]] = {
    "requests": (RequestLine, RequestRow),
    "batches": (ExecutionLine, BatchRow),
    "exchanges": (ExchangeLine, lambda: ExchangeRow(0, "http", 0)),
}
# The second of them fit in no line, nor do negative numbers.
NUMBERS = (0, 1, 255, (1 << 15) - 1), ((1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 80, -1, -(1 << 40))
GAPS_NS = (0, 1, 70_000, 1 << 27), ((1 << 31) - 1, 1 << 40, -1, -(10**9))
# Columns that lines do not have, or not together with others.
UNUSUAL = ("first_token", "prompt_tokens", "completion_tokens", "correlation", "request", "decoded", "answered")
TEXTS = "", "a", "identity", "naïve", "x" * 128


def any_row(kind: str, row: Row, chance: random.Random, *, unusual: bool) -> Row:
    """Set all columns of a row, a few of them to what no line holds."""
    time = chance.choice((5, 10**15))
    for name in names(kind, row):
        column = next((column for column in KINDS[kind] if column.name == name), None)
        strange = unusual and chance.random() < 0.1
        if column is None or (column.type == "<u4" and column.meaning == "name"):
            setattr(row, name, chance.choice(TEXTS))
        elif column.codes:
            setattr(row, name, chance.choice(column.codes))
        elif column.type == "<u1":
            setattr(row, name, chance.randrange(2))
        elif column.meaning != TIME:
            setattr(row, name, chance.choice(NUMBERS[strange]))
    first_time = next(column for column in KINDS[kind] if column.meaning == TIME)
    for column in KINDS[kind]:
        if column.name in UNUSUAL and not unusual:
            setattr(row, column.name, 0)
        elif column.name == "number" and not unusual:
            setattr(row, column.name, 1 << 20)  # that of nothing else
        elif column.meaning == TIME:
            time += chance.choice(GAPS_NS[unusual and chance.random() < 0.1])
            setattr(row, column.name, time if column is first_time or chance.random() < 0.8 else 0)
    return row


def names(kind: str, row: Row) -> list[str]:
    """Return the names of a row's attributes; compiled classes have no `__slots__`."""
    return [*(column.name for column in KINDS[kind]), *(["id"] if hasattr(row, "id") else [])]


def cells(kind: str, row: Row | None) -> dict[str, object]:
    assert row is not None
    return {name: getattr(row, name) for name in names(kind, row)}


@pytest.mark.parametrize("kind", LINES)
def test_rows_are_read_as_they_were_written(kind: str) -> None:
    """In a ring that has wrapped, where lines and rows replace one another."""
    chance = random.Random(kind)
    new, row_of = LINES[kind]
    ring = LineRing(50, new, Columns())
    written: list[dict[str, object]] = []
    for number in range(2000):
        row = any_row(kind, row_of(), chance, unusual=number % 3 == 0)
        written.append(cells(kind, row))
        kept = ring.add(row)
        assert kept == (ring.rows[number % 50] is row)
    assert {isinstance(row, Line) for row in ring.rows} == {True, False}
    assert [cells(kind, ring.row(number)) for number in range(1950, 2000)] == written[1950:]
    assert ring.row(1949) is None


@pytest.mark.parametrize("kind", LINES)
def test_ordinary_rows_are_compact(kind: str) -> None:
    chance = random.Random(kind)
    new, row_of = LINES[kind]
    ring = LineRing(50, new, Columns())
    for _ in range(50):
        row = any_row(kind, row_of(), chance, unusual=False)
        ring.add(row)
    assert all(isinstance(row, Line) for row in ring.rows)


def test_texts_are_bounded() -> None:
    """A row with one text too many is kept as it is."""
    ring = LineRing(40_000, RequestLine, Columns())
    for number in range(1 << 15):
        row = RequestRow()
        row.number, row.shape = number, str(number)
        ring.add(row)
    assert isinstance(ring.rows[-2], Line)
    assert isinstance(ring.rows[-1], RequestRow)
    assert [getattr(ring.row(number), "shape", None) for number in (0, 32_766, 32_767)] == ["0", "32766", "32767"]
