"""Write a bundle when an incident happens: one at a time, not too often, a bounded number of them.

Facts are gathered on the event loop, in pieces; a thread of low priority packs and writes them. A bundle that cannot be
written costs nothing but itself.
"""

import asyncio
import dataclasses
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any, Final

from conch.base.build_info import build_line
from conch.base.command_line.flags import Flag
from conch.base.errors import Unavailable
from conch.base.files.atomic import replace_file
from conch.base.logs import LineFormatter
from conch.domain.events.bundle import SUFFIX, Bundle
from conch.domain.events.log import EventLog
from conch.domain.events.merge import pieces
from conch.domain.events.redaction import Redaction
from conch.domain.exposition import Family, Point
from conch.machine.environment import read_environment
from conch.server.observability.incidents.triggers import Counts, Incident, Triggers
from conch.server.options.server_options import OWN_FLAGS, ServerOptions

# Variables that change how programs run, and hold no secrets.
_VARIABLES: Final = (
    "OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "ORT_*", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "MALLOC_*", "LD_PRELOAD", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED",
    "PYTHONHASHSEED", "TZ", "LANG", "LC_*", "TMPDIR", "CONCH_HTTP_THREAD_COUNT",
)  # fmt: skip


def facts(options: ServerOptions) -> dict[str, Any]:
    """Return machine, software, allowed variables, and options that are numbers, truth values or words of a list."""
    variables = {
        name: value[:1000]
        for name, value in sorted(os.environ.items())
        if any(fnmatchcase(name, pattern) for pattern in _VARIABLES)
    }
    shown = {flag.name: value for flag in OWN_FLAGS if (value := _shown(flag, options)) is not None}
    return {**dataclasses.asdict(read_environment()), "pid": os.getpid(), "variables": variables, "options": shown}


def _shown(flag: Flag, options: ServerOptions) -> object:
    """Return the value of an option that was changed, None for others; that of a text is only that it was given."""
    value = getattr(options, flag.attribute, flag.default)
    if value == flag.default:
        return None
    return value if isinstance(value, (bool, int, float)) and not flag.kind.secret else "[given]"


_MAX_LINES = 2000
_MAX_CHARACTERS = 4096  # of a line


