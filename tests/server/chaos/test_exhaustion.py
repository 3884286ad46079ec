"""The machine has no more of something: what is said, who is unharmed, and that all is well when it passes."""

import asyncio
import base64
import http.client
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.server.chaos.accounting import TIMEOUT_S, until
from tests.server.chaos.concurrent_clients import ConcurrentClients, concurrent_clients, outcomes, request_body, when
from tests.server.chaos.crashing_models import write_crashing
from tests.support.server_process import ConchProcess

EXPLICIT = ["--model-control-mode=explicit", "--load-model=single"]
IDENTITY = json.dumps(
    {
        "backend": "identity",
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
    }
)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConchProcess]:
    """A server with one model and the flags that the test asks for."""
    write_crashing(tmp_path / "models", "single")
    with ConchProcess(tmp_path / "models", *getattr(request, "param", EXPLICIT), log=tmp_path / "log") as conch:
        yield conch


@pytest.fixture
async def clients(server: ConchProcess, tmp_path: Path) -> AsyncIterator[ConcurrentClients]:
    async with concurrent_clients(server, tmp_path) as some:
        yield some


@contextmanager
def limited(server: ConchProcess, kind: int, most: int) -> Iterator[None]:
    """Let the server have no more than this during the block."""
    process = psutil.Process(server.process.pid)
    soft, hard = process.rlimit(kind)
    process.rlimit(kind, (most, hard))
    try:
        yield
    finally:
        process.rlimit(kind, (soft, hard))


@pytest.mark.parametrize("server", [["--model-control-mode=poll", "--repository-poll-secs=1"]], indirect=True)
async def test_no_descriptor_is_left(server: ConchProcess, clients: ConcurrentClients, tmp_path: Path) -> None:
    """Connected clients are served; dead and new models come up when there are descriptors again."""
    pid = await clients.pid("single")
    host, _, port = server.http.partition(":")
    connected = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    assert is_live(connected)
    with limited(server, resource.RLIMIT_NOFILE, 5):
        os.kill(pid, signal.SIGKILL)
        write_crashing(tmp_path / "models", "late")
        await when(lambda: "retrying in 0.5 s" in server.text)
        await when(lambda: "polling the model repository" in server.text)
        assert is_live(connected)
        connected.request("POST", "/v2/models/single/infer", json.dumps(request_body(7, {})))
    with connected.getresponse() as response:
        assert response.status == 200
        assert json.load(response)["outputs"][0]["data"] == [7]
    connected.close()
    server.until("/v2/models/late/ready")
    assert (await clients.ask("late")).answered
    assert server.text.count("polling the model repository") == 1
    assert "[single_0] no shared memory of 1073741824 bytes for model instance 'single_0': Too many open files" in (
        server.text
    )


