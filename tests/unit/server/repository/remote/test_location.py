"""URLs of remote repositories."""

import pytest

from conch.base.errors import ConfigError
from conch.server.repository.remote.location import (
    ArchiveLocation,
    ImageLocation,
    Location,
    ObjectStoreLocation,
    is_loopback,
    parse_location,
    without_secrets,
)

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", ObjectStoreLocation("s3", "bucket", "")),
        ("s3://bucket/path//to/models/", ObjectStoreLocation("s3", "bucket", "path/to/models")),
        ("s3://host:9000/bucket/a", ObjectStoreLocation("s3", "bucket", "a", endpoint="http://host:9000")),
        ("s3://https://host:443/bucket/a", ObjectStoreLocation("s3", "bucket", "a", endpoint="https://host:443")),
        ("s3://http://10.0.0.1:80/bucket", ObjectStoreLocation("s3", "bucket", "", endpoint="http://10.0.0.1:80")),
        ("gs://bucket/a", ObjectStoreLocation("gs", "bucket", "a")),
        ("as://account/container/a/b", ObjectStoreLocation("as", "container", "a/b", account="account")),
        ("https://host/a.tar.gz?sig=x", ArchiveLocation("https://host/a.tar.gz?sig=x", ".tar.gz")),
        ("http://host:1/dir/a.zip", ArchiveLocation("http://host:1/dir/a.zip", ".zip")),
        ("oci://host/team/models", ImageLocation("host.example", "team/models", "latest")),
        ("oci://localhost:5000/m:v1", ImageLocation("localhost:5000", "m", "v1")),
        (f"oci://host.example/m@{DIGEST}", ImageLocation("host.example", "m", "", DIGEST)),
    ],
)
def test_valid_urls(text: str, expected: Location) -> None:
    assert parse_location(text.replace("oci://host/", "oci://host.example/")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3:///path", "s3://https://host/bucket", "s3://key:secret@bucket/path", "gs://", "as://account",
        "as:///container", "ftp://host/a.zip", "https://host/models", "http:///a.zip", "http://host:x/a.zip",
        "oci://models:1", "oci://host.example/UPPER:1", "oci://host.example/", "oci://host.example/a:b:c",
    ],
)  # fmt: skip
def test_invalid_urls(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_location(text)
    assert "secret" not in str(raised.value)


def test_a_location_is_shown_without_secrets() -> None:
    assert str(parse_location("https://me:secret@host/a.zip?X-Signature=secret#x")) == "https://host/a.zip"
    assert without_secrets("https://[broken") == "invalid URL"


def test_plain_http_is_for_registries_of_this_machine() -> None:
    assert ImageLocation("localhost:5000", "m").url == "http://localhost:5000/v2/m"
    assert ImageLocation("[::1]:5000", "m").url == "http://[::1]:5000/v2/m"
    assert ImageLocation("registry.example", "m").url == "https://registry.example/v2/m"
    assert ImageLocation("docker.io", "library/m").url == "https://registry-1.docker.io/v2/library/m"
    assert [is_loopback(host) for host in ("127.1.2.3:1", "10.0.0.1", "localhost.example")] == [True, False, False]
