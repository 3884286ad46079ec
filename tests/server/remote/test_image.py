"""Repositories in images of a real registry, and `conch repo pack` and `pull`."""

import json
import os
import re
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from conch.base.archives import ArchiveLimits
from conch.base.errors import ConfigError, NotFound, Unavailable
from conch.clients.repository.command import repo
from conch.server.repository.remote.archive import Unpacker
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.location import parse_image
from conch.server.repository.remote.mirror import open_mirror
from conch.server.repository.remote.oci.registry import Registry
from conch.server.repository.store import Repository
from tests.server.remote.peers import IDENTITY, FaultyProxy, HttpPeer, Reply, Seen
from tests.server.remote.test_http_archive import tarred
from tests.support.models import write_identity

ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def repository(reference: str, cache: Path) -> Repository:
    return Repository([open_mirror(f"oci://{reference}", str(cache))])


def push(reference: str, *layers: bytes, kind: str = GZIP) -> None:
    """Put an image into the registry, its layers as they are."""
    image = parse_image(reference)
    registry = Registry(image, writes=True)
    for blob in (b"{}", *layers):
        registry.write_blob(f"sha256:{sha256(blob).hexdigest()}", len(blob), lambda blob=blob: [blob])
    described = [described_as(kind, blob) for blob in layers]
    config = described_as("application/vnd.oci.image.config.v1+json", b"{}")
    document = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": described,
    }
    registry.write_manifest(image.tag, json.dumps(document).encode())


def described_as(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(blob), "digest": f"sha256:{sha256(blob).hexdigest()}"}


def blobs(peer: HttpPeer, method: str = "GET") -> list[str]:
    return [seen.path for seen in peer.seen if seen.method == method and "/blobs/" in seen.path]


@pytest.fixture
def name(registry: str, request: pytest.FixtureRequest) -> str:
    """A name in the registry that only this test uses."""
    return f"{registry}/t{sha256(request.node.name.encode()).hexdigest()[:8]}/models"


