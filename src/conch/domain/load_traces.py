"""Recorded loads to replay: times, Mooncake, BurstGPT, and the request log of Conch."""

import csv
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

MAX_REQUESTS = 20_000_000
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_TIMES = "one time a line, in s, ms, µs or ns since 1970 or since the start"
# What the present time is in each unit since 1970, to a factor of ten.
_EPOCHS = (("s", 3e8, 1e11), ("ms", 1e11, 1e14), ("us", 1e14, 1e17), ("ns", 1e17, 1e20))
MOONCAKE = 'lines such as {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'
BURSTGPT = "the columns Timestamp, Request tokens and Response tokens"
REQUEST_LOG = "lines of conch serve --log-requests=all, as text or JSON"
_TEXT_LINE = re.compile(
    r"(?:[IWEV](?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d\.\d{6})"
    r'|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) [IWEV]) \d+ \S+\] "request" (?P<fields>.*)'
)
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s]+)')
MAX_BYTES = 2**30
FORMATS = ("timestamps", *UNITS, "intervals", "mooncake", "burstgpt", "log")
_LOG_STARTS = ("I", "W", "E", "V")


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """Requests in the order of their times. Optional columns are None where the format does not have them."""

    name: str
    times_s: NDArray[np.float64]  # from the first request
    input_tokens: NDArray[np.int64] | None = None  # -1: unknown
    output_tokens: NDArray[np.int64] | None = None  # -1: unknown
    sessions: NDArray[np.int64] | None = None  # numbers from 0
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    """Of each request, ids of the blocks of its prompt: equal ids are equal text (Mooncake: 512 tokens each)."""

    @property
    def duration_s(self) -> float:
        """The time of the last request."""
        return float(self.times_s[-1]) if len(self.times_s) else 0.0

    def window(self, start_s: float, end_s: float) -> "LoadTrace":
        """Return the requests from `start_s` until before `end_s`, with times from `start_s`.

        Raises ValueError if there are none.
        """
        first, last = np.searchsorted(self.times_s, (start_s, end_s))
        if first >= last:
            raise ValueError(
                f"{self.name} has no request from {start_s:g} s to {end_s:g} s; it is {self.duration_s:g} s long"
            )
        part = slice(int(first), int(last))
        return LoadTrace(
            self.name,
            self.times_s[part] - start_s,
            _part(self.input_tokens, part),
            _part(self.output_tokens, part),
            _part(self.sessions, part),
            None if self.hash_ids is None else self.hash_ids[part],
        )

    def faster(self, factor: float) -> "LoadTrace":
        """Return the trace at `factor` times its speed."""
        if not 1e-6 <= factor <= 1e6:
            raise ValueError(f"a trace cannot be replayed {factor:g} times as fast; expected a factor such as 2 or 0.5")
        times = self.times_s / factor
        return LoadTrace(self.name, times, self.input_tokens, self.output_tokens, self.sessions, self.hash_ids)


def _part(column: NDArray[np.int64] | None, part: slice) -> NDArray[np.int64] | None:
    return None if column is None else column[part]


class TraceError(ValueError):
    """A file that is not a trace of the format. The message names file and line."""


