"""The audit log of limits: a file of hash-chained records, its rotated predecessors, and its head.

    <log>                 the current file
    <log>.000000000042    an earlier one, which ends with record 42
    <log>.head            number and hash of the last record, which shows a truncation

Files have mode 0600 and are synced to disk after each record.
"""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError
from conch.base.files.atomic import sync_folder
from conch.machine.condition import CautiousClock
from conch.server.limits.audit_chain import (
    CONTINUED,
    DAMAGE,
    FOUND_AT_START,
    GENESIS,
    MAX_LINE_BYTES,
    Chain,
    ChainFinding,
    check_expected,
    check_head,
    follow,
    read_record,
    seal,
)

DEFAULT_RETENTION_DAYS = 180
MAX_FILE_BYTES = 16 * 2**20
_MAX_FILE_AGE = timedelta(days=30)
_HEAD = ".head"
_HEAD_BYTES = 96
_ROTATED = re.compile(r"\.[0-9]{12}")
_MODE = 0o600

_log = logging.getLogger(__name__)


class AuditLog:
    """One audit log. Life: `open` → `append`* → `close`. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        retention_days: int = DEFAULT_RETENTION_DAYS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: CautiousClock | None = None,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """Assign. `now` is the time of records, `clock` that of retention."""
        self.path = path
        self.seq = 0
        self._hash = GENESIS
        self._retention = timedelta(days=retention_days)
        # Returns what the first record of each file repeats, so that it survives retention.
        self.carried: Callable[[], Mapping[str, Any]] = dict
        self._now = now
        self._clock = clock or CautiousClock()
        self._max_bytes = max_bytes
        self._file = -1
        self._head = -1
        self._size = 0
        self._begun: datetime | None = None  # time of the first record of the current file

    def open(self) -> list[dict[str, Any]]:
        """Open or create the log, repair an incomplete last record, and return the records of the newest file.

        Damage is logged and recorded. Raises ConfigError if another server uses the log or it cannot be written.
        """
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._head = os.open(f"{self.path}{_HEAD}", flags, _MODE)
            try:
                fcntl.flock(self._head, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"--limits-audit-log: another server writes to '{self.path}'") from None
            head = _read_head(self._head)
            dropped = self._drop_incomplete()
            chain, records = self._read_newest()
            check_head(chain, self.path.name, head)
            # A crash between the first record and its head leaves an empty head.
            if head is None and (os.fstat(self._head).st_size or chain.seq > 1):
                chain.findings.append(ChainFinding(f"{self.path.name}{_HEAD}", 0, "the head was changed or removed"))
            self._open_file()
            self.seq, self._hash = chain.seq, chain.hash or GENESIS
            self._begun = _time_of(records[0]) if records and self._size else None
            recorded = {finding for record in records for finding in record.get("findings", ())}
            findings = [str(finding) for finding in chain.findings if not finding.text.startswith(FOUND_AT_START)]
            findings = [finding for finding in findings if finding not in recorded]
            if findings:
                self.seq = max(self.seq, head[0] if head else 0)
                for finding in findings:
                    _log.error("audit log of limits is damaged: %s", finding)
                self.append({"what": DAMAGE, "who": "server", "findings": findings})
            elif dropped:
                _log.warning('audit log "%s": dropped an incomplete record of %d bytes', self.path, dropped)
                self.append({"what": "incomplete record dropped", "who": "server", "bytes": dropped})
            self._prune()
        except OSError as error:
            self.close()
            raise ConfigError(f"--limits-audit-log: cannot write '{self.path}': {error.strerror}") from None
        except ConfigError:
            self.close()
            raise
        return records

    def append(self, record: Mapping[str, Any]) -> int:
        """Write a record with time, sequence number and hash, and sync it to disk; return its number. Raises OSError.

        After an error the log is as before.
        """
        if self._due_for_rotation():
            self._rotate()
        if self._size == 0 and self.seq:
            self._write({"what": CONTINUED, "who": "server", **self.carried()})
        self._write(record)
        return self.seq

    @property
    def last(self) -> str:
        """Number and hash of the last record, in the form of `conch audit verify --expect-record`."""
        return f"{self.seq}:{self._hash}"

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._file, self._head):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._head = -1

    def _write(self, record: Mapping[str, Any]) -> None:
        now = self._now()
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line, digest = seal({"time": stamp, **record}, self.seq + 1, self._hash)
        line += b"\n"
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the rest had no room
            os.fsync(self._file)
            os.pwrite(self._head, f"{self.seq + 1} {digest}".ljust(_HEAD_BYTES - 1).encode() + b"\n", 0)
            os.fsync(self._head)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        if not self._size:
            self._begun = now
        self._size += len(line)
        self.seq += 1
        self._hash = digest

    def _open_file(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.path, flags, _MODE)
        os.fchmod(self._file, _MODE)
        self._size = os.fstat(self._file).st_size
        sync_folder(self.path.parent)

    def _due_for_rotation(self) -> bool:
        if not self._size:
            return False
        old = self._begun is not None and self._now() - self._begun > _MAX_FILE_AGE
        return old or self._size >= self._max_bytes

    def _rotate(self) -> None:
        os.close(self._file)
        self._file = -1
        try:
            self.path.rename(f"{self.path}.{self.seq:012d}")
        finally:
            self._open_file()
        self._prune()

    def _prune(self) -> None:
        """Delete earlier files all of whose records are older than the retention."""
        files = [path for path in log_files(self.path) if path != self.path]
        for path in files:
            if self._clock.now_s() - path.stat().st_mtime <= self._retention.total_seconds():
                break  # later files are newer
            path.unlink()
            _log.info('audit log: deleted "%s", whose records are older than the retention', path)

    def _drop_incomplete(self) -> int:
        """Cut off a last line without an end, which a crash has left; return its size."""
        if not self.path.exists():
            return 0
        with self.path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            kept = size
            while kept:
                begin = max(kept - 65_536, 0)
                file.seek(begin)
                end = file.read(kept - begin).rfind(b"\n")
                if end >= 0:
                    kept = begin + end + 1
                    break
                kept = begin
            if kept < size:
                file.truncate(kept)
                os.fsync(file.fileno())
            return size - kept

    def _read_newest(self) -> tuple[Chain, list[dict[str, Any]]]:
        chain, records = Chain(), []
        files = log_files(self.path)
        if files and files[-1] == self.path and not self.path.stat().st_size:
            files.pop()
        if files:
            records = list(follow(chain, files[-1].name, read_lines(files[-1])))
        return chain, records


def log_files(path: Path) -> list[Path]:
    """Return the files of a log that exist, the oldest first."""
    rotated = [file for file in path.parent.glob(f"{path.name}.*") if _ROTATED.fullmatch(file.name[len(path.name) :])]
    return [*sorted(rotated), *([path] if path.exists() else [])]


def verify(paths: Sequence[Path], expected: Mapping[int, str] | None = None) -> Chain:
    """Check the files of one audit log, in the order of their records, and its head. Raises OSError.

    `expected` are hashes of records by their numbers, from a place that the log's owner could not write to.
    """
    chain = Chain()
    hashes: dict[int, str] = {}
    known = [path for path in paths if not path.name.endswith(_HEAD)]
    for path in sorted(known, key=_first_seq):
        before = chain.records
        hashes |= {record["seq"]: record["hash"] for record in follow(chain, str(path), read_lines(path))}
        rotated = _ROTATED.search(path.name)
        if rotated and rotated.end() == len(path.name) and int(rotated[0][1:]) != chain.seq:
            text = f"ends with record {chain.seq}, by its name with {int(rotated[0][1:])}: the file was truncated"
            chain.findings.append(ChainFinding(str(path), 0, text))
        elif not rotated and chain.records > before:
            _check_its_head(chain, path, required=not expected)
    given = {path for path in paths if path.name.endswith(_HEAD)} - {Path(f"{path}{_HEAD}") for path in known}
    for head in given:  # of a log whose current file is missing
        _check_its_head(chain, Path(str(head).removesuffix(_HEAD)), required=True)
    check_expected(chain, hashes, expected or {}, str(paths[0].parent / paths[0].name.removesuffix(_HEAD)))
    return chain


def _check_its_head(chain: Chain, path: Path, *, required: bool) -> None:
    head = Path(f"{path}{_HEAD}")
    if not head.exists():
        if required:
            text = (
                "the head is missing, so that records may be missing at the end: copy it with the log, or name the "
                "last known record with --expect-record"
            )
            chain.findings.append(ChainFinding(str(head), 0, text))
        return
    with head.open("rb") as file:
        last = _read_head(file.fileno())
    if last is None:
        chain.findings.append(ChainFinding(str(head), 0, "the head was changed"))
    check_head(chain, str(path), last)


def has_records(path: Path) -> bool:
    """Return whether a file has a record, even a changed one, or a head beside it: whether it is of an audit log."""
    return Path(f"{path}{_HEAD}").exists() or any(read_record(line) is not None for line in read_lines(path))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; one that is far too long comes in parts."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _first_seq(path: Path) -> int:
    for record in follow(Chain(), "", read_lines(path)):
        return int(record["seq"])
    return 2**62


def _read_head(descriptor: int) -> tuple[int, str] | None:
    """Return number and hash of the last record; None if there is none or the head is not valid."""
    words = os.pread(descriptor, _HEAD_BYTES, 0).split()
    if len(words) != 2 or not words[0].isdigit() or len(words[1]) != len(GENESIS):
        return None
    return int(words[0]), words[1].decode("ascii", "replace")


def _time_of(record: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(record.get("time")))
    except ValueError:
        return None
