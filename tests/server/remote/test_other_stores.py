"""Google Cloud Storage and Azure, with servers that answer as documented."""

from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote

import pytest

from conch.server.repository.remote.mirror import open_mirror
from tests.server.remote.peers import HttpPeer, Reply, Seen

FILES = {"repo/a/config.pbtxt": b'backend: "identity"', "repo/a/1/weights.bin": b"one"}
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


def answer(seen: Seen) -> Reply:
    """Answer as both do: they differ in how a list is written."""
    path, _, query = unquote(seen.path).partition("?")
    stored = next((content for name, content in FILES.items() if path.endswith(name)), None)
    if stored is not None:
        first = {"Content-Range": f"bytes 0-{len(stored) - 1}/{len(stored)}"}
        return Reply(206, stored, {"ETag": '"1"', "Last-Modified": DATE, **first})
    azure = "comp=list" in query
    rows = "".join(blob(name, len(content)) if azure else entry(name, len(content)) for name, content in FILES.items())
    text = f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>"
    return Reply(200, (text if azure else f"<ListBucketResult>{rows}</ListBucketResult>").encode())


def blob(name: str, size: int) -> str:
    return (
        f"<Blob><Name>{name}</Name><Properties><Last-Modified>{DATE}</Last-Modified><Etag>&quot;1&quot;</Etag>"
        f"<Content-Length>{size}</Content-Length><Content-Type>x/y</Content-Type></Properties></Blob>"
    )


def entry(name: str, size: int) -> str:
    return (
        f"<Contents><Key>{name}</Key><Size>{size}</Size><ETag>&quot;1&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    )


def weights(url: str, cache: Path) -> bytes:
    mirror = open_mirror(url, str(cache))
    assert list(mirror.scan()) == ["a"]
    place = mirror.find("a")
    assert place is not None
    return (place.directory / "1" / "weights.bin").read_bytes()


def test_a_container_of_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpPeer(answer) as peer:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", peer.url)
        monkeypatch.setenv("AZURE_STORAGE_KEY", b64encode(b"secret").decode())
        assert weights("as://account/container/repo", tmp_path) == b"one"
    assert all(seen.headers["authorization"].startswith("SharedKey account:") for seen in peer.seen)
    assert all(seen.path.startswith("/container") for seen in peer.seen)


def test_a_bucket_of_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpPeer(answer) as peer:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", peer.host)
        assert weights("gs://bucket/repo", tmp_path) == b"one"
    assert all(seen.path.startswith("/bucket") for seen in peer.seen)
