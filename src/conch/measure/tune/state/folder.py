"""The folder with the state of a model: its lock, and the log of trials."""

import fcntl
import hashlib
import json
import os
import re
import stat
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conch.base.files.atomic import replace_file, sync_folder
from conch.base.typed_json import decode
from conch.measure.tune.space import Value

_MODE = 0o700


def default_state_directory() -> Path:
    """Return where state is kept by default: `$XDG_STATE_HOME/conch/tune`."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base, "conch", "tune")


class StateFolder:
    """Files of one model of one server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restore = path / "restore.json"
        self.trials = path / "trials.jsonl"
        self.applied = path / "applied.json"
        self.watchdog_log = path / "watchdog.log"
        self._lock: int | None = None

    @classmethod
    def of(cls, directory: Path, url: str, model: str) -> "StateFolder":
        """Return the folder for a model of a server."""
        digest = hashlib.sha256(f"{url.rstrip('/')}\0{model}".encode()).hexdigest()[:8]
        name = re.sub(r"[^\w.-]+", "-", f"{url.partition('://')[2] or url}-{model}")[:80]
        return cls(directory / f"{name}-{digest}")

    def create(self) -> None:
        """Create the folder, readable by this user only. Raises OSError; PermissionError as `check`."""
        self.path.mkdir(parents=True, exist_ok=True, mode=_MODE)
        self.check()

    def check(self) -> None:
        """Raise PermissionError for a folder or files of another user, who would choose files and servers to write to.

        A missing folder is valid.
        """
        for path in (self.path, self.restore, self.applied, self.trials):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            kind = stat.S_ISDIR if path == self.path else stat.S_ISREG
            writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not kind(status.st_mode) or status.st_uid != os.geteuid() or writable:
                raise PermissionError(
                    f"'{path}' must be a {'folder' if path == self.path else 'file'} of this user that others cannot "
                    "write to, as its contents are loaded and written elsewhere; remove it, or name another --state-dir"
                )

    def lock(self, *, wait: bool = False) -> bool:
        """Acquire the lock, which ends with the process and is not inherited; False if another process has it."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically and durably, readable by this user only if it is new. Raises OSError."""
    replace_file(path, json.dumps(value, indent=1).encode(), 0o600)


def remove_durably(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of one configuration under one load. `figures` is empty if it failed, with the cause."""

    settings: dict[str, Value]
    effort: float
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    notes: tuple[str, ...] = ()
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    """Composing model → queue_s, compute_s per request of the ensemble, executions."""
    duration_s: float = 0.0
    purpose: str = "search"  # or "final"


class TrialLog:
    """Appends trials and returns those of an earlier run with the same environment, each once, in order."""

    def __init__(self, folder: StateFolder, environment: Mapping[str, Any], *, fresh: bool = False) -> None:
        """`environment` is all that makes measurements comparable, `fresh` ignores earlier ones."""
        self._path = folder.trials
        self._digest = digest(environment)
        self._earlier: defaultdict[str, deque[Trial]] = defaultdict(deque)
        self._fresh = fresh
        self.count = 0

    def read(self) -> None:
        """Read earlier trials. A last line that was cut off is ignored. Raises OSError."""
        if self._fresh or not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
                if value.pop("environment") != self._digest:
                    continue
                trial = decode(Trial, value)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue
            self._earlier[_key(trial.settings, trial.effort, trial.purpose)].append(trial)
            self.count += 1

    def earlier(self, settings: Mapping[str, Value], effort: float, purpose: str) -> Trial | None:
        """Return an earlier trial with these settings, once."""
        trials = self._earlier.get(_key(settings, effort, purpose))
        return trials.popleft() if trials else None

    def append(self, trial: Trial) -> None:
        """Write a trial durably. Raises OSError."""
        line = json.dumps({"environment": self._digest, **asdict(trial)}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not _ends_with_newline(self._path):
                file.write("\n")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def digest(value: Mapping[str, Any]) -> str:
    """Return a digest of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


def _ends_with_newline(path: Any) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


def _key(settings: Mapping[str, Value], effort: float, purpose: str) -> str:
    return json.dumps([sorted(settings.items(), key=lambda item: item[0]), effort, purpose], default=list)
