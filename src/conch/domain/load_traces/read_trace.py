"""Reads a file of a recorded load, whose format is named or detected."""

from pathlib import Path

from conch.domain.load_traces.columns import TraceError
from conch.domain.load_traces.load_trace import LoadTrace
from conch.domain.load_traces.recorded_formats import read_burstgpt, read_mooncake, read_request_log
from conch.domain.load_traces.timestamps import UNITS, read_intervals, read_timestamps

MAX_BYTES = 2**30
FORMATS = ("timestamps", *UNITS, "intervals", "mooncake", "burstgpt", "log")
_LOG_STARTS = ("I", "W", "E", "V")


def read_trace(source: str, model: str | None = None) -> LoadTrace:
    """Read FILE or FORMAT:FILE. `model` selects requests of a log.

    Formats are s, ms, us and ns (one time a line), timestamps (the same, unit detected), intervals (perf_analyzer's
    µs between requests), mooncake, burstgpt, and log (of Conch). Raises TraceError, which names the file, the line and
    what would be right.
    """
    form, colon, rest = source.partition(":")
    if not colon or form not in FORMATS:
        form, rest = "", source
    text = _load(rest)
    name = Path(rest).name
    form = form or _detect(text)
    if form == "mooncake":
        return read_mooncake(name, text.splitlines())
    if form == "burstgpt":
        return read_burstgpt(name, text.splitlines())
    if form == "log":
        return read_request_log(name, text.splitlines(), model)
    if form == "intervals":
        return read_intervals(name, text)
    return read_timestamps(name, text, form if form in UNITS else None)


def _load(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise TraceError(f"{path}: more than {MAX_BYTES // 2**20} MiB; cut the file")
    return data.decode("utf-8", "replace").lstrip("\ufeff")


def _detect(text: str) -> str:
    """Return the format by the first line that is not empty."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if first.startswith("{"):
        return "log" if '"message"' in first and '"level"' in first else "mooncake"
    if first.lower().startswith("timestamp,") or "Request tokens" in first:
        return "burstgpt"
    is_iso = len(first) > 20 and first[4:5] == "-" and first[10:11] == "T"
    if is_iso or (first.startswith(_LOG_STARTS) and first[1:5].isdigit()):
        return "log"
    return "timestamps"
