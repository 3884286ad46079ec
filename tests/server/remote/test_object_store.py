"""Repositories in S3: fetching, caching and errors."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conch.base.errors import ConfigError, NotFound, Unavailable
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import Downloader
from conch.server.repository.remote.location import ObjectStoreLocation, parse_location
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.remote.object_store import ObjectStoreSource
from conch.server.repository.store import Repository
from tests.server.remote.peers import IDENTITY, S3, FaultyProxy, Reply, Seen

Fault = Callable[[Seen, Callable[[], Reply]], Reply | None]
PART = 100_000


def repository(url: str, cache: Path) -> Repository:
    return Repository([open_mirror(url, str(cache))])


def via(peer: FaultyProxy | S3, s3: S3) -> str:
    host = (peer.endpoint if isinstance(peer, S3) else peer.url).removeprefix("http://")
    return f"s3://{host}/{s3.bucket}/repo"


def gets(peer: FaultyProxy, part: str) -> list[Seen]:
    return [seen for seen in peer.seen if part in seen.path.partition("?")[0]]


def test_a_model_is_read_from_a_bucket(s3: S3, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    s3.put_identity("b")
    s3.put("repo/README.md", "no model")
    s3.put("repo/.hidden/config.pbtxt", "no model either")
    models = repository(via(s3, s3), tmp_path)
    assert list(models.snapshot()) == models.names() == ["a", "b"]
    a, b = models.read("a"), models.read("b")
    assert (a.versions_on_disk, b.versions_on_disk) == ((1,), (1,))
    assert (a.directory / "1" / "weights.bin").read_bytes() == b"one"
    assert a.fingerprint == models.fingerprint("a")
    a.discard()
    assert not a.directory.exists()


def test_the_endpoint_may_come_from_the_environment(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_identity("a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert list(repository(f"s3://{s3.bucket}/repo/", tmp_path).snapshot()) == ["a"]


def test_only_changed_files_are_fetched_again(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    models = repository(via(proxy, s3), tmp_path)
    before = models.read("a")
    s3.put("repo/a/2/weights.bin", b"two")
    proxy.seen.clear()
    assert models.fingerprint("a") != before.fingerprint
    after = models.read("a")
    assert (after.directory / "2" / "weights.bin").read_bytes() == b"two"
    assert [seen.path.rpartition("/")[2] for seen in gets(proxy, "/repo/")] == ["weights.bin"]
    # What an older load was given is as it was.
    assert not (before.directory / "2").exists()


def test_a_second_server_uses_the_cache_of_the_first(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    repository(via(proxy, s3), tmp_path).read("a")
    proxy.seen.clear()
    repository(via(proxy, s3), tmp_path).read("a")
    assert gets(proxy, "/repo/") == []


def test_changes_by_a_model_to_its_files_do_not_affect_the_next_load(s3: S3, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    models = repository(via(s3, s3), tmp_path)
    file = models.read("a").directory / "1" / "weights.bin"
    file.chmod(0o600)
    file.write_bytes(b"two")
    assert (models.read("a").directory / "1" / "weights.bin").read_bytes() == b"one"


def test_unused_objects_are_removed(s3: S3, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    models = repository(via(s3, s3), tmp_path)
    old = models.read("a")
    s3.put("repo/a/1/weights.bin", b"two")
    models.snapshot()
    models.read("a").discard()
    kept = {path.read_bytes() for path in tmp_path.glob("*/objects/*")}
    assert b"one" in kept  # a model is served from it
    old.discard()
    models.snapshot()
    kept = {path.read_bytes() for path in tmp_path.glob("*/objects/*")}
    assert kept == {b"two", IDENTITY.encode()}


def test_a_large_object_is_fetched_in_parts_and_resumed(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    weights = os.urandom(3 * PART + 1000)
    s3.put_identity("a", weights=weights)
    location = parse_location(via(proxy, s3))
    assert isinstance(location, ObjectStoreLocation)
    cache = Cache(tmp_path)
    models = Repository([Mirror(str(location), ObjectStoreSource(location, Downloader(cache, part_bytes=PART)), cache)])
    broken = f"bytes={2 * PART}-{3 * PART - 1}"

    def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
        if seen.headers.get("range") != broken:
            return None
        while not any(len(path.read_text().splitlines()) == 4 for path in tmp_path.glob("partial/*.parts")):
            time.sleep(0.01)  # the first line and the three other parts
        return Reply(403)

    proxy.fault = fault
    with pytest.raises(Unavailable, match=r"repo/a/1/weights\.bin: access denied: 403"):
        models.read("a")
    assert list(tmp_path.glob("loads/*/a.*")) == []
    assert len(list(tmp_path.glob("objects/*"))) == 1  # the configuration
    proxy.fault = lambda seen, real: None
    proxy.seen.clear()
    model = models.read("a")
    assert (model.directory / "1" / "weights.bin").read_bytes() == weights
    assert [seen.headers["range"] for seen in gets(proxy, "weights.bin")] == [broken]
    assert list(tmp_path.glob("partial/*")) == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda seen, real: Reply(403, b"<Error><Code>AccessDenied</Code></Error>"), "access denied: 403 Forbidden"),
        (lambda seen, real: Reply(401), "access denied: 401"),
        (lambda seen, real: Reply(400, b"<Error><Code>ExpiredToken</Code></Error>"), "400 Bad Request ExpiredToken"),
    ],
)
def test_the_message_names_the_cause_and_no_secret(
    s3: S3, proxy: FaultyProxy, tmp_path: Path, fault: Fault, message: str
) -> None:
    s3.put_identity("a")
    proxy.fault = fault
    with pytest.raises(Unavailable, match=message) as raised:
        repository(via(proxy, s3), tmp_path).snapshot()
    assert s3.bucket in raised.value.message
    assert "of-a-test" not in raised.value.message


def test_a_truncated_object_is_refused(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"0123456789")

    def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
        if "weights" not in seen.path:
            return None
        reply = real()
        return Reply(reply.status, reply.body[:4], {**reply.headers, "Content-Range": "bytes 0-3/4"})

    proxy.fault = fault
    with pytest.raises(Unavailable, match=r"weights\.bin"):
        repository(via(proxy, s3), tmp_path).read("a")
    assert not any(path.read_bytes().startswith(b"0123") for path in tmp_path.glob("*/*/*") if path.is_file())


def test_an_object_that_changes_during_the_fetch_is_fetched_again(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"one")
    changed: list[bytes] = []

    def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
        if "weights" in seen.path and not changed:
            changed.append(b"two")
            s3.put("repo/a/1/weights.bin", b"two")
        return None

    proxy.fault = fault
    model = repository(via(proxy, s3), tmp_path).read("a")
    assert (model.directory / "1" / "weights.bin").read_bytes() == b"two"
    assert changed


def test_an_object_that_keeps_changing_is_an_error(s3: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    s3.put_identity("a", weights=b"0")

    def fault(seen: Seen, real: Callable[[], Reply]) -> Reply | None:
        if "weights" in seen.path:
            s3.put("repo/a/1/weights.bin", os.urandom(8))
        return None

    proxy.fault = fault
    with pytest.raises(Unavailable, match=r"model 'a' of s3://.* kept changing while it was being fetched"):
        repository(via(proxy, s3), tmp_path).read("a")


def test_missing_buckets_and_models(s3: S3, tmp_path: Path) -> None:
    s3.put_identity("a")
    with pytest.raises(NotFound, match="NoSuchBucket"):
        repository(via(s3, s3).replace(s3.bucket, "no-bucket"), tmp_path).snapshot()
    with pytest.raises(NotFound, match="there are no models in s3://"):
        repository(via(s3, s3) + "/nowhere", tmp_path).snapshot()
    with pytest.raises(NotFound, match="model not found in any model repository"):
        repository(via(s3, s3), tmp_path).read("b")
    with pytest.raises(Unavailable, match="connection refused"):
        repository("s3://127.0.0.1:1/bucket/repo", tmp_path).snapshot()


def test_a_cache_that_cannot_be_written(s3: S3, tmp_path: Path) -> None:
    s3.put_identity("a")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"the repository cache '.*' cannot be written: Not a directory; .*-cache"):
        repository(via(s3, s3), tmp_path / "file").snapshot()


def test_a_full_disk_is_named(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_identity("a", weights=b"x" * 10_000)
    monkeypatch.setattr(os, "pwrite", _full)
    with pytest.raises(Unavailable, match="cannot be written: No space left on device"):
        repository(via(s3, s3), tmp_path).read("a")
    assert list(tmp_path.glob("*/objects/*")) == list(tmp_path.glob("*/partial/*")) == []


def _full(*_: object) -> int:
    raise OSError(28, os.strerror(28))


def test_keys_may_come_from_a_profile_or_from_tritons_file(
    s3: S3, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_identity("a")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    folder = Path(os.environ["HOME"], ".aws")
    folder.mkdir()
    (folder / "credentials").write_text("[team]\naws_access_key_id = of-the-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "team")
    models = repository(via(proxy, s3), tmp_path / "cache")
    models.snapshot()
    assert "Credential=of-the-profile/" in proxy.seen[-1].headers["authorization"]

    file = tmp_path / "cloud.json"
    entries = {"": {"profile": "team"}, "s3://127.": {"key_id": "of-triton", "secret_key": "s", "region": "r-1"}}
    file.write_text(json.dumps({"s3": entries}))
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(file))
    models.snapshot()
    assert "Credential=of-triton/" in proxy.seen[-1].headers["authorization"]
    assert "/r-1/s3/" in proxy.seen[-1].headers["authorization"]
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    file.unlink()
    with pytest.raises(ConfigError, match=r"TRITON_CLOUD_CREDENTIAL_PATH: '.*cloud.json' cannot be read"):
        models.snapshot()