def test_pulled_models_equal_the_packed_ones(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    write_identity(models, "a")
    write_identity(models, "b")
    (models / "a" / "1" / "weights.bin").write_bytes(os.urandom(3_000_000))
    (models / "a" / "1" / "__pycache__").mkdir()
    assert repo(["pack", str(models), f"{name}:1"]) == 0
    said = capsys.readouterr()
    first = said.out.split("@")[-1]
    assert said.out == f"oci://{name}:1@{first}"  # for scripts; the progress is on stderr
    assert re.search(r"^a .* 3\.\d/3\.\d MB ", said.err, re.MULTILINE)
    os.utime(models / "a" / "config.pbtxt", (1, 1))
    assert repo(["pack", str(models), f"{name}:2"]) == 0
    assert capsys.readouterr().out.split("@")[-1] == first  # the same files are the same image

    pulled = tmp_path / "pulled"
    assert repo(["pull", f"{name}:1", str(pulled), "--repository-cache", str(tmp_path / "cache")]) == 0
    (models / "a" / "1" / "__pycache__").rmdir()
    assert {path.relative_to(pulled): path.read_bytes() for path in pulled.rglob("*.*")} == {
        path.relative_to(models): path.read_bytes() for path in models.rglob("*.*")
    }
    assert (pulled / "b" / "1").is_dir()

    (pulled / "b" / "config.pbtxt").write_text("mine")
    again = ["pull", f"{name}:1", str(pulled), "--model", "b", "--repository-cache", str(tmp_path / "cache")]
    assert repo(again) == 1
    assert "exists and differs; --replace replaces it" in capsys.readouterr().err
    assert repo([*again, "--replace"]) == 0
    assert (pulled / "b" / "config.pbtxt").read_text() == (models / "b" / "config.pbtxt").read_text()


def test_only_changed_models_are_sent_and_fetched(name: str, tmp_path: Path) -> None:
    registry, _, path = name.partition("/")
    models = tmp_path / "models"
    write_identity(models, "a")
    write_identity(models, "b")
    with FaultyProxy(f"http://{registry}") as proxy:
        via = f"{proxy.host}/{path}:latest"
        assert repo(["pack", str(models), f"{name}:latest"]) == 0
        seen = repository(via, tmp_path / "cache")
        before = seen.snapshot()
        (models / "b" / "config.pbtxt").write_text(IDENTITY)
        assert repo(["pack", str(models), f"{name}:latest"]) == 0
        proxy.seen.clear()
        after = seen.snapshot()
        assert (after["a"] == before["a"], after["b"] == before["b"]) == (True, False)
        assert len(blobs(proxy)) == 1


@pytest.mark.parametrize("kind", [GZIP, DOCKER])
def test_layers_are_merged(name: str, tmp_path: Path, kind: str) -> None:
    lower = tarred({"models/a/1/x": b"old", "models/a/1/gone": b"", "models/b/1/y": b"", "models/c/1/z": b""})
    removed = {"models/a/1/.wh.gone": b"", "models/.wh.b": b"", "models/c/.wh..wh..opq": b""}
    upper = tarred({"models/a/1/x": b"new", "models/c/2/z": b""} | removed)
    push(f"{name}:1", lower, upper, upper, kind=kind)
    mirror = open_mirror(f"oci://{name}:1", str(tmp_path))
    assert list(mirror.scan()) == ["a", "c"]
    place = mirror.find("a")
    assert place is not None
    assert [(file.name, file.read_bytes()) for file in place.directory.rglob("*") if file.is_file()] == [("x", b"new")]
    assert [path for path, _, _ in mirror.fingerprint("c")] == ["2/z"]


def compressed(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


def test_layers_may_be_compressed_with_zstd(name: str, tmp_path: Path) -> None:
    weights = os.urandom(300_000)
    tar = tarred({"a/1/x": weights, "a/config.pbtxt": IDENTITY.encode()}, "w")
    half = len(tar) // 2
    frames = compressed(tar[:half]) + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + compressed(tar[half:])
    for tag, blob in (("one", compressed(tar)), ("several", frames)):
        push(f"{name}:{tag}", blob, kind=ZSTD)
        model = repository(f"{name}:{tag}", tmp_path / tag).read("a")
        assert (model.directory / "1" / "x").read_bytes() == weights


def test_invalid_zstd_layers_are_refused(name: str, tmp_path: Path) -> None:
    tar = tarred({"a/1/x": os.urandom(300_000)}, "w")
    wide = b"\x28\xb5\x2f\xfd" + b"\0\x90" + b"\1\0\0"  # wants 256 MiB to be kept, then ends
    for tag, blob, said in (
        ("short", compressed(tar)[:200_000], "truncated or damaged"),
        ("damaged", compressed(tar)[:5000] + b"\xff" * 100_000, "truncated or damaged"),
        ("none", b"\x28\xb5\x2f\xfd" + b"?" * 100, "truncated or damaged|cannot be read"),
        ("wide", wide, "too much memory"),
    ):
        push(f"{name}:{tag}", blob, kind=ZSTD)
        with pytest.raises(ConfigError, match=said):
            repository(f"{name}:{tag}", tmp_path / tag).snapshot()


def test_a_bomb_of_zstd_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_bytes(compressed(tarred({"a/1/x": bytes(50_000_000)}, "w")))
    assert bomb.stat().st_size < 10_000
    unpacker = Unpacker(Cache(tmp_path / "cache"), "here", ArchiveLimits(ratio_from_bytes=1_000_000))
    unpacker._cache.open()
    with pytest.raises(ConfigError, match="expands to more than 1000000 bytes"):
        unpacker.unpack(bomb, ".tar")


def test_unreadable_images_are_named(name: str, tmp_path: Path) -> None:
    push(f"{name}:xz", b"?", kind="application/vnd.oci.image.layer.v1.tar+xz")
    push(f"{name}:link", tarred({"a/1/x": b"", "l": _link()}))
    with pytest.raises(ConfigError, match=r"tar\+xz', which is not supported"):
        repository(f"{name}:xz", tmp_path).snapshot()
    with pytest.raises(ConfigError, match="the link 'l' leads out"):
        repository(f"{name}:link", tmp_path).snapshot()
    with pytest.raises(NotFound, match="the image or a part of it does not exist"):
        repository(f"{name}:none", tmp_path).snapshot()


def _link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("l")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


def test_a_damaged_layer_is_refused(name: str, tmp_path: Path) -> None:
    registry, _, path = name.partition("/")
    layer = tarred({"a/1/x": b"old"})

    def longer(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
        body = real().body
        told = {"Docker-Content-Digest": f"sha256:{sha256(body).hexdigest()}"}
        return Reply(200, body + b" ", told) if "/manifests/" in seen.path else None

    push(f"{name}:1", layer)
    with FaultyProxy(f"http://{registry}") as proxy:
        damaged = layer[:-1] + bytes([layer[-1] ^ 1])
        proxy.fault = lambda seen, real: Reply(200, damaged) if "/blobs/" in seen.path else None
        models = repository(f"{proxy.host}/{path}:1", tmp_path)
        with pytest.raises(Unavailable, match="a layer is damaged"):
            models.snapshot()
        proxy.fault = longer
        with pytest.raises(Unavailable, match="the manifest is damaged"):
            models.snapshot()
        proxy.fault = lambda seen, real: None
        assert list(models.snapshot()) == ["a"]


def test_a_registry_that_requires_a_token(name: str, tmp_path: Path) -> None:
    """The registry says where tokens are; there, the login of Docker's config is asked for."""
    registry, _, path = name.partition("/")
    push(f"{name}:1", tarred({"a/1/x": b""}))
    login = "Basic bWU6bXktcGFzc3dvcmQ="

    def give(seen: Seen) -> Reply:
        allowed = (
            seen.headers.get("authorization") == login and f"scope=repository%3A{path.replace('/', '%2F')}" in seen.path
        )
        return Reply(200, b'{"token": "of-a-day"}') if allowed else Reply(403)

    with HttpPeer(give) as tokens, FaultyProxy(f"http://{registry}") as proxy:
        challenge = f'Bearer realm="{tokens.url}/token",service="test"'

        def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
            if seen.headers.get("authorization") == "Bearer of-a-day":
                return None
            return Reply(401, headers={"WWW-Authenticate": challenge})

        proxy.fault = fault
        models = repository(f"{proxy.host}/{path}:1", tmp_path)
        with pytest.raises(Unavailable, match=r"access denied: .* answered 403"):
            models.snapshot()
        config = Path(os.environ["HOME"], ".docker", "config.json")
        config.parent.mkdir()
        config.write_text(json.dumps({"auths": {proxy.host: {"auth": login.removeprefix("Basic ")}}}))
        assert list(models.snapshot()) == ["a"]


def test_list_and_show(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, cache = tmp_path / "models", str(tmp_path / "cache")
    write_identity(models, "a")
    (models / "a" / "1" / "weights.bin").write_bytes(bytes(5_000_000))
    assert repo(["pack", str(models), f"{name}:1"]) == 0
    capsys.readouterr()
    for where in (str(models), f"oci://{name}:1"):
        assert repo(["list", where, "--json", "--repository-cache", cache]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["name"], row["versions"], row["backend"]) == ("a", [1], "identity")
        assert row["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "dims": [-1]}]
        assert row["size"] > 5_000_000
        assert repo(["show", where, "a", "--json", "--repository-cache", cache]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["config"]["max_batch_size"] == 0
        assert {"path": "1/weights.bin", "size": 5_000_000} in shown["files"]
    (models / "a" / "config.pbtxt").write_text("nonsense")
    assert repo(["list", str(models)]) == 1
    assert "a: " in capsys.readouterr().out


def test_mistakes_have_a_status_and_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repo(["list", str(tmp_path / "nowhere")]) == 1
    assert "nowhere' cannot be read: No such file or directory" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert repo(["list", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out.startswith(
        f"there are no models in {tmp_path}/empty; add one with conch repo add --repository="
    )
    assert repo(["pack", str(tmp_path), "models:1"]) == 1
    assert "'models:1' is not a valid OCI image reference: expected registry/name:tag" in capsys.readouterr().err
    write_identity(tmp_path, "a")
    assert repo(["pack", str(tmp_path / "a"), "localhost:1/models:1"]) == 1
    assert f"'{tmp_path}/a' looks like a model, not a repository" in capsys.readouterr().err
    (tmp_path / "empty").rmdir()
    assert repo(["pack", str(tmp_path), "localhost:1/models:1"]) == 1
    said = capsys.readouterr()
    assert said.out.strip() == ""
    assert said.err.lstrip().startswith("conch repo pack: ")  # no bar of 0 bytes
    assert repo(["pull", "models:1", str(tmp_path / "pulled")]) == 1
    assert capsys.readouterr().out.strip() == ""  # no bar of 0 bytes
    with pytest.raises(SystemExit) as ended:
        repo(["lst"])
    assert ended.value.code == 2
