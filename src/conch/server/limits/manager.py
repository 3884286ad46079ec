"""The limits of a running server: their sources, changes of them, and the audit log.

A change is recorded first and then applied. A source that fails keeps its last limits. Belongs to the event loop's
thread; files are read and written in others.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError, ConfigError, Unavailable
from conch.domain.limits import (
    UNLIMITED,
    LimitKey,
    Limits,
    describe,
    describe_limit,
    read_limits,
    read_limits_file,
    watch_limits_file,
)
from conch.server.limits.audit_log import AuditLog
from conch.server.limits.limiter import Limiter
from conch.server.limits.table import SOURCES, LimitTable
from conch.server.observability.event_log import EventRecorder

_MAX_HISTORY = 100
_MODELS_S = 1.0
_ADMIN = "admin"
_NOT_READ = "not read yet"

_log = logging.getLogger(__name__)

# Watches a source until it is cancelled; called with the manager.
Watch = Callable[["LimitManager"], Awaitable[None]]


@dataclass(slots=True)
class SourceState:
    """The last limits of a source, and whether it could be read; `error` is why not."""

    limits: dict[LimitKey, int] = field(default_factory=dict)
    up: bool = True
    error: str = ""
    changes: int = 0


class LimitManager:
    """The limits of one server. Life: `start` → `stop`.

    `install` gets the limiter while there is something to limit or measure, and None otherwise. `served` returns
    identities, names and versions of the models that take requests.
    """

    def __init__(
        self,
        *,
        install: Callable[[Limiter | None], None],
        served: Callable[[], Iterable[tuple[int, str, str]]],
        file: str = "",
        audit: AuditLog | None = None,
        measure: bool = False,
        kubernetes: Watch | None = None,
    ) -> None:
        """Create a manager. `measure`: measure rates even without limits. `kubernetes` watches that source."""
        self.limiter = Limiter()
        self.on_change: Callable[[], Awaitable[None]] | None = None  # called when limits have changed
        self.recorder = EventRecorder()  # of the event log, set by the server
        self.sources: dict[str, SourceState] = {_ADMIN: SourceState()}
        self.last_change = 0.0  # seconds since the epoch
        self.audit_failures = 0
        self.audit = audit
        if audit is not None:
            audit.carried = self.carried
        self._install = install
        self._served = served
        self._file = Path(file) if file else None
        self._kubernetes = kubernetes
        self._measure = measure
        self._history: list[Limits] = []  # of the admin endpoint, the newest last
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        if file:
            self.sources["file"] = SourceState()
        if kubernetes is not None:
            self.sources["kubernetes"] = SourceState(up=False, error=_NOT_READ)

    async def start(self) -> None:
        """Open the audit log, read the sources and watch them. Raises ConfigError."""
        if self.audit is not None:
            self._restore(await asyncio.to_thread(self.audit.open))
        elif self._file is not None or self._kubernetes is not None:
            _log.warning("changes of limits are logged but not recorded; --limits-audit-log names a file for that")
        self._apply()
        if self._file is not None:
            limits = await asyncio.to_thread(_read_file, self._file)
            await self.replace("file", limits, who=f"file:{self._file}", first=True)
            self._tasks.append(asyncio.create_task(watch_limits_file(self._file, self.read_file)))
        if self._kubernetes is not None:
            self._tasks.append(asyncio.ensure_future(self._watch(self._kubernetes)))
        self._tasks.append(asyncio.create_task(self._follow_models()))

    async def stop(self) -> None:
        """Stop watching, and close the audit log."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.audit is not None:
            async with self._changing:
                self.audit.close()

    # ── changes ──

    async def replace(self, source: str, limits: Limits, *, who: str, first: bool = False) -> bool:
        """Replace the limits of a source; return whether that changes anything. `first`: it is read for the first time.

        A change that cannot be recorded is applied nevertheless, unlike one by the admin endpoint.
        """
        what = "limits read at start" if first else "limits set"
        async with self._changing:
            changed = await self._replace(source, limits, who, what)
            self.sources[source].changes += changed and not first
            return changed

    async def _replace(self, source: str, limits: Limits, who: str, what: str) -> bool:
        state = self.sources[source]
        if state.error not in ("", _NOT_READ):
            _log.info('limits of source "%s" are valid again: %d limits', source, len(limits))
        state.up, state.error = True, ""
        if state.limits == limits:
            return False
        before, after = describe(state.limits), describe(limits)
        await self._record({"what": what, "who": who, "source": source, "before": before, "after": after}, source)
        state.limits = dict(limits)
        self.last_change = time.time()
        self._apply()
        if self.on_change is not None:
            await self.on_change()
        now = time.monotonic_ns()
        self.recorder.change("limits", now, now, "", detail=f"{source}: {len(limits)} limits, were {len(before)}")
        _log.info("limits changed by %s (%s): %d limits, were %d", who, what, len(limits), len(before))
        return True

    def failed(self, source: str, error: str) -> None:
        """Record that a source cannot be read or is not valid: its last limits stay in force."""
        state = self.sources[source]
        if state.error != error:
            _log.error('limits of source "%s" not read, keeping the last ones: %s', source, error)
        state.up, state.error = False, error

    async def read_file(self) -> None:
        """Read the limits file; an invalid one leaves the limits unchanged."""
        assert self._file is not None
        try:
            limits = await asyncio.to_thread(_read_file, self._file)
        except ConfigError as error:
            self.failed("file", error.message)
            return
        await self.replace("file", limits, who=f"file:{self._file}")

    async def set_admin(self, limits: Limits, who: str, what: str = "limits set") -> bool:
        """Replace the limits of the admin endpoint, which can be rolled back. Raises Unavailable."""
        async with self._changing:
            before = dict(self.sources[_ADMIN].limits)
            changed = await self._replace(_ADMIN, limits, who, what)
            if changed:
                self.sources[_ADMIN].changes += 1
                self._history = [*self._history, before][-_MAX_HISTORY:]
            return changed

    async def roll_back(self, who: str) -> bool:
        """Undo the last change by the admin endpoint; return False if there is none. Raises Unavailable."""
        async with self._changing:
            if not self._history:
                return False
            await self._replace(_ADMIN, self._history[-1], who, "rolled back")
            self._history.pop()
            self.sources[_ADMIN].changes += 1
            return True

    async def _record(self, record: Mapping[str, Any], source: str) -> None:
        if self.audit is None:
            return
        try:
            await asyncio.to_thread(self.audit.append, record)
            # A witness outside of the log's files, where logs are collected.
            _log.info("audit log of limits: record %s", self.audit.last)
        except OSError as error:
            self.audit_failures += 1
            text = f"cannot write to the audit log of limits: {error.strerror}"
            if source == _ADMIN:
                raise Unavailable(f"{text}; the limits are unchanged", retry_after_s=1.0) from None
            _log.error("%s; a change of limits by %s is not recorded", text, source)

    def carried(self) -> dict[str, Any]:
        """Return what each file of the audit log repeats: the limits of the admin endpoint survive a restart."""
        return {"source": _ADMIN, "after": describe(self.sources[_ADMIN].limits)}

    def _restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        changes = [record for record in records if record.get("source") == _ADMIN and "after" in record]
        if not changes:
            return
        try:
            self.sources[_ADMIN].limits = read_limits({"limits": changes[-1]["after"]}, "audit log")
        except ConfigError as error:
            self.failed(_ADMIN, error.message)

    # ── effects ──

    def _apply(self) -> None:
        table = LimitTable({source: state.limits for source, state in self.sources.items()})
        self.limiter.set_table(table)
        active = self._measure or bool(table) or self._file is not None or self._kubernetes is not None
        self._install(self.limiter if active else None)

    async def _follow_models(self) -> None:
        """Forget the rates of models that are no longer served, and follow changes of ensembles."""
        known: set[tuple[int, str, str]] = set()
        while True:
            served = set(self._served())
            if served != known:
                known = served
                self.limiter.keep_models(frozenset((name, version) for _, name, version in served))
            await asyncio.sleep(_MODELS_S)

    async def _watch(self, watch: Watch) -> None:
        try:
            await watch(self)
        except ConchError as error:
            self.failed("kubernetes", error.message)
        except Exception as error:
            _log.exception("the watch of Kubernetes annotations failed unexpectedly")
            self.failed("kubernetes", f"{type(error).__name__}: {error}")

    # ── views ──

    def document(self) -> dict[str, Any]:
        """Return the limits in force with their sources, and the state of each source."""
        effective = [
            {
                **describe_limit(limit.key, limit.per_second),
                "source": limit.source,
                "overrides": {
                    source: "unlimited" if value == UNLIMITED else value for source, value in limit.overridden.items()
                },
            }
            for limit in sorted(self.limiter.table.effective.values(), key=lambda limit: str(limit.key))
        ]
        sources = {
            name: {"up": state.up, "error": state.error, "changes": state.changes, "limits": describe(state.limits)}
            for name in SOURCES
            if (state := self.sources.get(name)) is not None
        }
        return {
            "precedence": list(SOURCES),
            "limits": effective,
            "sources": sources,
            "audit_records": 0 if self.audit is None else self.audit.seq,
            "rollbacks": len(self._history),
        }


def _read_file(path: Path) -> dict[LimitKey, int]:
    try:
        return read_limits_file(path)
    except ConfigError as error:
        raise ConfigError(f"--limits-file: {error.message}") from None
