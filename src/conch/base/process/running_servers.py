"""The servers of this user on this machine: one small file for each, which its process keeps locked.

A file whose lock is free belongs to a server that was killed; listing the servers removes it.
"""

import fcntl
import json
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_MAX_BYTES = 1 << 16
_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, pid, and padding


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server's process and where it listens, as host:port, "" without the service. `started` is in Unix time.

    Idle engines are stopped after `idle_unload_s` seconds, 0 for never. With TLS on a port, `certificate` is the PEM
    file of what it shows, which other programs of the user compare: the name in it need not be that of this machine.
    """

    pid: int
    http: str
    grpc: str
    metrics: str
    source: str  # the repositories or the model that it serves
    started: float
    idle_unload_s: int = 0
    certificate: str = ""
    http_tls: bool = False
    metrics_tls: bool = False
    client_certificates: bool = False  # the HTTP port requires them

    @property
    def url(self) -> str:
        """The URL of its HTTP port."""
        return f"http{'s' * self.http_tls}://{self.http}"

    @property
    def metrics_url(self) -> str:
        """The URL of its metrics, "" if it serves none."""
        return f"http{'s' * self.metrics_tls}://{self.metrics}" if self.metrics else ""


def local_address(address: str, port: int | None) -> str:
    """Return host:port for clients on this machine of a service that listens on `address`; "" without a port."""
    if port is None:
        return ""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address)  # noqa: S104 - all interfaces
    return f"{host or (f'[{address}]' if ':' in address else address)}:{port}"


@contextmanager
def recorded(server: RunningServer) -> Iterator[None]:
    """Record a server of this process around a block. Without a writable folder, it is not recorded."""
    path = None
    for folder in _folders():
        with suppress(OSError):
            path, descriptor = _write(folder, server)
            break
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def running_servers() -> list[RunningServer]:
    """Return the servers of this user, the oldest first."""
    servers = (server for folder in _folders() for server in _read(folder))
    return sorted(servers, key=lambda server: server.started)


def user_folder(variable: str, default: str) -> Path:
    """Return Conch's folder below that of an XDG variable, such as XDG_STATE_HOME, or below `default` in the home.

    A user without a home, as containers may have, gets the temporary folder.
    """
    try:
        return Path(os.environ.get(variable) or f"~/{default}").expanduser() / "conch"
    except RuntimeError:
        return temporary_folder()


def temporary_folder() -> Path:
    """Return the folder of this user that replaces those in a home that cannot be written."""
    return Path(tempfile.gettempdir(), f"conch-{os.getuid()}")


def _folders() -> dict[Path, None]:
    """Return the folders of the files: that of the user's state, and another where the home cannot be written."""
    return dict.fromkeys(
        folder / "servers" for folder in (user_folder("XDG_STATE_HOME", ".local/state"), temporary_folder())
    )


def _write(folder: Path, server: RunningServer) -> tuple[Path, int]:
    """Write and lock a file; return its path and descriptor. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)
    path = folder / f"{server.pid}-{time.monotonic_ns()}.json"
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # A lock of the process: children that are forked do not hold it.
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, json.dumps(asdict(server)).encode())
    new.rename(path)
    return path, descriptor


def _read(folder: Path) -> Iterator[RunningServer]:
    """Yield the servers of a folder, and remove the files of servers that have ended."""
    try:
        _check_owner(folder)
        paths = list(folder.glob("*.json"))
    except OSError:
        return
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            holder = _lock_holder(descriptor)
            if holder is None:
                path.unlink(missing_ok=True)
                continue
            server = RunningServer(**json.loads(os.read(descriptor, _MAX_BYTES)))
            if server.pid == holder:  # else of another container with the same home, whose pids and ports differ
                yield server
        except (OSError, ValueError, TypeError):
            continue
        finally:
            os.close(descriptor)


def _lock_holder(descriptor: int) -> int | None:
    """Return the pid of the process that keeps a file locked, 0 in another namespace, None if none does."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def _check_owner(folder: Path) -> None:
    """Raise OSError unless the folder is of this user: others may write into the folder of temporary files."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"'{folder}' belongs to another user")
