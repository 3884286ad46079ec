"""The durable queue of alerts, in SQLite: survives restarts, SIGKILL and, with synchronous commits, power failures.

An alert is a row for each of its targets. It is *queued* until a message with it is delivered or given up; afterwards
its row remains without content for the time in which duplicates are dropped. A message is a *batch* of rows. It is
stored before the first attempt, so that the same batch is retried after a restart.
"""

import fcntl
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from conch.base.errors import ConfigError
from conch.operate.alerts.webhook import Alert

_SCHEMA_VERSION = 1
_SCHEMA = (
    """CREATE TABLE alerts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, key TEXT NOT NULL, grouping TEXT NOT NULL,
        accepted_at REAL NOT NULL, batch INTEGER, settled_at REAL, alert BLOB)""",
    "CREATE INDEX queued ON alerts (target, id) WHERE settled_at IS NULL",
    "CREATE INDEX batches ON alerts (target, batch) WHERE settled_at IS NULL",
    "CREATE INDEX keys ON alerts (target, key)",
    "CREATE INDEX settled ON alerts (settled_at) WHERE settled_at IS NOT NULL",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
_PAGE_BYTES = 4096
_MAX_FILE_BYTES = 2**30
_BUSY_TIMEOUT_S = 10.0


class QueueEntry(NamedTuple):
    """An alert for one target."""

    target: str
    grouping: str
    alert: Alert


class Accepted(NamedTuple):
    """The outcome for the entries of a webhook: numbers by target, and targets whose queue is full."""

    new: Counter[str]
    duplicates: Counter[str]
    full: tuple[str, ...]


class AlertBatch(NamedTuple):
    """The alerts of one message. `number` is the id of its first row, or 0 before it is stored."""

    number: int
    rows: tuple[int, ...]
    alerts: tuple[Alert, ...]
    accepted_at: float  # of the oldest, Unix time


class AlertQueue:
    """A queue in a folder. Thread-safe. Methods raise sqlite3.Error if the disk fails or is full."""

    def __init__(self, folder: Path, *, max_alerts: int, deduplicate_s: float, now: Callable[[], float]) -> None:
        """`max_alerts` is the maximum of queued alerts of each target; `now` returns the Unix time."""
        self._folder = folder
        self._max_alerts = max_alerts
        self._deduplicate_s = deduplicate_s
        self._now = now
        self._mutex = threading.Lock()
        self._queued = Counter[str]()
        self._database: sqlite3.Connection
        self._lock_file = -1

    def open(self) -> None:
        """Open or create the queue. Raises ConfigError if another process uses it or it cannot be opened."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process uses the queue {self._folder}; give each receiver its folder") from None
        except OSError as error:
            raise ConfigError(f"cannot create the queue {self._folder}: {error.strerror}") from None
        file = self._folder / "queue.db"
        try:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # before SQLite, for its mode
            self._database = sqlite3.connect(
                file, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S
            )
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            remedy = "move the file away to begin with an empty queue"
            raise ConfigError(f"cannot open the queue {file}: {error}; {remedy}") from None

    def close(self) -> None:
        """Close the queue."""
        with self._mutex:
            self._database.close()
            os.close(self._lock_file)

    def _prepare(self) -> None:
        run = self._database.execute
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA max_page_count = {_MAX_FILE_BYTES // _PAGE_BYTES}")
        version = run("PRAGMA user_version").fetchone()[0]
        if version == 0:
            with self._transaction():
                for statement in _SCHEMA:
                    run(statement)
        elif version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it has the format {version} of another version of Conch")
        rows = run("SELECT target, count(*) FROM alerts WHERE settled_at IS NULL GROUP BY target")
        self._queued = Counter(dict(rows.fetchall()))

    def accept(self, entries: Sequence[QueueEntry]) -> Accepted:
        """Store entries, durably when the method returns, except duplicates and those whose target's queue is full.

        A duplicate is an alert that is queued for the same target, or was settled within the time of deduplication.
        """
        now = self._now()
        with self._mutex:
            with self._transaction():
                # What was settled in the future is older than a step of the clock, and would drop reminders until then.
                since, until = now - self._deduplicate_s, now + self._deduplicate_s
                self._database.execute("DELETE FROM alerts WHERE settled_at < ? OR settled_at > ?", (since, until))
                new, duplicates = self._without_duplicates(entries)
                numbers = Counter(entry.target for entry in new)
                full = tuple(target for target, number in numbers.items() if self._is_full(target, number))
                kept = [entry for entry in new if entry.target not in full]
                self._database.executemany(
                    "INSERT INTO alerts (target, key, grouping, accepted_at, alert) VALUES (?, ?, ?, ?, ?)",
                    [(entry.target, entry.alert.key, entry.grouping, now, entry.alert.to_json()) for entry in kept],
                )
            accepted = Counter(entry.target for entry in kept)
            self._queued.update(accepted)
        return Accepted(accepted, duplicates, full)

    def _without_duplicates(self, entries: Sequence[QueueEntry]) -> tuple[list[QueueEntry], Counter[str]]:
        new, duplicates, seen = list[QueueEntry](), Counter[str](), set[tuple[str, str]]()
        for entry in entries:
            identity = (entry.target, entry.alert.key)
            # Rows that were settled before the time of deduplication have been deleted.
            known = self._database.execute("SELECT 1 FROM alerts WHERE target = ? AND key = ? LIMIT 1", identity)
            if identity in seen or known.fetchone() is not None:
                duplicates[entry.target] += 1
            else:
                new.append(entry)
            seen.add(identity)
        return new, duplicates

    def _is_full(self, target: str, number: int) -> bool:
        """Return whether `number` further alerts exceed the maximum. An empty queue takes any webhook."""
        queued = self._queued[target]
        return queued > 0 and queued + number > self._max_alerts

    def next_batch(self, target: str, max_alerts: int, postponed: Collection[int] = ()) -> AlertBatch | None:
        """Return the oldest stored batch, or the oldest alerts of one group that could form one; None if none is due.

        Batches in `postponed` are skipped.
        """
        with self._mutex:
            run = self._database.execute
            first = run(
                "SELECT id, batch, grouping FROM alerts WHERE target = ? AND settled_at IS NULL"
                " AND (batch IS NULL OR batch NOT IN (SELECT value FROM json_each(?))) ORDER BY id LIMIT 1",
                (target, json.dumps(list(postponed))),
            ).fetchone()
            if first is None:
                return None
            _, number, grouping = first
            columns = "SELECT id, alert, accepted_at FROM alerts WHERE target = ? AND settled_at IS NULL"
            if number is not None:
                rows = run(f"{columns} AND batch = ? ORDER BY id", (target, number)).fetchall()
            else:
                condition = "AND batch IS NULL AND grouping = ? ORDER BY id LIMIT ?"
                rows = run(f"{columns} {condition}", (target, grouping, max_alerts)).fetchall()
        ids, alerts, times = zip(*rows, strict=True)
        return AlertBatch(number or 0, ids, tuple(map(Alert.from_json, alerts)), min(times))

    def store(self, rows: Sequence[int]) -> None:
        """Make rows one batch, numbered by the first."""
        self._update([(rows[0], row) for row in rows], "UPDATE alerts SET batch = ? WHERE id = ?")

    def split(self, rows: Sequence[int]) -> None:
        """Make each row a batch."""
        self._update([(row, row) for row in rows], "UPDATE alerts SET batch = ? WHERE id = ?")

    def settle(self, target: str, rows: Sequence[int]) -> None:
        """Remove rows from the queue: they were delivered or given up."""
        now = self._now()
        self._update([(now, row) for row in rows], "UPDATE alerts SET settled_at = ?, alert = NULL WHERE id = ?")
        with self._mutex:
            self._queued[target] -= len(rows)

    def queued(self, target: str) -> int:
        """Return the number of queued alerts of a target."""
        return self._queued[target]

    def targets(self) -> set[str]:
        """Return the targets that have queued alerts, also those that the configuration lacks."""
        return {target for target, number in self._queued.items() if number > 0}

    def oldest_s(self, target: str) -> float:
        """Return the age of the oldest queued alert of a target; 0 without any."""
        with self._mutex:
            statement = "SELECT accepted_at FROM alerts WHERE target = ? AND settled_at IS NULL ORDER BY id LIMIT 1"
            row = self._database.execute(statement, (target,)).fetchone()
        return max(self._now() - row[0], 0.0) if row else 0.0

    def _update(self, values: Iterable[tuple[float, int]], statement: str) -> None:
        with self._mutex, self._transaction():
            self._database.executemany(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
