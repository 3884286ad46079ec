"""Remote repositories that do not answer at the start: models are served from the cache."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conch.base.errors import Unavailable, Unreachable
from conch.clients.repository.command import repo
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.listing import Contents, RemoteFile
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.store import Repository
from tests.server.remote.peers import IDENTITY, S3, FaultyProxy, HttpPeer, Reply, archive_server
from tests.server.remote.test_http_archive import tarred
from tests.support.models import write_identity

Place = tuple[str, Callable[[], None]]


class UnresponsiveSource:
    """A source of one model without files, which can time out."""

    def __init__(self) -> None:
        self.now = 1000.0  # as its clock has it
        self.silence: float | None = None
        self.asked = 0

    def contents(self, model: str | None = None) -> Contents:
        self.asked += 1
        if self.silence is not None:
            self.now += self.silence
            raise Unreachable("silent://: timed out")
        return {"a": (RemoteFile("1", "", 0),)}

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """There is nothing to fetch."""


def opened(url: str, tmp_path: Path) -> Repository:
    """Open a repository as a new process does."""
    return Repository([open_mirror(url, str(tmp_path / "cache"))])


def in_s3(peers: ExitStack, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    s3: S3 = request.getfixturevalue("s3")
    s3.put_identity("a", weights=b"one")
    proxy = peers.enter_context(FaultyProxy(s3.endpoint))
    return f"s3://{proxy.host}/{s3.bucket}/repo"


def in_an_archive(peers: ExitStack, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    body = tarred({"a/config.pbtxt": IDENTITY.encode(), "a/1/weights.bin": b"one"})
    server = peers.enter_context(archive_server(lambda: body, lambda: '"1"'))
    return f"{server.url}/models.tar.gz"


def in_an_image(peers: ExitStack, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    registry: str = request.getfixturevalue("registry")
    write_identity(tmp_path / "models", "a")
    (tmp_path / "models" / "a" / "1" / "weights.bin").write_bytes(b"one")
    assert repo(["pack", str(tmp_path / "models"), f"{registry}/copies:1"]) == 0
    proxy = peers.enter_context(FaultyProxy(f"http://{registry}"))
    return f"oci://{proxy.host}/copies:1"


@pytest.fixture(params=[in_s3, in_an_archive, in_an_image])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The URL of a repository, and what takes it away."""
    with ExitStack() as peers:
        yield request.param(peers, request, tmp_path), peers.close


def test_cached_models_are_served_with_a_warning(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, take_away = place
    before = opened(url, tmp_path)
    stamps = before.snapshot()
    before.read("a").discard()
    take_away()
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    caplog.set_level(logging.INFO, logger="conch")
    models = opened(url, tmp_path)
    assert models.snapshot() == stamps
    for _ in range(2):
        files = models.read("a")
        assert (files.directory / "1" / "weights.bin").read_bytes() == b"one"
    assert models.snapshot() == stamps
    assert not models.has("b")
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert re.search(rf"127\.0\.0\.1.*: connection refused.*; until .*: 'a' as of {today} \d\d:\d\d:\d\d UTC$", warning)
    assert re.search(r"model 'a' is loaded from the cache: .*connection refused", caplog.text)


def test_without_cached_models_the_error_names_the_cause(place: Place, tmp_path: Path) -> None:
    url, take_away = place
    take_away()
    with pytest.raises(Unavailable, match="connection refused"):
        opened(url, tmp_path).snapshot()


def test_a_signature_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with HttpPeer(lambda seen: Reply(503)) as peer:
        url = f"{peer.url}/models.tar.gz?signature=secret"
    with pytest.raises(Unavailable, match=r"models\.tar\.gz: connection refused"):
        opened(url, tmp_path).snapshot()
    assert "secret" not in caplog.text


def test_a_partly_fetched_version_is_not_served(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    url = f"s3://{proxy.host}/{s3.bucket}/repo"
    s3.put_identity("a", weights=b"one")
    first = opened(url, tmp_path)
    first.snapshot()
    first.read("a").discard()
    s3.put("repo/a/1/weights.bin", b"two")
    s3.put("repo/a/1/more.bin", b"more of two")
    second = opened(url, tmp_path)
    proxy.fault = lambda seen, real: Reply(403) if "more.bin" in seen.path else None
    second.snapshot()
    with pytest.raises(Unavailable, match=r"more\.bin"):
        second.read("a")
    second.snapshot()
    proxy.fault = lambda seen, real: Reply(503)
    files = opened(url, tmp_path).read("a")
    assert (files.directory / "1" / "weights.bin").read_bytes() == b"one"
    assert not (files.directory / "1" / "more.bin").exists()
    proxy.fault = lambda seen, real: None
    files = opened(url, tmp_path).read("a")
    assert (files.directory / "1" / "more.bin").read_bytes() == b"more of two"
    proxy.fault = lambda seen, real: Reply(503)
    assert (opened(url, tmp_path).read("a").directory / "1" / "weights.bin").read_bytes() == b"two"


def test_models_removed_from_the_repository_leave_the_index(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    url = f"s3://{proxy.host}/{s3.bucket}/repo"
    for name in ("a", "b"):
        s3.put_identity(name)
    models = opened(url, tmp_path)
    models.snapshot()
    for name in ("a", "b"):
        models.read(name).discard()
    s3.delete("repo/b/config.pbtxt")
    s3.delete("repo/b/1/")
    models.snapshot()
    proxy.fault = lambda seen, real: Reply(503)
    assert list(opened(url, tmp_path).snapshot()) == ["a"]


def test_after_the_first_answer_an_outage_is_an_error(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a")
    models = opened(f"s3://{proxy.host}/{s3.bucket}/repo", tmp_path)
    models.read("a")
    proxy.fault = lambda seen, real: Reply(503)
    with pytest.raises(Unavailable, match="503"):
        models.snapshot()
    with pytest.raises(Unavailable, match="503"):
        models.read("a")


@pytest.mark.parametrize(("silence", "asked"), [(20.0, 1), (0.2, 3)])
def test_a_slow_failure_is_not_repeated_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence: float, asked: int
) -> None:
    source = UnresponsiveSource()
    monkeypatch.setattr("conch.server.repository.remote.mirror.monotonic", lambda: source.now)
    Mirror("silent://", source, Cache(tmp_path)).scan()
    source.asked, source.silence = 0, silence
    mirror = Mirror("silent://", source, Cache(tmp_path))
    assert list(mirror.scan()) == ["a"]
    assert mirror.find("a")
    mirror.fingerprint("a")
    assert source.asked == asked
    source.now += silence
    assert mirror.find("a")
    assert source.asked == asked + 1
