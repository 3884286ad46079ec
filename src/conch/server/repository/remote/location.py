"""Parse URLs of remote repositories: object stores (Triton's forms), archives behind HTTP, OCI images. No I/O."""

import ipaddress
import re
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from conch.base.errors import ConfigError
from conch.base.http.credentials import without_secrets

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")

_S3_ENDPOINT = re.compile(r"(?P<scheme>https?://)?(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})(?:/|$)")
_IMAGE = re.compile(
    r"(?P<registry>[^/]+)/(?P<name>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class ObjectStoreLocation:
    """A prefix in a bucket, or in a container of an Azure account."""

    scheme: str  # s3, gs or as
    bucket: str
    prefix: str  # without slashes at its ends
    endpoint: str = ""  # of S3, with its scheme; "" for the default one
    account: str = ""  # of Azure

    def __str__(self) -> str:
        # Without the default scheme, as in Triton's credential file.
        parts = (self.endpoint.removeprefix("http://"), self.account, self.bucket, self.prefix)
        return f"{self.scheme}://{'/'.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """An archive behind HTTP. `url` may contain secrets; `str` of the location does not."""

    url: str
    suffix: str  # one of ARCHIVE_SUFFIXES

    def __str__(self) -> str:
        return without_secrets(self.url)

    @property
    def stem(self) -> str:
        """The file name without suffix, used as the name of the model if the archive is a single model."""
        return urlsplit(self.url).path.rpartition("/")[2][: -len(self.suffix)]


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """An image in an OCI registry."""

    registry: str  # host, or host:port
    name: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return f"oci://{self.registry}/{self.name}{tag}{digest}"

    @property
    def reference(self) -> str:
        """The reference to request from the registry: the digest if given, else the tag."""
        return self.digest or self.tag

    @property
    def stem(self) -> str:
        """The last part of the name, used as the name of the model if the image is a single model."""
        return self.name.rpartition("/")[2]

    @property
    def url(self) -> str:
        """The base URL of the registry's API for this image. Plain HTTP is used only for registries on this machine."""
        # The API host of Docker Hub, whose images are named docker.io/….
        host = "registry-1.docker.io" if self.registry == "docker.io" else self.registry
        return f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{self.name}"


Location: TypeAlias = ObjectStoreLocation | ArchiveLocation | ImageLocation


def parse_location(text: str) -> Location:
    """Return the location that a URL names. Raises ConfigError saying what would be right."""
    scheme, _, rest = text.partition("://")
    if scheme == "s3":
        return _s3(text, rest)
    if scheme == "gs":
        bucket, _, prefix = rest.partition("/")
        return _in_bucket(text, "gs://bucket/path", ObjectStoreLocation("gs", bucket, _trimmed(prefix)))
    if scheme == "as":
        account, _, path = rest.partition("/")
        container, _, prefix = path.partition("/")
        location = ObjectStoreLocation("as", container, _trimmed(prefix), account=account)
        return _in_bucket(text, "as://account/container/path", location if account else None)
    if scheme == "oci":
        return parse_image(rest)
    if scheme in ("http", "https"):
        return _archive(text)
    raise ConfigError(
        f"model repository '{text}': unknown scheme '{scheme}://'; known: s3, gs, as, oci, http and https"
    )


def parse_image(text: str) -> ImageLocation:
    """Return the image of a reference such as `localhost:5000/team/models:1`; the default tag is `latest`."""
    match = _IMAGE.fullmatch(text.removeprefix("oci://"))
    # As in Docker, the first part is the registry only if it looks like a host. There is no default registry.
    if match is None or not ("." in match["registry"] or ":" in match["registry"] or match["registry"] == "localhost"):
        raise ConfigError(
            f"'{without_secrets(text)}' is not a valid OCI image reference: expected registry/name:tag with the name "
            "in lower case, such as registry.example.com/team/models:1"
        )
    tag = match["tag"] or ("" if match["digest"] else "latest")
    return ImageLocation(match["registry"], match["name"], tag, match["digest"] or "")


def is_loopback(host: str) -> bool:
    """Whether a `host` or `host:port` is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _s3(text: str, rest: str) -> ObjectStoreLocation:
    endpoint = ""
    if match := _S3_ENDPOINT.match(rest):
        # As in Triton, an endpoint without a scheme uses plain HTTP.
        endpoint = f"{match['scheme'] or 'http://'}{match['host']}:{match['port']}"
        rest = rest[match.end() :]
    elif rest.startswith(("http://", "https://")):
        raise ConfigError(f"model repository '{without_secrets(text)}': the endpoint needs a port, as in {_S3_FORM}")
    bucket, _, prefix = rest.partition("/")
    return _in_bucket(text, _S3_FORM, ObjectStoreLocation("s3", bucket, _trimmed(prefix), endpoint=endpoint))


_S3_FORM = "s3://bucket/path or s3://https://host:port/bucket/path"


def _archive(text: str) -> ArchiveLocation:
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if usable and parts.path.endswith(suffix)), "")
    if not suffix:
        raise ConfigError(
            f"model repository '{without_secrets(text)}' is not an archive: expected a URL whose path ends with "
            f"{', '.join(ARCHIVE_SUFFIXES)}"
        )
    return ArchiveLocation(text, suffix)


def _in_bucket(text: str, form: str, location: ObjectStoreLocation | None) -> ObjectStoreLocation:
    if location is None or not location.bucket or any(mark in text for mark in "@?#\0"):
        raise ConfigError(f"model repository '{without_secrets(text)}': expected {form}")
    return location


def _trimmed(prefix: str) -> str:
    return "/".join(part for part in prefix.split("/") if part)
