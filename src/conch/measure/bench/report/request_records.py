"""`--records`: one JSON object for each request, a line each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from conch.measure.bench.measurement import Level
from conch.measure.bench.records import Chunks, RecordLog, Records, RequestOutcome
from conch.measure.bench.report.certificate import public_url
from conch.measure.bench.statistics.selection import RunWindow

_ROWS = 8_192  # as Python objects at once
_TIMES = ("intended", "sent", "first", "done")
_COUNTS = ("process", "session", "request", "status", "sent_bytes", "received_bytes", "responses")
_TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")


class RequestRecords:
    """Appends the records of one level after the other to a file. `error` is the first failure to write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self.error: OSError | None = None

    def open(self) -> None:
        """Create the file, empty. Raises OSError."""
        self._file = self._path.open("wb")

    def add(self, url: str, repetition: int, level: Level, log: RecordLog, window: RunWindow) -> None:
        """Append the records of a level; after a failure, nothing."""
        if self._file is None or self.error is not None:
            return
        head = {"url": public_url(url), "level": level.label, "repetition": repetition}
        try:
            for lines in _lines(head, log.records, log.chunks, window):
                self._file.write(lines)
            self._file.flush()
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error


def _lines(head: dict[str, Any], records: Records, chunks: Chunks, window: RunWindow) -> Iterator[bytes]:
    """Yield lines of some requests, in the order in which they ended.

    Times are seconds from the start of the level. What is unknown, or did not happen, is null.
    """
    for start in range(0, len(records), _ROWS):
        rows = records[start : start + _ROWS]
        columns = {name: rows[name].tolist() for name in rows.dtype.names or ()}
        lines = []
        for at in range(len(rows)):
            row = {name: values[at] for name, values in columns.items()}
            document: dict[str, Any] = {
                **head,
                "phase": _phase(row, window),
                "outcome": RequestOutcome(row["outcome"]).name.lower(),
                **{f"{name}_s": _seconds(row[f"{name}_ns"], window) for name in _TIMES},
                **{name: row[name] for name in _COUNTS},
                **{name: row[name] if row[name] >= 0 else None for name in _TOKENS},
            }
            if row["chunks_from"] >= 0:
                own = chunks["received_ns"][row["chunks_from"] : row["chunks_from"] + row["responses"]]
                document["responses_s"] = [_seconds(time_ns, window) for time_ns in own.tolist()]
            lines.append(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        yield b"".join(lines)


def _phase(row: dict[str, Any], window: RunWindow) -> str:
    if row["done_ns"] < window.start_ns:
        return "warm-up"
    return "window" if row["done_ns"] < window.end_ns else "end"


def _seconds(time_ns: int, window: RunWindow) -> float | None:
    return round((time_ns - window.run_start_ns) / 1e9, 9) if time_ns else None
