"""Repositories in archives behind HTTP: unpacking, and refused archives."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conch.base.archives import ArchiveLimits
from conch.base.errors import ConfigError, NotFound, Unavailable
from conch.base.http import client
from conch.clients.repository.command import repo
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import Downloader
from conch.server.repository.remote.http_archive import ArchiveSource
from conch.server.repository.remote.location import ArchiveLocation, parse_location
from conch.server.repository.remote.mirror import Mirror
from conch.server.repository.store import Repository
from tests.server.remote.peers import IDENTITY, FaultyProxy, HttpPeer, Reply, Seen, archive_server


def tarred(files: dict[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> bytes:
    """A tar file; a TarInfo in place of contents is a member of another kind."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


MODEL = {"a/config.pbtxt": IDENTITY.encode(), "a/1/weights.bin": b"one"}


@dataclass
class Served:
    """An archive on a server."""

    body: bytes = b""
    etag: str = '"1"'
    peer: HttpPeer | None = None

    def url(self, name: str) -> str:
        assert self.peer is not None
        return f"{self.peer.url}/models/{name}"


@pytest.fixture
def served() -> Iterator[Served]:
    archive = Served()
    with archive_server(lambda: archive.body, lambda: archive.etag) as archive.peer:
        yield archive


def repository(url: str, cache: Path, limits: ArchiveLimits | None = None, part_bytes: int = 1 << 20) -> Repository:
    location = parse_location(url)
    assert isinstance(location, ArchiveLocation)
    copies = Cache(cache)
    source = ArchiveSource(location, copies, Downloader(copies, part_bytes=part_bytes), limits)
    return Repository([Mirror(str(location), source, copies)])


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("models.tar.gz", tarred(MODEL)),
        ("models.tgz", tarred(MODEL)),
        ("models.tar", tarred(MODEL, "w")),
        ("models.zip", zipped(MODEL)),
        ("nested.tar.gz", tarred({f"top/{name}": content for name, content in MODEL.items()})),
        ("a.zip", zipped({name.removeprefix("a/"): content for name, content in MODEL.items()})),
    ],
)
def test_a_repository_or_a_model_is_unpacked(served: Served, tmp_path: Path, name: str, body: bytes) -> None:
    served.body = body
    models = repository(served.url(name), tmp_path)
    assert list(models.snapshot()) == ["a"]
    model = models.read("a")
    assert model.versions_on_disk == (1,)
    assert (model.directory / "1" / "weights.bin").read_bytes() == b"one"


def test_it_is_fetched_again_only_when_its_etag_has_changed(served: Served, tmp_path: Path) -> None:
    served.body = tarred(MODEL | {"b/1/x": b"", "README.md": b"of no model"})
    models = repository(served.url("models.tar.gz"), tmp_path)
    before = models.snapshot()
    assert models.snapshot() == before
    assert repository(served.url("models.tar.gz"), tmp_path).snapshot() == before
    assert served.peer is not None
    assert len([seen for seen in served.peer.seen if seen.headers.get("range") != "bytes=0-0"]) == 1
    served.body, served.etag = tarred(MODEL | {"b/1/x": b"new"}), '"2"'
    after = models.snapshot()
    assert after["a"] == before["a"]  # by contents: the other model need not be loaded again
    assert after["b"] != before["b"]