class LogTail(logging.Handler):
    """Keeps the last lines, without those of single requests, which the event log has."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.setFormatter(LineFormatter(iso8601=False))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.msg != "request":
            self._lines.append(self.format(record)[:_MAX_CHARACTERS])

    def text(self) -> str:
        """Return the lines."""
        return "".join(f"{line}\n" for line in list(self._lines))


_log = logging.getLogger(__name__)

REASONS = ("p99", "failures", "death", "signal", "request")
DEFAULT_LAST_S = 600.0
_SAMPLE_S = 1.0
# From an incident to its bundle: what follows it belongs to it, a second incident to the same bundle.
_AFTER_S = 2.0
_LOW_PRIORITY = 10
_MAX_NOTES = 100
_MODE = 0o600


@dataclass(frozen=True)
class Sources:
    """What is asked for a bundle: on the event loop, `environment` and `requests` in a thread.

    `events` gets how many of the last seconds to read; None without an event log.
    """

    events: Callable[[float], Awaitable[EventLog]] | None
    metrics: Callable[[], Iterator[bytes]]
    models: Callable[[], Mapping[str, Any]]
    limits: Callable[[], Mapping[str, Any]]
    environment: Callable[[], Mapping[str, Any]]
    requests: Callable[[], Sequence[Mapping[str, Any]]]
    counts: Callable[[], Mapping[str, Counts]]


class Incidents:
    """The incidents of one server. All methods belong to the event loop's thread. Life cycle: `start` → `stop`."""

    def __init__(self, sources: Sources, triggers: Triggers, folder: Path | None, keep: int, interval_s: float) -> None:
        """`folder` gets at most `keep` bundles, automatic ones `interval_s` apart; None: they are only logged."""
        self._sources = sources
        self._triggers = triggers
        self._folder = folder
        self._keep = keep
        self._interval_s = interval_s
        self._tail = LogTail()
        self._pool = ThreadPoolExecutor(1, "conch-incidents", initializer=_lower_priority)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._packing = asyncio.Lock()
        self._notes: list[dict[str, str]] = []  # incidents since the bundle before
        self._written_s = -interval_s
        self._counts = dict.fromkeys(REASONS, 0)
        self.problem = ""  # why the last bundle could not be written

    def start(self) -> None:
        """Keep lines of the log, and watch for incidents if there is a folder for them."""
        self._loop = asyncio.get_running_loop()
        logging.getLogger("conch").addHandler(self._tail)
        if self._folder is not None:
            self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End watching; a bundle that is being written is completed."""
        logging.getLogger("conch").removeHandler(self._tail)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._pool.shutdown(wait=False)

    def on_signal(self) -> None:
        """Report SIGUSR2; may be called in a signal handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.report, Incident("signal", "the server received SIGUSR2"))

    def report(self, incident: Incident) -> str:
        """Log an incident and write its bundle soon, unless one is due or was just written. Return what happens."""
        self._counts[incident.reason] += 1
        moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        if len(self._notes) < _MAX_NOTES:
            self._notes.append({"time": moment, "reason": incident.reason, "detail": incident.detail})
        by_hand = incident.reason in ("signal", "request")
        ago_s = monotonic() - self._written_s
        if self._folder is None:
            outcome = "no bundle is written without --incident-dir"
        elif self._writing is not None:
            outcome = "the bundle that is being made, or the next one, notes it"
        elif ago_s < self._interval_s and not by_hand:
            outcome = f"the next bundle will note it; the last one was written {ago_s:.0f} s ago"
        else:
            outcome = "a bundle is being made"
            self._writing = asyncio.create_task(self._write(incident, 0.0 if by_hand else _AFTER_S))
            self._writing.add_done_callback(self._end_writing)
        _log.warning("incident: %s; %s", incident.detail, outcome, extra={"fields": {"incident": incident.reason}})
        return outcome

    async def bundle(self, last_s: float, incident: Incident) -> bytes:
        """Return a bundle of the last seconds. Raises Unavailable while another one is being made."""
        if self._packing.locked():
            raise Unavailable("another incident bundle is being made; try again in some seconds", retry_after_s=5)
        data, _ = await self._packed(last_s, incident)
        return data

    def families(self) -> Iterator[Family]:
        """Yield the number of incidents by reason."""
        points = [Point(count, {"reason": reason}) for reason, count in self._counts.items()]
        yield Family.of("conch_incidents_total", points)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            for incident in self._triggers.sample(self._sources.counts(), monotonic()):
                self.report(incident)

    async def _write(self, incident: Incident, delay_s: float) -> None:
        """Make a bundle and write it to the folder; a failure is logged once until a bundle can be written again."""
        await asyncio.sleep(delay_s)
        assert self._folder is not None
        try:
            data, noted = await self._packed(DEFAULT_LAST_S, incident)
            name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{incident.reason}"
            path = await asyncio.get_running_loop().run_in_executor(self._pool, self._store, name, data)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if not self.problem:
                _log.error("cannot write the bundle of an incident to '%s': %s", self._folder, reason)
            self.problem = f"the bundle of an incident could not be written to '{self._folder}': {reason}"
            return
        self.problem = ""
        del self._notes[:noted]
        self._written_s = monotonic()
        _log.warning("wrote the incident bundle '%s' (%d bytes); conch why and conch replay read it", path, len(data))

    def _end_writing(self, _task: asyncio.Task[None]) -> None:
        self._writing = None

    async def _packed(self, last_s: float, incident: Incident) -> tuple[bytes, int]:
        """Return a bundle, and how many of the notes are in it."""
        async with self._packing:
            sources = self._sources
            log = await sources.events(last_s) if sources.events is not None else EventLog()
            metrics = b"".join([piece async for piece in _in_turns(sources.metrics())])
            missing = [] if sources.events is not None else ["the event log is off (--event-log-bytes=0)"]
            if log.overrun_before > monotonic_ns() - last_s * 1e9:
                lost_s = (log.monotonic_ns - log.overrun_before) / 1e9
                missing.append(f"the event log holds the last {lost_s:.0f} s only: earlier rows were overwritten")
            notes = list(self._notes)
            manifest = {
                "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
                "reason": incident.reason,
                "detail": incident.detail,
                "incidents": notes,
                "server": build_line(),
                "last_s": last_s,
            }
            models, limits, lines = sources.models(), sources.limits(), self._tail.text()
            log = replace(log, server=Redaction().of_json(dict(log.server)))

            def pack() -> bytes:
                return Bundle(
                    manifest,
                    tuple(pieces(log)),
                    metrics.decode(),
                    models,
                    limits,
                    sources.environment(),
                    lines,
                    sources.requests(),
                    missing,
                ).to_bytes()

            return await asyncio.get_running_loop().run_in_executor(self._pool, pack), len(notes)

    def _store(self, name: str, data: bytes) -> Path:
        """Write a bundle and remove the oldest ones. Raises OSError."""
        folder = self._folder
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}{SUFFIX}"
        number = 1
        while path.exists():
            number += 1
            path = folder / f"{name}-{number}{SUFFIX}"
        replace_file(path, data, _MODE)
        known = sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        for old in known[: -self._keep]:
            old.unlink(missing_ok=True)
        return path


def _lower_priority() -> None:
    """Let this thread, not the process, wait for others (Linux)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)


async def _in_turns(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield parts, each in its own turn of the event loop."""
    for part in parts:
        yield part
        await asyncio.sleep(0)
