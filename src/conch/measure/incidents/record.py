"""`conch record`: fetch an incident bundle from a running server: of the past, or of the time to come."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic
from typing import TYPE_CHECKING, Final

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import duration
from conch.base.control_characters import printable
from conch.base.errors import ConchError
from conch.base.http.credentials import KEY_HELP

if TYPE_CHECKING:
    from conch.domain.events.bundle import Bundle
    from conch.domain.events.log import EventLog

_FAILURE: Final = 1
_DEFAULT_LAST_S: Final = 600.0
_MAX_POLL_S: Final = 10.0
_MIN_POLL_S: Final = 0.5
_OVERLAP_S: Final = 2.0


def record(arguments: Sequence[str]) -> int:
    """Write a bundle; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        return _record(given)
    except ConchError as error:
        print(f"conch record: {printable(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return _FAILURE


def _record(given: Namespace) -> int:
    from conch.base.files.atomic import replace_file
    from conch.domain.events.bundle import SUFFIX

    path = given.output or Path(f"{time.strftime('%Y%m%d-%H%M%S')}-recorded{SUFFIX}")
    if given.duration is None:
        data = fetch_bundle(given.url, given.last, given.api_key_file)
        bundle = _read(data)
    else:
        bundle = recorded(given.url, given.duration, given.api_key_file)
        data = bundle.to_bytes()
    try:
        replace_file(path, data, 0o600)
    except OSError as error:
        print(f"conch record: cannot write '{path}': {error.strerror or error}", file=sys.stderr)
        return _FAILURE
    if given.json:
        row = {"file": str(path), "requests": len(bundle.log.requests), "bytes": len(data), "missing": bundle.missing}
        print(json.dumps(row))
        return 0
    for text in bundle.missing:
        print(f"conch record: {printable(text)}", file=sys.stderr)
    print(f"{path}: {len(bundle.log.requests):,} requests, {len(data):,} bytes")
    return 0


def fetch_bundle(url: str | None, last_s: float, api_key_file: str | None) -> bytes:
    """Return a bundle of the last seconds, made by the server. Raises InvalidRequest, Unavailable."""
    from conch.measure.why.source import fetch

    return fetch(url, f"/v2/debug/incident?last={last_s:.3f}", api_key_file)


def recorded(url: str | None, duration_s: float, api_key_file: str | None) -> "Bundle":
    """Return a bundle of the time from now on, however small the server's ring is. Raises as `fetch_bundle`.

    An interruption (Ctrl-C) ends the recording early.
    """
    from conch.domain.events.merge import merged, pieces

    logs: list[EventLog] = []
    try:
        logs.extend(_logs(url, duration_s, api_key_file))
    except KeyboardInterrupt:
        print("conch record: interrupted; writing what was recorded", file=sys.stderr)
    bundle = _read(fetch_bundle(url, 0, api_key_file))
    log = _since(merged([*logs, bundle.log]), logs[0].monotonic_ns if logs else 0)
    missing = [text for text in bundle.missing if "event log" not in text]
    if log.overrun_before:
        missing.append("rows of the event log were overwritten between two reads; give the server a larger one")
    return replace(bundle, logs=tuple(pieces(log)), missing=missing)


def _logs(url: str | None, duration_s: float, api_key_file: str | None) -> "Iterator[EventLog]":
    """Yield the events until the end, each part overlapping the one before; more often if the ring is short."""
    from conch.measure.why.source import fetch_log

    begun = last = monotonic()
    yield fetch_log(url, 0, api_key_file)
    wait_s = _MIN_POLL_S
    while (left_s := begun + duration_s - monotonic()) > 0:
        time.sleep(min(wait_s, left_s))
        now = monotonic()
        log = fetch_log(url, now - last + _OVERLAP_S, api_key_file)
        last = now
        held_s = (log.monotonic_ns - log.overrun_before) / 1e9 if log.overrun_before else 4 * _MAX_POLL_S
        wait_s = max(_MIN_POLL_S, min(_MAX_POLL_S, held_s / 4, 2 * wait_s))
        yield log


def _since(log: "EventLog", begin: int) -> "EventLog":
    """Return a log without the rows that ended before a time, and without overruns before it."""
    import numpy as np

    from conch.domain.events.layout import KINDS, TIME

    tables = {}
    for kind, table in log.tables.items():
        times = [table[column.name] for column in KINDS[kind] if column.meaning == TIME]
        tables[kind] = table[np.max(times, axis=0) > begin] if times and len(table) else table
    return replace(log, tables=tables, overrun_before=log.overrun_before if log.overrun_before > begin else 0)


def _read(data: bytes) -> "Bundle":
    from conch.domain.events.bundle import Bundle

    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return Bundle.read(Path(file.name))


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch record",
        description="Write an incident bundle of a running server: events, metrics, configurations, environment, log. "
        "By default of the past, as far as the server's event log reaches; with --duration of the time to come.",
    )
    parser.add_argument("url", nargs="?", help="HTTP port (default: the newest server of this user, or 127.0.0.1:8000)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: named by the time)")
    parser.add_argument(
        "--last", type=duration, default=_DEFAULT_LAST_S, metavar="TIME", help="how much of the past (default: 10m)"
    )
    parser.add_argument(
        "--duration", type=duration, metavar="TIME", help="record from now on for so long; Ctrl-C ends it"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON: file, requests, bytes, what is missing")
    return parser