def test_a_large_archive_is_fetched_in_parts(served: Served, tmp_path: Path) -> None:
    served.body = tarred(MODEL | {"a/1/weights.bin": os.urandom(500_000)})
    assert list(repository(served.url("models.tar.gz"), tmp_path, part_bytes=100_000).snapshot()) == ["a"]
    assert served.peer is not None
    assert len(served.peer.seen) == 1 + -(-len(served.body) // 100_000)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"../evil": b""}, r"the path '\.\./evil' leads out"),
        ({"a/../../evil": b""}, "leads out"),
        ({"/etc/evil": b""}, "leads out"),
        ({"a/link": member("a/link", tarfile.SYMTYPE, "../../etc/passwd")}, "the link 'a/link' leads out"),
        ({"a/link": member("a/link", tarfile.SYMTYPE, "/etc/passwd")}, "the link 'a/link' leads out"),
        ({"a/link": member("a/link", tarfile.LNKTYPE, "../etc/passwd")}, "the link 'a/link' leads out"),
        ({"a/link": member("a/link", tarfile.SYMTYPE, "nowhere")}, "leads to 'a/nowhere', which is not in the archive"),
        ({"a/link": member("a/link", tarfile.SYMTYPE, "link")}, "not in the archive"),
        ({"a/null": member("a/null", tarfile.CHRTYPE)}, "'a/null' is a device or pipe"),
        ({"a/pipe": member("a/pipe", tarfile.FIFOTYPE)}, "'a/pipe' is a device or pipe"),
    ],
)
def test_an_archive_with_paths_that_lead_out_is_refused(
    served: Served, tmp_path: Path, files: dict[str, bytes | tarfile.TarInfo], message: str
) -> None:
    served.body = tarred(MODEL | files)
    with pytest.raises(ConfigError, match=message):
        repository(served.url("models.tar.gz"), tmp_path / "cache").snapshot()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_zip_with_paths_that_lead_out_is_refused(served: Served, tmp_path: Path) -> None:
    served.body = zipped(MODEL | {"a/../../evil": b""})
    with pytest.raises(ConfigError, match="leads out"):
        repository(served.url("models.zip"), tmp_path).snapshot()


def test_links_inside_are_replaced_by_their_targets(served: Served, tmp_path: Path) -> None:
    links = {"2": member("a/2", tarfile.SYMTYPE, "1"), "w": member("a/latest.bin", tarfile.LNKTYPE, "a/1/weights.bin")}
    served.body = tarred(MODEL | links)
    model = repository(served.url("models.tar.gz"), tmp_path).read("a")
    assert model.versions_on_disk == (1, 2)
    assert (model.directory / "2" / "weights.bin").read_bytes() == b"one"
    assert (model.directory / "latest.bin").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (ArchiveLimits(total_bytes=10_000), "expands to more than 10000 bytes"),
        (ArchiveLimits(ratio=2, ratio_from_bytes=1000), "expands to more than"),
        (ArchiveLimits(entries=2), "more than 2 files"),
    ],
)
def test_a_bomb_is_refused(served: Served, tmp_path: Path, limits: ArchiveLimits, message: str) -> None:
    served.body = tarred(MODEL | {"a/1/zeros": bytes(1_000_000)})
    with pytest.raises(ConfigError, match=message):
        repository(served.url("models.tar.gz"), tmp_path, limits).snapshot()
    assert list(tmp_path.glob("partial/*")) == list(tmp_path.glob("indexes/*")) == []


@pytest.mark.parametrize("name", ["models.tar.gz", "models.zip"])
def test_a_truncated_archive_is_refused_whole(served: Served, tmp_path: Path, name: str) -> None:
    whole = MODEL | {"a/1/weights.bin": os.urandom(100_000)}
    served.body = (zipped(whole) if name.endswith("zip") else tarred(whole))[:50_000]
    models = repository(served.url(name), tmp_path)
    with pytest.raises(ConfigError, match="the archive is truncated or damaged"):
        models.snapshot()
    assert models.names() == []


def test_other_files_than_archives_are_refused(served: Served, tmp_path: Path) -> None:
    served.body = b"<html>Please log in</html>"
    with pytest.raises(ConfigError, match="the archive is truncated or damaged"):
        repository(served.url("models.tar.gz"), tmp_path).snapshot()


