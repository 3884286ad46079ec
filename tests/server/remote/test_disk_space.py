"""Hostile and oversized repositories must not fill the disk, and leave nothing on it when they are refused."""

import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from conch.base.errors import ConfigError
from conch.clients.repository.command import repo
from conch.server.repository.disk_space import NoSpace
from conch.server.repository.override import UploadFolders
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import Download, Downloader
from conch.server.repository.remote.mirror import open_mirror
from tests.server.remote.peers import IDENTITY, S3, HttpPeer, Reply, Seen, archive_server
from tests.server.remote.test_http_archive import MODEL, tarred, zipped
from tests.support.small_disk import small_disk, used_bytes

MIB = 1 << 20
TAR = "application/vnd.oci.image.layer.v1.tar"


@contextmanager
def hostile_registry(blob: bytes, *, kind: str = TAR, announced: int | None = None) -> Iterator[HttpPeer]:
    """A registry of one image, whose layer is sent as often as it takes to send more than announced."""
    digest = f"sha256:{sha256(blob).hexdigest()}"
    layer = {"mediaType": kind, "size": len(blob) if announced is None else announced, "digest": digest}
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "size": 2, "digest": f"sha256:{'0' * 64}"}
    manifest = json.dumps({"schemaVersion": 2, "config": config, "layers": [layer]}).encode()

    def answer(seen: Seen) -> Reply:
        return Reply(200, blob if "/blobs/" in seen.path else manifest)

    with HttpPeer(answer) as peer:
        yield peer


