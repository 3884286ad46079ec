"""Traces with lengths: Mooncake (JSONL), BurstGPT (CSV), and the request log of Conch."""

import csv
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from conch.domain.load_traces.columns import TraceColumns, TraceError
from conch.domain.load_traces.load_trace import LoadTrace

MOONCAKE = 'lines such as {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'
BURSTGPT = "the columns Timestamp, Request tokens and Response tokens"
REQUEST_LOG = "lines of conch serve --log-requests=all, as text or JSON"

_TEXT_LINE = re.compile(
    r"(?:[IWEV](?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d\.\d{6})"
    r'|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) [IWEV]) \d+ \S+\] "request" (?P<fields>.*)'
)
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s]+)')


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
        if hashes is not None and not (isinstance(hashes, list) and all(isinstance(each, int) for each in hashes)):
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
        found = _json_request(line) if line.startswith("{") else _text_request(line)
        if found is None or (model is not None and found[1].get("model") != model):
            continue
        ended_s, fields = found
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
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        what = f"has no '{key}'" if value is None else f"has an invalid '{key}': {str(value)[:40]}"
        raise TraceError(f"{name}: line {number} {what}; expected {expected}")
    return found


def _count(
    name: str, number: int, entry: Mapping[str, Any], key: str, expected: str, default: int | None = None
) -> int:
    if default is not None and entry.get(key) in (None, ""):
        return default
    found = _number(name, number, entry, key, expected)
    if found < 0 or found > 2**31 or found != int(found):
        raise TraceError(f"{name}: line {number}: '{key}' must be a number of tokens, got {found:g}")
    return int(found)