def test_a_broken_connection(tmp_path: Path) -> None:
    body = tarred(MODEL)
    with (
        HttpPeer(lambda seen: Reply(200, body, {"ETag": '"1"'}, cut=20)) as peer,
        pytest.raises(Unavailable, match=r"models\.tar\.gz: the connection was closed"),
    ):
        repository(f"{peer.url}/models.tar.gz", tmp_path).snapshot()


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [(403, Unavailable, "access denied: 403"), (404, NotFound, "answered 404"), (500, Unavailable, "answered 500")],
)
def test_the_message_names_the_cause_and_no_secret(
    tmp_path: Path, status: int, kind: type[Exception], message: str
) -> None:
    with HttpPeer(lambda seen: Reply(status)) as peer:
        url = f"http://me:my-password@{peer.host}/models.tar.gz?X-Signature=my-signature"
        with pytest.raises(kind, match=rf"http://{peer.host}/models.tar.gz: .*{message}") as raised:
            repository(url, tmp_path).snapshot()
    assert "my-" not in str(raised.value)
    assert peer.seen[0].path == "/models.tar.gz?X-Signature=my-signature"
    assert peer.seen[0].headers["authorization"] == "Basic bWU6bXktcGFzc3dvcmQ="


def test_credentials_stay_with_their_host(served: Served, tmp_path: Path) -> None:
    served.body = tarred(MODEL)
    with HttpPeer(lambda seen: Reply(302, headers={"Location": served.url("x")})) as first:
        url = f"http://me:secret@{first.host}/models.tar.gz"
        assert list(repository(url, tmp_path).snapshot()) == ["a"]
    assert "authorization" in first.seen[0].headers
    assert served.peer is not None
    assert not any("authorization" in seen.headers for seen in served.peer.seen)


def test_pull_reports_what_it_has_fetched(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served.body = tarred({**MODEL, "b/1/weights.bin": b"two", "docs/readme.md": b"# Models"})
    target = tmp_path / "pulled"
    url = served.url("models.tar.gz")
    command = ["pull", url, str(target), "--repository-cache", str(tmp_path / "cache")]
    assert repo(command) == 0
    lines = capsys.readouterr().out.splitlines()
    left_out = "skipped: docs, which has neither config.pbtxt nor a version folder"
    assert lines[-3:] == [f"{target / 'a'}", f"{target / 'b'}", left_out]
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
    assert repo([*command, "--model", "b"]) == 0
    said = capsys.readouterr().out
    assert "0/0 bytes" not in said
    assert said.splitlines()[-3:] == [f"all files of {url} are in the cache", f"{target / 'b'}  (unchanged)", left_out]
    assert repo([*command, "--model", "c"]) == 1
    said = capsys.readouterr().err
    assert "there is no model 'c'" in said
    assert "found a, b\n" in said


def test_a_part_that_trickles_ends_and_the_others_stay(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.body = tarred({**MODEL, "a/1/weights.bin": os.urandom(250_000)}, "w")
    third = "bytes=200000-"
    assert served.peer is not None
    with FaultyProxy(served.peer.url) as proxy:

        def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
            reply = real()
            reply.cut, reply.trickles = 10, True
            return reply if seen.headers.get("range", "").startswith(third) else None

        models = repository(f"{proxy.url}/models/models.tar", tmp_path, part_bytes=100_000)
        monkeypatch.setattr(client, "SLOW_WINDOW_S", 0.3)
        proxy.fault = fault
        with pytest.raises(Unavailable, match=r"models\.tar: too slow: \d+ bytes in \d s, the minimum is 1024 bytes"):
            models.snapshot()
        proxy.fault = lambda seen, real: None
        proxy.seen.clear()
        assert list(repository(f"{proxy.url}/models/models.tar", tmp_path, part_bytes=100_000).snapshot()) == ["a"]
        ranges = [seen.headers["range"] for seen in proxy.seen if "range" in seen.headers and seen.method == "GET"]
        assert [asked for asked in ranges if not asked.startswith("bytes=0-0")] == [f"{third}{len(served.body) - 1}"]
