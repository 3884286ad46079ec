"""Floods of connections and of bodies at the servers beside a model server: the GPU exporter and the alert receiver."""

import re
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

CONFIG = "targets:\n  hook: {type: generic, url: 'http://127.0.0.1:9/'}\nroutes:\n  - targets: [hook]\n"
LISTENING = re.compile(r"at 127\.0\.0\.1:(\d+)")
MAX_FILES = 512


def limit_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, hard))


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Run a command of conch with few descriptors. Yields the process, its port and its log."""
    log = folder / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "conch", *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=limit_files)
    try:
        deadline = time.monotonic() + 60
        while not (match := LISTENING.search(log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process, int(match[1]), log
    finally:
        process.terminate()
        assert process.wait(60) == 0


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def receiver(folder: Path) -> list[str]:
    (folder / "receiver.yaml").write_text(CONFIG)
    arguments = ["--config", str(folder / "receiver.yaml"), "--queue", str(folder / "queue"), "--port", "0"]
    return ["alerts", "receive", *arguments]


def exporter(_: Path) -> list[str]:
    return ["gpu-exporter", "-a", "127.0.0.1:0", "--vendor", "nvidia"]


@pytest.mark.parametrize("arguments", [receiver, exporter])
def test_more_connections_than_the_usual_descriptors(arguments: Callable[[Path], list[str]], tmp_path: Path) -> None:
    with running(tmp_path, *arguments(tmp_path)) as (_, port, log), ExitStack() as stack:
        for _ in range(MAX_FILES + 200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        stack.close()
        deadline = time.monotonic() + 60
        while not answers(port):  # until the server has seen it
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        assert "Too many open files" not in log.read_text()
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("arguments", [receiver, exporter])
def test_incomplete_heads_delay_no_other_client(arguments: Callable[[Path], list[str]], tmp_path: Path) -> None:
    with running(tmp_path, *arguments(tmp_path)) as (_, port, _), ExitStack() as stack:
        for _ in range(MAX_FILES - 200):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert answers(port)


def test_incomplete_webhooks_have_little_memory_together(tmp_path: Path) -> None:
    with running(tmp_path, *receiver(tmp_path)) as (process, port, _), ExitStack() as stack:
        before = peak_bytes(process.pid)
        for _ in range(12):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with suppress(OSError):  # refused
                client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n" + bytes(15_000_000))
        assert peak_bytes(process.pid) - before < 130 * 2**20


def peak_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
