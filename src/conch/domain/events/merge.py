"""Join event logs that were read from one server one after the other, and divide one into pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from conch.domain.events.layout import KINDS, NAME
from conch.domain.events.log import EventLog, NameTable
from conch.domain.events.packing import Table

# Columns that no two rows of a kind have in common, of kinds whose rows may be read before they are complete.
_KEYS: Final = {
    "requests": ("number",),
    "batches": ("number",),
    "exchanges": ("number",),
    "holds": ("started", "model", "version", "instance"),
}
_MAX_ROWS: Final = 50_000  # of a piece, of each kind


def merged(logs: Sequence[EventLog]) -> EventLog:
    """Return the events of all logs, each once; of what had not ended in an earlier log, the row of a later one.

    The clock is that of the last log. `overrun_before` is the end of the last gap between two logs, or of the first
    log's.
    """
    if len(logs) < 2:
        return logs[0] if logs else EventLog()
    names = NameTable()
    parts: dict[str, list[Table]] = {}
    for log in logs:
        numbers = np.array([names.number(name) for name in log.names], np.uint32)
        for kind, table in log.tables.items():
            renamed = table.copy()
            for column in KINDS[kind]:
                if column.meaning == NAME:
                    renamed[column.name] = numbers[table[column.name]]
            parts.setdefault(kind, []).append(renamed)
    tables = {kind: _without_repeats(kind, np.concatenate(tables)) for kind, tables in parts.items()}
    return replace(logs[-1], overrun_before=_overrun(logs), lost=_lost(logs), names=tuple(names.texts), tables=tables)


def pieces(log: EventLog) -> Iterator[EventLog]:
    """Divide a log into logs of at most 50,000 rows of each kind, in the order of their ends, each with its own names.

    Ids of requests are names, too: there may be as many as requests.
    """
    count = max(1, *(-(-len(table) // _MAX_ROWS) for table in log.tables.values()))
    for index in range(count):
        tables = {
            kind: table[index * len(table) // count : (index + 1) * len(table) // count]
            for kind, table in log.tables.items()
        }
        yield log if count == 1 else _with_own_names(replace(log, tables=tables))


def _with_own_names(log: EventLog) -> EventLog:
    """Return a log without the names to which none of its rows refers."""
    columns = {kind: [column.name for column in KINDS[kind] if column.meaning == NAME] for kind in log.tables}
    numbers = [log.tables[kind][name] for kind, names in columns.items() for name in names]
    used = np.unique(np.concatenate([np.zeros(1, np.uint32), *numbers]))
    tables = {kind: table.copy() for kind, table in log.tables.items()}
    for kind, names in columns.items():
        for name in names:
            tables[kind][name] = np.searchsorted(used, tables[kind][name])
    return replace(log, names=[log.names[number] for number in used.tolist()], tables=tables)


def _without_repeats(kind: str, table: Table) -> Table:
    """Return each row once, at the place of its last version."""
    names = _KEYS.get(kind, table.dtype.names or ())
    order = np.lexsort([table[name] for name in names])  # stable: of equal rows the last version is the last
    is_repeated = np.ones(max(len(table) - 1, 0), bool)
    for name in names:
        ordered = table[name][order]
        is_repeated &= ordered[1:] == ordered[:-1]
    is_last = np.append(~is_repeated, np.ones(min(len(table), 1), bool))
    chosen: Table = table[np.sort(order[is_last])]
    return chosen


def _overrun(logs: Sequence[EventLog]) -> int:
    """Return before which time rows are missing: a log lacks what its ring lost since the log before was read."""
    overrun = logs[0].overrun_before
    for before, log in pairwise(logs):
        if log.overrun_before > before.monotonic_ns:
            overrun = log.overrun_before
    return overrun


def _lost(logs: Sequence[EventLog]) -> dict[str, int]:
    """Return the rows lost by kind, the most that a log says: counts are since the start of the server."""
    kinds = dict.fromkeys(kind for log in logs for kind in log.lost)
    return {kind: max(log.lost.get(kind, 0) for log in logs) for kind in kinds}