class TraceColumns:
    """Columns that grow; `finish` sorts them by time."""

    def __init__(self, name: str, *, has_tokens: bool) -> None:
        self._name = name
        self._has_tokens = has_tokens
        self._times: list[float] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._sessions: list[Hashable] = []
        self._hashes: list[tuple[int, ...]] = []

    def add(
        self,
        time_s: float,
        input_tokens: int = -1,
        output_tokens: int = -1,
        session: Hashable = None,
        hash_ids: tuple[int, ...] | None = None,
    ) -> None:
        """Append a request. Raises TraceError beyond the limit."""
        if len(self._times) >= MAX_REQUESTS:
            raise TraceError(f"{self._name}: more than {MAX_REQUESTS:,} requests; cut the file")
        self._times.append(time_s)
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        self._sessions.append(session)
        if hash_ids is not None:
            self._hashes.append(hash_ids)

    def finish(self, expected: str) -> LoadTrace:
        """Return the trace. Raises TraceError if it is empty; `expected` says what would be right."""
        if not self._times:
            raise TraceError(f"{self._name}: no request found; expected {expected}")
        times = np.array(self._times)
        order = np.argsort(times, kind="stable")
        hashes = self._hashes if len(self._hashes) == len(times) else None
        return LoadTrace(
            self._name,
            times[order] - times[order[0]],
            np.array(self._inputs, dtype=np.int64)[order] if self._has_tokens else None,
            np.array(self._outputs, dtype=np.int64)[order] if self._has_tokens else None,
            self._session_numbers(order),
            None if hashes is None else tuple(hashes[index] for index in order),
        )

    def _session_numbers(self, order: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """Return numbers in the order of first requests; each request without a session has its own."""
        if all(session is None for session in self._sessions):
            return None
        known = dict[Hashable, int]()
        numbers = [known.setdefault(_key(self._sessions[index], int(index)), len(known)) for index in order]
        return np.array(numbers, dtype=np.int64)


def _key(session: Hashable, index: int) -> Hashable:
    return ("", index) if session is None else session


def read_timestamps(name: str, text: str, unit: str | None) -> LoadTrace:
    """Return the trace of times in a unit; None: detected.

    Times since 1970 show their unit by their size. Others with a decimal point are seconds; those without one are
    ambiguous, and refused. Raises TraceError.
    """
    has_fraction = "." in text
    if unit is None:
        unit = _unit_of(name, float(_numbers(name, text, integers=False)[0]), has_fraction=has_fraction)
    # Nanoseconds since 1970 have more digits than a float, and differences are what counts.
    times = np.sort(_numbers(name, text, integers=unit == "ns" and not has_fraction))
    return LoadTrace(name, (times - times[0]).astype(np.float64) * UNITS[unit])


def read_intervals(name: str, text: str) -> LoadTrace:
    """Return the trace of perf_analyzer's `--request-intervals`: µs between requests. Raises TraceError."""
    gaps = _numbers(name, text, integers=False)
    negative = np.flatnonzero(gaps < 0)
    if len(negative):
        raise TraceError(f"{name}: interval {negative[0] + 1} is negative: {gaps[negative[0]]:g}")
    return LoadTrace(name, (np.cumsum(gaps) - gaps[0]) * 1e-6)


def _unit_of(name: str, first: float, *, has_fraction: bool) -> str:
    for unit, low, high in _EPOCHS:
        if low <= first < high:
            return unit
    if has_fraction:
        return "s"
    raise TraceError(f"{name}: the unit of its times is ambiguous; name it, as in ms:{name} (s, ms, us or ns)")


def _numbers(name: str, text: str, *, integers: bool) -> NDArray[np.float64]:
    """Return the numbers; those of `integers` are exact in 64 bits."""
    kind = np.int64 if integers else np.float64
    try:
        numbers: NDArray[np.float64] = np.array(text.split(), dtype=kind)
    except (ValueError, OverflowError):
        numbers = np.array(_numbers_of_lines(name, text, integers=integers), dtype=kind)
    if not len(numbers):
        raise TraceError(f"{name}: no request found; expected {_TIMES}")
    if len(numbers) > MAX_REQUESTS:
        raise TraceError(f"{name}: more than {MAX_REQUESTS:,} requests; cut the file")
    if not np.isfinite(numbers).all():
        raise TraceError(f"{name}: a time is not finite; expected {_TIMES}")
    return numbers


def _numbers_of_lines(name: str, text: str, *, integers: bool) -> list[float]:
    """Read line by line, with comments from # on, for the line of an error."""
    read = int if integers else float
    numbers = list[float]()
    for number, line in enumerate(text.splitlines(), 1):
        value = line.partition("#")[0].strip()
        if not value:
            continue
        try:
            numbers.append(read(value))
        except ValueError:
            raise TraceError(f"{name}: line {number} is not a number: '{value[:40]}'; expected {_TIMES}") from None
    return numbers


def read_mooncake(name: str, lines: Iterable[str]) -> LoadTrace:
    """Return the trace of Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids.

    `session_id`, which others add, is read too. Raises TraceError.
    """
    columns = TraceColumns(name, has_tokens=True)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _object(name, number, line, MOONCAKE)
        hashes = entry.get("hash_ids")
        if hashes is not None and not (isinstance(hashes, list) and all(isinstance(number, int) for number in hashes)):
            raise TraceError(f"{name}: line {number}: hash_ids must be a list of integers")
        columns.add(
            _number(name, number, entry, "timestamp", MOONCAKE) / 1e3,
            _count(name, number, entry, "input_length", MOONCAKE),
            _count(name, number, entry, "output_length", MOONCAKE),
            entry.get("session_id") if isinstance(entry.get("session_id"), (str, int)) else None,
            tuple(hashes) if hashes is not None else None,
        )
    return columns.finish(MOONCAKE)


def read_burstgpt(name: str, lines: Iterable[str]) -> LoadTrace:
    """Return the trace of BurstGPT's CSV, whose times are seconds. Raises TraceError.

    A failed request has 0 response tokens.
    """
    reader = csv.DictReader(lines)
    columns = TraceColumns(name, has_tokens=True)
    for row in reader:
        number = reader.line_num
        columns.add(
            _number(name, number, row, "Timestamp", BURSTGPT),
            _count(name, number, row, "Request tokens", BURSTGPT),
            _count(name, number, row, "Response tokens", BURSTGPT),
            row.get("Session ID") or None,
        )
    return columns.finish(BURSTGPT)


def read_request_log(name: str, lines: Iterable[str], model: str | None = None) -> LoadTrace:
    """Return the trace of the requests, of one model or all, in a log of Conch. Other lines are skipped.

    A line is written when a request ends; it came `total_us` before. Lines as text have no year: a log that spans a New
    Year is out of order. The format ISO8601 has times in whole seconds.
    """
    columns = TraceColumns(name, has_tokens=True)
    for number, line in enumerate(lines, 1):
        request = _json_request(line) if line.startswith("{") else _text_request(line)
        if request is None or (model is not None and request[1].get("model") != model):
            continue
        ended_s, fields = request
        columns.add(
            ended_s - _number(name, number, fields, "total_us", REQUEST_LOG) / 1e6,
            _count(name, number, fields, "prompt_tokens", REQUEST_LOG, default=-1),
            _count(name, number, fields, "completion_tokens", REQUEST_LOG, default=-1),
        )
    expected = REQUEST_LOG if model is None else f"{REQUEST_LOG}, with requests for the model '{model}'"
    return columns.finish(expected)


def _json_request(line: str) -> tuple[float, Mapping[str, Any]] | None:
    try:
        entry = orjson.loads(line)
        if not isinstance(entry, dict) or entry.get("message") != "request" or "total_us" not in entry:
            return None
        return datetime.fromisoformat(str(entry["time"])).timestamp(), entry
    except (orjson.JSONDecodeError, ValueError, KeyError):
        return None  # a line that is cut, as at the end of a log that is still written


def _text_request(line: str) -> tuple[float, Mapping[str, Any]] | None:
    match = _TEXT_LINE.match(line)
    if match is None:
        return None
    fields = {key: value.strip('"') for key, value in _FIELD.findall(match["fields"].partition(" stages=[")[0])}
    if "total_us" not in fields:
        return None
    try:
        if match["iso"]:
            return datetime.fromisoformat(match["iso"]).timestamp(), fields
        clock = datetime.fromisoformat(f"2024-{match['month']}-{match['day']}T{match['clock']}").replace(tzinfo=UTC)
    except ValueError:
        return None
    return clock.timestamp(), fields


def _object(name: str, number: int, line: str, expected: str) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{name}: line {number} is not valid JSON ({error}); expected {expected}") from None
    if not isinstance(entry, dict):
        raise TraceError(f"{name}: line {number} is not a JSON object; expected {expected}")
    return entry


def _number(name: str, number: int, entry: Mapping[str, Any], key: str, expected: str) -> float:
    value = entry.get(key)
    try:
        parsed = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        what = f"has no '{key}'" if value is None else f"has an invalid '{key}': {str(value)[:40]}"
        raise TraceError(f"{name}: line {number} {what}; expected {expected}")
    return parsed


def _count(
    name: str, number: int, entry: Mapping[str, Any], key: str, expected: str, default: int | None = None
) -> int:
    if default is not None and entry.get(key) in (None, ""):
        return default
    tokens = _number(name, number, entry, key, expected)
    if tokens < 0 or tokens > 2**31 or tokens != int(tokens):
        raise TraceError(f"{name}: line {number}: '{key}' must be a number of tokens, got {tokens:g}")
    return int(tokens)


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
