"""A real `conch fleet` in a separate process, and the state that its API reports."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.debian import debian_environment, debian_tool

TIMEOUT_S = 120
_API = re.compile(r"custom metrics and state: (http://\S+);")
_PROXY = re.compile(r"proxy: HTTP (\S+), gRPC (\S+);")


class FleetProcess:
    """Use as a context manager: inside, a replica is ready. At the end the fleet is interrupted, if it still runs."""

    def __init__(self, *arguments: str, log: Path, proxy: str = "haproxy") -> None:
        self._command = [sys.executable, "-m", "conch", "fleet", *arguments, f"--proxy={proxy}"]
        folders = {str(debian_tool(name).parent): None for name in ("prometheus", proxy)}
        path = os.pathsep.join([*folders, os.environ["PATH"]])
        self._environment = {**debian_environment(), "PATH": path}
        self.log = log
        self.process: subprocess.Popen[bytes]

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def api(self) -> str:
        match = _API.search(self.text)
        assert match, self.text
        return match[1]

    @property
    def proxy(self) -> dict[str, str]:
        match = _PROXY.search(self.text)
        assert match, self.text
        return {"http": match[1], "grpc": match[2]}

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        try:
            self.until("it listens", lambda: _API.search(self.text))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """Interrupt the fleet, as Ctrl-C does, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and document of a GET of the API."""
        try:
            with urllib.request.urlopen(f"{self.api}{path}", timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def state(self) -> Any:
        return self.get("/fleet")[1]

    def evict(self, pod: str) -> int:
        request = urllib.request.Request(
            f"{self.api}/api/v1/namespaces/default/pods/{pod}/eviction", b"{}", {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)

    def until(self, what: str, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Return the first true value of a condition."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert self.process.poll() is None, f"the fleet ended before {what}: {self.text}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}: {self.text}"
            time.sleep(0.1)
        return value

    def until_ready(self, replicas: int) -> Any:
        """Return the state when this number of replicas are ready, and there are no others."""

        def ready() -> Any:
            state = self.state()
            counts = state["replicas"]
            return state if counts["ready"] == counts["current"] == replicas == len(state["pods"]) else None

        return self.until(f"{replicas} replicas are ready", ready)


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
