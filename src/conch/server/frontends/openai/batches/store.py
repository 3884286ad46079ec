"""Files and batches of the OpenAI API in a folder: `<id>.json` describes one, `<id>.jsonl` is a file's content.

Ids are made here. A file of results is `<id>.part` until its batch ends. All methods but look-ups block.
"""

import errno
import fcntl
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from conch.base.errors import ConfigError, InvalidRequest, TooLarge
from conch.base.files.atomic import replace_file
from conch.machine.condition import CautiousClock
from conch.protocols.openai.fields import ObjectNotFound

_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
MAX_FILES = MAX_BATCHES = 10_000
MAX_ACTIVE = 1000  # batches of a tenant that have not ended
_DEFAULT_EXPIRY_S = 30 * 86_400  # as in OpenAI's API
_MODE = 0o600

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
_ENDED = frozenset({"failed", "completed", "expired", "cancelled"})


@dataclass(slots=True)
class StoredFile:
    """A file. `owner` is the tenant that it belongs to; times are seconds of the epoch."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def document(self) -> dict[str, Any]:
        """Return the file as the API describes it."""
        described = asdict(self)
        del described["owner"]
        return {"object": "file", **described, "status": "processed"}


@dataclass(slots=True)
class RequestBatch:
    """A batch, with the ids of the files that its results go to."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_id: str
    error_id: str
    metadata: dict[str, str]
    status: Status = "validating"
    times: dict[str, int] = field(default_factory=dict)  # "completed_at" and others, of each status
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in _ENDED

    def become(self, status: Status) -> None:
        """Change the status at this time."""
        self.status = status
        self.times[f"{status}_at"] = int(time.time())

    def document(self) -> dict[str, Any]:
        """Return the batch as the API describes it."""
        kept = (
            "id",
            "endpoint",
            "input_file_id",
            "completion_window",
            "created_at",
            "expires_at",
            "status",
            "metadata",
        )
        return {
            "object": "batch",
            **{name: getattr(self, name) for name in kept},
            **{f"{name}_at": None for name in ("in_progress", "finalizing", "cancelling", *sorted(_ENDED))},
            **{name: moment for name, moment in self.times.items() if name != "validating_at"},
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "output_file_id": self.output_id if self.ended and self.completed else None,
            "error_file_id": self.error_id if self.ended and self.failed else None,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
        }


