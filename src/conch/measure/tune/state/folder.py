"""The folder of a tuned model in the state directory: its files, durable writes, and the lock."""

import fcntl
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from conch.base.files.atomic import replace_file, sync_folder

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
        """Take the lock, which ends with the process and is not inherited by fork; False if another process has it."""
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
