"""An S3 server and a registry for all tests, with a separate bucket or name for each test."""

import itertools
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from tests.remote.peers import S3, FaultyProxy

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def credentials(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for S3, and a home without any others."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "DOCKER_", "TRITON_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-a-test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-a-test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="package")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str) -> S3:
    return S3(s3_endpoint, f"bucket-{next(_numbers)}")


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_endpoint) as peer:
        yield peer


@pytest.fixture(scope="package")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's registry: `host:port`. It is unpacked without being installed where it is not there."""
    folder = tmp_path_factory.mktemp("registry")
    program = shutil.which("docker-registry") or _unpacked(folder)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{holder.getsockname()[1]}"
    storage, config = folder / "storage", folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{storage}'}}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(f"http://{host}/v2/", process, folder / "log")
        yield host
    finally:
        process.terminate()
        process.wait()


def _unpacked(folder: Path) -> str:
    for command in (["apt-get", "download", "docker-registry"], ["dpkg", "-x", "PACKAGE", "."]):
        packages = [path.name for path in folder.glob("*.deb")]
        try:
            words = [*packages[:1]] if packages else ["PACKAGE"]
            subprocess.run(
                [words[0] if word == "PACKAGE" else word for word in command],
                cwd=folder, check=True, capture_output=True, timeout=120,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"docker-registry is not installed and cannot be had: {error}")
    return str(folder / "usr" / "bin" / "docker-registry")


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return
