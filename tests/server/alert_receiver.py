"""`conch alerts receive` in a process, and a real Alertmanager."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.debian import debian_command, debian_environment

TIMEOUT_S = 60
_STARTED = re.compile(r"Started alert receiver at 127\.0\.0\.1:(\d+)")


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Poll until a condition holds; return its value."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {TIMEOUT_S} s: {what or condition}")


class Receiver:
    """The process; `log` is what it has written."""

    def __init__(self, folder: Path, environment: Mapping[str, str], port: int = 0) -> None:
        self._log = folder / f"receiver-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "conch", "alerts", "receive", "--config", str(folder / "receiver.yaml")]
            self.process = subprocess.Popen(
                [*command, "--queue", str(folder / "queue"), "--port", str(port)],
                stderr=log, stdout=log, env={**os.environ, **environment},
            )  # fmt: skip
        match = until(lambda: self.process.poll() is not None or _STARTED.search(self.log), "start")
        assert not isinstance(match, bool), self.log
        self.port = int(match[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Send a webhook; return status and text."""
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json", **(headers or {})})
        return _answer(request)

    def get(self, path: str) -> tuple[int, str]:
        return _answer(urllib.request.Request(self.url.rstrip("/") + path))

    def metric(self, name: str, **labels: str) -> float | None:
        """A value of /metrics."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


def _answer(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def receiver(
    folder: Path, config: str, environment: Mapping[str, str] | None = None, port: int = 0
) -> Iterator[Receiver]:
    (folder / "receiver.yaml").write_text(config)
    running = Receiver(folder, environment or {}, port)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def alertmanager_address(folder: Path, config: str) -> Iterator[str]:
    """A real Alertmanager; yields its `host:port`."""
    command = debian_command("prometheus-alertmanager")
    home = folder / "alertmanager"
    home.mkdir()
    (home / "alertmanager.yml").write_text(config)
    log = home / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, f"--config.file={home / 'alertmanager.yml'}", f"--storage.path={home}",
             "--web.listen-address=127.0.0.1:0", "--cluster.listen-address="],
            stderr=file, stdout=file, env=debian_environment(),
        )  # fmt: skip
    try:
        pattern = re.compile(r"(?:address=|Listening on.*?)127\.0\.0\.1:(\d+)", re.IGNORECASE)
        match = until(lambda: process.poll() is not None or pattern.search(log.read_text()), "Alertmanager")
        assert not isinstance(match, bool), log.read_text()
        yield f"127.0.0.1:{match[1]}"
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@contextmanager
def alertmanager(folder: Path, config: str) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """A real Alertmanager; yields a function that posts alerts to its API."""
    with alertmanager_address(folder, config) as address:

        def post(alerts: list[dict[str, Any]]) -> None:
            data = json.dumps(alerts).encode()
            request = urllib.request.Request(
                f"http://{address}/api/v2/alerts", data, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                pass

        yield post
