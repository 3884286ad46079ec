"""An S3 server and a registry for all tests, with a separate bucket or name for each test."""

import itertools
import os
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.server.remote.peers import S3, FaultyProxy
from tests.support.registry import running_registry

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
    """Debian's registry: `host:port`."""
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host
