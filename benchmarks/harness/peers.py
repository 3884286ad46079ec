"""The servers under test: how each is started on a model repository, awaited and stopped."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import package_versions
from benchmarks.harness.process_tree import ProcessTree
from benchmarks.harness.triton_install import TritonInstall

READY_TIMEOUT_S = 600.0  # vLLM compiles; the others take seconds
STOP_TIMEOUT_S = 40.0
POLL_SECONDS = 0.005
READY_PATH = "/v2/health/ready"

# For the models that ask for it; the others do not notice.
CACHE = "--cache-config=local,size=268435456"

# What Triton 2.51 allows anyway.
SHARED = "--allow-client-shm=true"

MODEL_PACKAGES = ("numpy", "opencv-python-headless", "pillow", "onnxruntime")


class PeerError(Exception):
    """A server did not start, did not become ready or died; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Ports:
    """The three listening ports of one server."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def free(cls) -> Self:
        """Pick three free ports."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        numbers = [listener.getsockname()[1] for listener in sockets]
        for listener in sockets:
            listener.close()
        return cls(*numbers)

    def flags(self) -> list[str]:
        """Return them as command-line flags, which Conch and Triton spell alike."""
        return [f"--http-port={self.http}", f"--grpc-port={self.grpc}", f"--metrics-port={self.metrics}"]


class Peer(Protocol):
    """What the harness must know of a server.

    `name` keys its figures in every table; `only_python` says that it has no backend but the Python one. Ready it is
    when it answers `ready_path` with 200.
    """

    name: str
    only_python: bool
    ready_path: str

    def command(self, repository: Path) -> list[str]:
        """Return the command line that serves `repository`, without ports."""

    def flags(self, ports: Ports) -> list[str]:
        """Return the part of the command line that says where to listen."""

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's processes."""

    def packages(self) -> str:
        """Return the packages that matter and their versions."""


class Conch:
    """Conch as installed by `ConchInstall`."""

    name = "conch"
    only_python = False
    ready_path = READY_PATH

    def __init__(self, install: ConchInstall) -> None:
        self._install = install

    def command(self, repository: Path) -> list[str]:
        """Return `python -m conch serve` on `repository`."""
        return [str(self._install.python), "-m", "conch", "serve", f"--model-repository={repository}", CACHE, SHARED]

    def flags(self, ports: Ports) -> list[str]:
        """Return all three ports."""
        return ports.flags()

    def environment(self) -> dict[str, str]:
        """Return the environment of this process."""
        return dict(os.environ)

    def packages(self) -> str:
        """Return those of its environment."""
        names = (*MODEL_PACKAGES, "uvloop", "httptools", "hpack", "protobuf")
        return package_versions(names, [str(self._install.site_packages)])


class Triton:
    """Triton 2.51 as installed by `TritonInstall`."""

    name = "triton"
    only_python = True
    ready_path = READY_PATH

    def __init__(self, install: TritonInstall) -> None:
        self._install = install

    def command(self, repository: Path) -> list[str]:
        """Return `tritonserver` on `repository` with its defaults and a cache."""
        return [
            str(self._install.binary),
            f"--model-repository={repository}",
            f"--backend-directory={self._install.backends}",
            f"--cache-directory={self._install.caches}",
            CACHE,
        ]

    def flags(self, ports: Ports) -> list[str]:
        """Return all three ports."""
        return ports.flags()

    def environment(self) -> dict[str, str]:
        """Return this process's environment with the wheel's libraries and, for the stub, its interpreter in front."""
        interpreter = self._install.environment / "bin"
        return {
            **os.environ,
            "LD_LIBRARY_PATH": self._install.library_path,
            "PATH": f"{interpreter}:{os.environ['PATH']}",
        }

    def packages(self) -> str:
        """Return those that its Python models see."""
        return package_versions(MODEL_PACKAGES, [str(self._install.site_packages)])


class Server:
    """One running server; a context manager that starts it, waits until it is ready, and stops it.

    `ready_seconds` is the time from the start of the process to the first 200 of its `ready_path`.
    """

    def __init__(self, peer: Peer, repository: Path, log: Path) -> None:
        self.peer = peer
        self.ports = Ports.free()
        self.ready_seconds = 0.0
        self._repository = repository
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_address(self) -> str:
        """host:port of the HTTP frontend."""
        return f"127.0.0.1:{self.ports.http}"

    @property
    def grpc_address(self) -> str:
        """host:port of the gRPC frontend."""
        return f"127.0.0.1:{self.ports.grpc}"

    @property
    def tree(self) -> ProcessTree:
        """The processes of the server."""
        assert self._process is not None
        return ProcessTree(self._process.pid)

    def start(self) -> None:
        """Start the process and wait until it is ready. Raises PeerError when that does not happen."""
        try:
            self.ready_seconds = self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> float:
        command = [*self.peer.command(self._repository), *self.peer.flags(self.ports)]
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self.peer.environment(), stdout=log, stderr=log, start_new_session=True
            )
        while not self._is_ready():
            self.check_alive()
            if time.monotonic() - started > READY_TIMEOUT_S:
                raise PeerError(self._with_log(f"not ready after {READY_TIMEOUT_S:.0f} s"))
            time.sleep(POLL_SECONDS)
        return time.monotonic() - started

    def check_alive(self) -> None:
        """Raise PeerError when the server's process has ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise PeerError(self._with_log(f"ended with status {status}"))

    def stop(self) -> None:
        """Ask the server to end, then end whatever is left of its session."""
        if self._process is None:
            return
        session = self._process.pid
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # the usual case: no process is left
            os.killpg(session, signal.SIGKILL)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports.http, timeout=1)
        try:
            connection.request("GET", self.peer.ready_path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _with_log(self, what: str) -> str:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return f"{self.peer.name} {what}; its log ends:\n{tail}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