def is_live(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/v2/health/live")
    with connection.getresponse() as response:
        return response.status == 200


def highest_descriptor(pid: int) -> int:
    return max(int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir())


async def test_no_descriptor_is_left_for_clients(server: ConchProcess, clients: ConcurrentClients) -> None:
    """Those for whom there is none are sent away at once, and the server does not run hot over them."""
    host, _, port = server.http.partition(":")
    process = psutil.Process(server.process.pid)

    def served(client: socket.socket) -> bool:
        try:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            return client.recv(100).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return False

    with limited(server, resource.RLIMIT_NOFILE, highest_descriptor(process.pid) + 4):
        crowded = [socket.create_connection((host, int(port)), timeout=TIMEOUT_S) for _ in range(20)]
        lucky = [served(client) for client in crowded]
        assert 0 < sum(lucky) < 20
        began, before = time.monotonic(), process.cpu_times().user + process.cpu_times().system
        await asyncio.sleep(0.5)
        used = process.cpu_times().user + process.cpu_times().system - before
        assert used < (time.monotonic() - began) / 2
        assert [served(client) for client in crowded] == lucky
        for client in crowded:
            client.close()

        def room_again() -> bool:
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as client:
                return served(client)

        await when(room_again)


@pytest.mark.parametrize("flag", ["http", "grpc", "metrics"])
def test_no_port(tmp_path: Path, flag: str) -> None:
    """The address and the flag are named, and no process is left."""
    write_crashing(tmp_path / "models", "single")
    mark = f"CONCH_TEST_MARK={uuid4()}"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ports = {"http": 0, "grpc": 0, "metrics": 0} | {flag: port}
        flags = [
            f"--{name}-{what}={value}"
            for name, number in ports.items()
            for what, value in (("port", number), ("address", "127.0.0.1"))
        ]
        command = [sys.executable, "-m", "conch", "serve", f"--model-repository={tmp_path / 'models'}", *flags]
        environment = {**os.environ, "CONCH_TEST_MARK": mark.partition("=")[2]}
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 1
    expected = (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; --{flag}-address and --{flag}-port choose another"
    )
    assert expected in result.stderr
    until(lambda: not marked(mark), lambda: f"left: {marked(mark)}")


def marked(mark: str) -> list[str]:
    """List the processes that were started with this in their environment."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                commands.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return commands


async def test_files_may_not_be_so_large(server: ConchProcess, clients: ConcurrentClients, tmp_path: Path) -> None:
    """`ulimit -f` counts for shared memory, too."""
    write_crashing(tmp_path / "models", "late")
    pid = await clients.pid("single")
    with limited(server, resource.RLIMIT_FSIZE, 1 << 20):
        status, text = await clients.post("repository/models/late/load")
        assert status == 503
        assert "no shared memory of 1073741824 bytes for model instance 'late_0': File too large" in text
        assert "raise `ulimit -f` or lower --backend-config=python,shm-limit-byte-size=" in text
        os.kill(pid, signal.SIGKILL)
        await when(lambda: "retrying in 0.5 s" in server.text)
    assert (await clients.ask("single")).answered
    assert (await clients.post("repository/models/late/load"))[0] == 200
    assert (await clients.ask("late")).answered


@pytest.mark.parametrize("server", [["--backend-config=python,shm-limit-byte-size=1048576"]], indirect=True)
async def test_shared_memory_is_full(clients: ConcurrentClients) -> None:
    """What does not fit beside the rest, or not at all, goes through the socket."""
    sizes = [200_000, 1_000_000, 200_000, 100_000, 250_000, 30_000, 250_000, 500_000]
    asked = [clients.send("single", number, large=size) for number, size in enumerate(sizes)]
    assert all(outcome.answered for outcome in await outcomes(asked))


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 64 KiB on which temporary files are made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode().strip()}")
    monkeypatch.setenv("TMPDIR", str(disk))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def files_on(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.is_file()]


async def test_the_disk_is_full(
    small_disk: Path, server: ConchProcess, clients: ConcurrentClients, tmp_path: Path
) -> None:
    """Loads that need room are refused and leave nothing behind; everything else continues."""
    write_crashing(
        tmp_path / "models",
        "packed",
        'max_batch_size: 1 parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env.tar" } }',
    )
    with tarfile.open(tmp_path / "models" / "packed" / "env.tar", "w") as archive:
        entry = tarfile.TarInfo("bin/python")
        entry.size = 100_000
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    file = base64.b64encode(bytes(100_000)).decode()
    override = {"config": IDENTITY, "file:1/model.bin": file}
    refused = await clients.post("repository/models/large/load", parameters=override)
    assert refused[0] == 503
    assert "load of 'large' needs 100000 bytes, but" in refused[1]
    assert str(small_disk) in refused[1]
    assert "set the environment variable TMPDIR to another folder" in refused[1]
    assert files_on(small_disk) == []
    refused = await clients.post("repository/models/packed/load")
    assert "cannot be unpacked into" in refused[1]
    assert "No space left on device" in refused[1]
    assert files_on(small_disk) == []
    assert (await clients.ask("single")).answered
    override["file:1/model.bin"] = base64.b64encode(bytes(1000)).decode()
    assert await clients.post("repository/models/large/load", parameters=override) == (200, "")
    shaped = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}
    assert (await clients.post("models/large/infer", inputs=[shaped]))[0] == 200