class BatchStore:
    """The folder of one server. Contents have `max_bytes` at most, those of a tenant half of what others leave."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.clock = CautiousClock()  # of what expires
        self._lock = -1
        self.used: Counter[str] = Counter()  # bytes of contents, by owner
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, RequestBatch] = {}

    def open(self) -> None:
        """Lock the folder and read it. Raises ConfigError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            raise ConfigError(f"--batch-dir: another server uses '{self._folder}'") from None
        except OSError as error:
            raise ConfigError(f"--batch-dir: cannot use '{self._folder}': {error.strerror}") from error

    def close(self) -> None:
        """Release the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _read(self) -> None:
        for path in sorted(self._folder.glob("*.json")):
            try:
                document = orjson.loads(path.read_bytes())
                if _FILE_ID.fullmatch(path.stem):
                    self.files[path.stem] = StoredFile(**document)
                elif _BATCH_ID.fullmatch(path.stem):
                    self.batches[path.stem] = RequestBatch(**document)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"--batch-dir: '{path}' is not valid: {error}") from None
        results = {
            file_id: batch.owner
            for batch in self.batches.values()
            if not batch.ended
            for file_id in (batch.output_id, batch.error_id)
        }
        for path in (*self._folder.glob("*.jsonl"), *self._folder.glob("*.part")):
            if (owner := results.get(path.stem)) is not None:
                self.files.pop(path.stem, None)  # the server ended before it wrote that the batch has
                path = path.rename(self.part(path.stem))
            elif path.suffix == ".part" or path.stem not in self.files:
                path.unlink()
                continue
            else:
                owner = self.files[path.stem].owner
            self.used[owner] += path.stat().st_size

    def content(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder / f"{file_id}.jsonl"

    def part(self, file_id: str) -> Path:
        """Return the path of results of a batch that runs."""
        return self._folder / f"{file_id}.part"

    def file(self, file_id: str, owner: str) -> StoredFile:
        """Return an owner's file. Raises NotFound."""
        file = self.files.get(file_id)
        if file is None or file.owner != owner or file.expires_at <= self.clock.now_s():
            raise ObjectNotFound(f"No such File object: {file_id[:64]}")
        return file

    def batch(self, batch_id: str, owner: str) -> RequestBatch:
        """Return an owner's batch. Raises NotFound."""
        batch = self.batches.get(batch_id)
        if batch is None or batch.owner != owner:
            raise ObjectNotFound(f"No batch found with id '{batch_id[:64]}'.")
        return batch

    def check_room(self, owner: str, size: int) -> None:
        """Raise TooLarge if a tenant's contents would exceed its share with `size` further bytes."""
        files = Counter(file.owner for file in self.files.values())
        for used, maximum, more, what in (
            (self.used, self._max_bytes, size, "bytes (--batch-max-bytes)"),
            (files, MAX_FILES, 1, "files"),
        ):
            room = maximum - used.total() + used[owner]
            share = room // 2 if owner else room  # a tenant leaves as much to others as it takes
            if used[owner] + more > share:
                raise TooLarge(
                    f"the files of batches have {used[owner]} {what}; {more} more exceed the {share} that "
                    f"{'a tenant' if owner else 'they'} may have of {maximum}; delete some"
                )

    def add_file(
        self, owner: str, filename: str, purpose: str, content: bytes, expires_after_s: int | None
    ) -> StoredFile:
        """Keep a file. Raises OSError, TooLarge."""
        self.check_room(owner, len(content))
        self.used[owner] += len(content)  # before another thread asks
        file = self._described(_new_file_id(), owner, filename, purpose, len(content), expires_after_s)
        try:
            replace_file(self.content(file.id), content, _MODE)
            self._save(file)
        except BaseException:
            self.used[owner] -= len(content)
            self.content(file.id).unlink(missing_ok=True)
            raise
        self.files[file.id] = file
        return file

    def delete_file(self, file: StoredFile) -> None:
        """Delete a file. Raises InvalidRequest if a batch reads it, OSError."""
        if any(batch.input_file_id == file.id and not batch.ended for batch in self.batches.values()):
            raise InvalidRequest(f"file '{file.id}' is the input of a batch that has not ended; cancel that first")
        if self.files.pop(file.id, None) is not None:
            (self._folder / f"{file.id}.json").unlink(missing_ok=True)
            self.content(file.id).unlink(missing_ok=True)
            self.used[file.owner] -= file.bytes

    def delete_expired(self) -> None:
        """Delete files that have expired, and batches a file's time after their end. Raises OSError."""
        now = self.clock.now_s()
        used = {batch.input_file_id for batch in self.batches.values() if not batch.ended}
        for file in [file for file in self.files.values() if file.expires_at <= now and file.id not in used]:
            self.delete_file(file)
        for batch in [batch for batch in self.batches.values() if batch.ended]:
            if batch.expires_at + _DEFAULT_EXPIRY_S <= now:
                self._forget(batch)

    def add_batch(
        self, owner: str, file: StoredFile, endpoint: str, window: str, window_s: int, metadata: dict[str, str]
    ) -> RequestBatch:
        """Keep a batch to run. Raises InvalidRequest, OSError."""
        active = Counter(batch.owner for batch in self.batches.values() if not batch.ended)
        if active[owner] >= MAX_ACTIVE or active.total() >= MAX_BATCHES:
            raise InvalidRequest(f"a tenant may have {MAX_ACTIVE} batches that have not ended; cancel some")
        if len(self.batches) >= MAX_BATCHES:
            self._forget_one()
        now = int(time.time())
        ids = f"batch_{secrets.token_hex(16)}", _new_file_id(), _new_file_id()
        batch = RequestBatch(ids[0], owner, endpoint, file.id, window, now, now + window_s, ids[1], ids[2], metadata)
        self.save(batch)
        self.batches[batch.id] = batch
        return batch

    def _forget_one(self) -> None:
        """Delete the oldest batch that has ended, of the tenant with most of these. Raises OSError."""
        ended = [batch for batch in self.batches.values() if batch.ended]
        owner = Counter(batch.owner for batch in ended).most_common(1)[0][0]
        oldest = min((batch for batch in ended if batch.owner == owner), key=lambda batch: batch.created_at)
        self._forget(oldest)

    def _forget(self, batch: RequestBatch) -> None:
        (self._folder / f"{batch.id}.json").unlink(missing_ok=True)
        del self.batches[batch.id]

    def save(self, batch: RequestBatch) -> None:
        """Write what is known of a batch. Raises OSError."""
        self._save(batch)

    def append(self, batch: RequestBatch, file_id: str, lines: bytes) -> None:
        """Append results of a batch, all of them or none. Raises TooLarge, OSError."""
        self.check_room(batch.owner, len(lines))
        with open(self.part(file_id), "ab", buffering=0, opener=_private) as file:
            size = file.tell()
            try:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise
        self.used[batch.owner] += len(lines)

    def close_results(self, batch: RequestBatch) -> None:
        """Make files of the results of a batch, durably. Raises OSError."""
        for file_id in (batch.output_id, batch.error_id):
            part = self.part(file_id)
            if part.exists():
                with part.open("rb") as results:
                    os.fsync(results.fileno())
                size = part.stat().st_size
                part.rename(self.content(file_id))
                name = f"{batch.id}_{'output' if file_id == batch.output_id else 'error'}.jsonl"
                file = self._described(file_id, batch.owner, name, "batch_output", size, None)
                self._save(file)
                self.files[file_id] = file

    def results(self, batch: RequestBatch) -> Iterator[tuple[int, bool]]:
        """Yield which lines of a batch have results, and whether they were successful. Cuts a torn last line off."""
        for file_id, successful in ((batch.output_id, True), (batch.error_id, False)):
            part = self.part(file_id)
            if not part.exists():
                continue
            whole = 0
            with part.open("r+b") as results:
                for line in results:
                    if not line.endswith(b"\n"):
                        break
                    whole += len(line)
                    yield int(orjson.loads(line)["id"].rpartition("-")[2]), successful
                self.used[batch.owner] -= part.stat().st_size - whole
                results.truncate(whole)

    def _described(
        self, file_id: str, owner: str, filename: str, purpose: str, size: int, expires_after_s: int | None
    ) -> StoredFile:
        now = int(time.time())
        return StoredFile(file_id, owner, filename, purpose, size, now, now + (expires_after_s or _DEFAULT_EXPIRY_S))

    def _save(self, stored: StoredFile | RequestBatch) -> None:
        replace_file(self._folder / f"{stored.id}.json", orjson.dumps(asdict(stored)), _MODE)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, _MODE)


def _new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"