def files_below(folder: Path) -> list[str]:
    """The files of a cache, without its locks and the index of models that are served offline."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


def pull(reference: str, tmp_path: Path, *flags: str) -> int:
    return repo(["pull", reference, str(tmp_path / "pulled"), "--repository-cache", str(tmp_path / "cache"), *flags])


def test_an_announced_terabyte_is_refused_before_any_byte_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hostile_registry(tarred(MODEL, "w"), announced=10**12) as peer:
        for flags in ((), ("--sync", "--retry-secs", "0"), ("--repository-cache-limit", "1000000")):
            assert pull(f"{peer.host}/team/models:1", tmp_path, *flags) == 1
            said = capsys.readouterr().err
            assert f"oci://{peer.host}/team/models:1: 1000000000000 bytes more would exceed the limit" in said or (
                f"oci://{peer.host}/team/models:1: 1000000000000 bytes more do not fit on the disk" in said
            )
        assert not any("/blobs/" in seen.path for seen in peer.seen)
    assert files_below(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("models.tar.gz", tarred(MODEL | {"a/1/zeros": bytes(20 * MIB)})),
        ("models.zip", zipped(MODEL | {"a/1/zeros": bytes(20 * MIB)})),
        ("models.tar", zstandard.compress(tarred(MODEL | {"a/1/zeros": bytes(20 * MIB)}, "w"))),
        ("many.tar.gz", tarred(MODEL | {f"a/1/{number}": b"%d" % number for number in range(5000)})),
    ],
)
def test_a_bomb_stops_at_the_limit_and_leaves_nothing(tmp_path: Path, name: str, body: bytes) -> None:
    with archive_server(lambda: body, lambda: '"1"') as peer:
        mirror = open_mirror(f"{peer.url}/{name}", str(tmp_path), cache_limit=8 * MIB)
        with pytest.raises(NoSpace, match=r"would exceed the limit of 8388608 bytes for the copies .*cache-limit"):
            mirror.scan()
    assert files_below(tmp_path) == []


def test_a_bomb_in_a_layer_leaves_nothing(tmp_path: Path) -> None:
    layer = gzip.compress(tarred({"a/config.pbtxt": IDENTITY.encode(), "a/1/zeros": bytes(20 * MIB)}, "w"))
    with hostile_registry(layer, kind=f"{TAR}+gzip") as peer:
        mirror = open_mirror(f"oci://{peer.host}/team/models:1", str(tmp_path), cache_limit=8 * MIB)
        with pytest.raises(NoSpace, match=r"team/models:1, file 'a/1/zeros': .* would exceed the limit"):
            mirror.scan()
    assert files_below(tmp_path) == []


def test_a_refused_archive_leaves_nothing(tmp_path: Path) -> None:
    body = tarred(MODEL | {"../evil": b""})
    with archive_server(lambda: body, lambda: '"1"') as peer, pytest.raises(ConfigError, match="leads out"):
        open_mirror(f"{peer.url}/models.tar.gz", str(tmp_path)).scan()
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("name", ["models.tar.gz", "models.zip"])
def test_a_full_disk_has_its_space_again(tmp_path: Path, name: str) -> None:
    files = MODEL | {f"a/1/weights{number}.bin": bytes([number]) * 3 * MIB for number in range(5)}
    body = zipped(files) if name.endswith("zip") else tarred(files)
    with small_disk(tmp_path / "disk", 8) as disk, archive_server(lambda: body, lambda: '"1"') as peer:
        mirror = open_mirror(f"{peer.url}/{name}", str(disk / "cache"))
        for _ in range(3):
            with pytest.raises(
                NoSpace, match=r"do not fit on the disk of the repository cache '.*/cache/.*', which has"
            ):
                mirror.scan()
            assert used_bytes(disk) < 100_000


def test_a_disk_that_others_fill_meanwhile(tmp_path: Path) -> None:
    weights = os.urandom(4 * MIB)
    with small_disk(tmp_path / "disk", 8) as disk:
        cache = Cache(disk / "cache")
        cache.open()

        def read(start: int, end: int) -> Iterator[bytes]:
            for position in range(start, end, 65536):
                if position == 2 * MIB:
                    with suppress(OSError):  # full
                        (disk / "other").write_bytes(bytes(8 * MIB))
                yield weights[position : min(position + 65536, end)]

        download = Download("a" * 64, "weights", len(weights), read)
        for part_bytes in (MIB, 16 * MIB):  # with and without a journal
            with pytest.raises(NoSpace, match=r"weights: 65536 bytes more do not fit|No space left on device"):
                Downloader(cache, part_bytes=part_bytes).fetch([download])
            assert files_below(disk / "cache") == []
            (disk / "other").unlink()


def test_a_full_disk_of_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = tarred(MODEL | {"a/1/weights.bin": os.urandom(9 * MIB)})
    with small_disk(tmp_path / "disk", 8) as disk, archive_server(lambda: body, lambda: '"1"') as peer:
        target = disk / "models"
        arguments = ["pull", f"{peer.url}/models.tar.gz", str(target), "--repository-cache", str(tmp_path / "cache")]
        assert repo(arguments) == 1
        assert f"'{target}/a' needs 94" in capsys.readouterr().err
        assert list(disk.iterdir()) == []


def test_a_quota_of_files_leaves_nothing(tmp_path: Path) -> None:
    """EFBIG stands for all errors of a full disk, where no small disk can be mounted."""
    body = tarred(MODEL | {"a/1/weights.bin": os.urandom(3 * MIB)}, "w")
    with archive_server(lambda: body, lambda: '"1"') as peer:
        command = [sys.executable, "-m", "conch", "repo", "pull", f"{peer.url}/models.tar", tmp_path / "pulled"]
        result = subprocess.run(
            [*command, "--repository-cache", tmp_path / "cache"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)),
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert "cannot be written: File too large" in result.stderr
    assert files_below(tmp_path) == []


def test_earlier_states_of_a_model_make_room(s3: S3, tmp_path: Path) -> None:
    url = f"s3://{s3.endpoint}/{s3.bucket}/repo"
    mirror = open_mirror(url, str(tmp_path), cache_limit=5 * MIB)
    for number in range(4):
        s3.put_identity("a", weights=bytes([number]) * 2 * MIB)
        place = mirror.find("a")
        assert place is not None
        weights = next(path for path in place.directory.rglob("*") if path.stat().st_size == 2 * MIB)
        assert weights.read_bytes()[0] == number
        if number < 3:
            for path in sorted(place.directory.rglob("*"), reverse=True):  # as at unload
                path.rmdir() if path.is_dir() else path.unlink()
    s3.put_identity("b", weights=bytes(4 * MIB))
    with pytest.raises(NoSpace, match="would exceed the limit of 5242880 bytes"):
        mirror.find("b")


def test_a_resumed_download_counts_what_is_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 5 * MIB)
    cache.open()
    broken = [True]

    def read(start: int, end: int) -> Iterator[bytes]:
        if broken[0] and start == 3 * MIB:
            return
        yield bytes(end - start)

    download = Download("b" * 64, "weights", 4 * MIB, read)
    with pytest.raises(Exception, match="the connection ended"):
        Downloader(cache, part_bytes=MIB).fetch([download])
    broken[0] = False
    Downloader(cache, part_bytes=MIB).fetch([download])
    assert cache.has("b" * 64)


@pytest.mark.parametrize("mark", ["\n", "\x1b[2J", "\x7f", "\x9b", "\u202e", "\u2028"])
def test_names_with_control_characters_are_refused(s3: S3, tmp_path: Path, mark: str) -> None:
    name, refused = f"a/1/w{mark}x", r"the path '?a/1/w\\.*x'? contains control characters"
    for suffix, body in ((".tar.gz", tarred(MODEL | {name: b""})), (".zip", zipped(MODEL | {name: b""}))):
        with (
            archive_server(lambda body=body: body, lambda: '"1"') as peer,  # type: ignore[misc]
            pytest.raises(ConfigError, match=refused),
        ):
            open_mirror(f"{peer.url}/models{suffix}", str(tmp_path / suffix)).scan()
    with hostile_registry(tarred(MODEL | {name: b""}, "w")) as peer, pytest.raises(ConfigError, match=refused):
        open_mirror(f"oci://{peer.host}/team/models:1", str(tmp_path / "oci")).scan()
    # In the system of a container's image such files are harmless.
    with hostile_registry(
        tarred({"usr/Icon\r": b""} | {f"models/{path}": data for path, data in MODEL.items()}, "w")
    ) as peer:
        assert list(open_mirror(f"oci://{peer.host}/team/models:1", str(tmp_path / "ok")).scan()) == ["a"]
    with pytest.raises(ConfigError, match="contains control characters"):
        UploadFolders().write("a", {f"1/w{mark}x": b""})
    if mark == "\n":  # moto refuses it
        return
    s3.put_identity("a")
    s3.put(f"repo/a/1/w{mark}x", b"")
    with pytest.raises(ConfigError, match="contains control characters"):
        open_mirror(f"s3://{s3.endpoint}/{s3.bucket}/repo", str(tmp_path / "s3")).scan()


def test_uploads_leave_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        folders = UploadFolders()
        with pytest.raises(NoSpace, match=r"load of 'a' needs 4000000 bytes, but .*disk' has room for 39.*TMPDIR"):
            folders.write("a", {"1/model.onnx": bytes(4_000_000)})
        assert used_bytes(disk) == 0
        assert folders.write("a", {"1/model.onnx": bytes(3_000_000)}).is_dir()


@pytest.mark.parametrize("where", ["kind", "digest", "redirect", "platform"])
def test_a_registry_does_not_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\x9b"
    layer = {"mediaType": evil if where == "kind" else TAR, "size": 1, "digest": evil}
    manifest: dict[str, object] = {"schemaVersion": 2, "layers": [layer]}
    if where == "platform":
        image = {"platform": {"os": evil, "architecture": evil}, "digest": f"sha256:{'0' * 64}"}
        manifest = {"manifests": [image, {**image, "platform": {"os": "b", "architecture": "c"}}]}

    def answer(seen: Seen) -> Reply:
        if where == "redirect":
            return Reply(302, headers={"Location": f"/v2/{evil}"})
        return Reply(200, json.dumps(manifest).encode())

    with HttpPeer(answer) as peer:
        assert pull(f"{peer.host}/team/models:1", tmp_path) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable(), said
