"""Client of OCI registries: read and write manifests and blobs of one image, with authentication.

Plain HTTP is used only for registries on this machine; see `ImageLocation.url`.
"""

import json
import os
import re
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, urlencode, urljoin, urlsplit

from conch.base.errors import ConfigError, NotFound, Unavailable, Unreachable
from conch.base.http.client import HttpClient, HttpResponse
from conch.base.http.reach import check_target
from conch.server.repository.remote.location import ImageLocation, is_loopback

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFESTS = (
    OCI_MANIFEST,
    OCI_INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True, repr=False)
class RegistryLogin:
    """A user and a password, or an identity token."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


def registry_login(registry: str, environ: Mapping[str, str]) -> RegistryLogin | None:
    """Return the login of a registry from Docker's config.json, None if there is none.

    Raises ConfigError for a file that cannot be read or delegates the login to a credential helper.
    """
    folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".docker")
    path = Path(folder) / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        auths = document.get("auths", {})
        entry = next((auths[name] for name in _names(registry) if auths.get(name)), None)
        if entry is not None:
            return _login(entry)
        helped = registry in document.get("credHelpers", {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"the credentials in '{path}' cannot be read: {type(error).__name__}") from error
    if helped:
        raise ConfigError(
            f"'{path}' delegates the login of {registry} to a credential helper, which is not supported; "
            "add an entry to 'auths'"
        )
    return None


def _names(registry: str) -> tuple[str, ...]:
    own = (registry, f"https://{registry}", f"http://{registry}", f"https://{registry}/v2/")
    return (*own, "https://index.docker.io/v1/", "index.docker.io") if registry == "docker.io" else own


def _login(entry: Mapping[str, str]) -> RegistryLogin:
    user, _, password = b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
    return RegistryLogin(
        user=entry.get("username") or user,
        password=entry.get("password") or password,
        identity_token=entry.get("identitytoken", ""),
    )


class Registry:
    """One image in a registry. Thread-safe."""

    def __init__(self, location: ImageLocation, *, writes: bool = False) -> None:
        self._location = location
        self._actions = "pull,push" if writes else "pull"
        self._client = HttpClient()
        self._authorization = ""
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return str(self._location)

    @property
    def reference(self) -> str:
        """The tag or digest of the image."""
        return self._location.reference

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """Return a manifest's bytes and their digest. Raises NotFound, Unavailable."""
        with self._open("GET", f"/manifests/{reference}", {"Accept": ", ".join(_MANIFESTS)}) as answer:
            self._check(answer, 200)
            body, header = answer.read(), answer.headers.get("docker-content-digest", "")
        digest = f"sha256:{sha256(body).hexdigest()}"
        expected = reference if reference.startswith("sha256:") else header
        if expected.startswith("sha256:") and expected != digest:
            raise Unavailable(f"{self._location}: the manifest is damaged: its digest is {digest}, not {expected}")
        return body, digest

    def digest(self, reference: str) -> str:
        """Return the digest of a manifest as the registry reports it, "" if it does not. Raises as `manifest`.

        Registries limit how often manifests are fetched, but not how often this is requested.
        """
        with self._open("HEAD", f"/manifests/{reference}", {"Accept": ", ".join(_MANIFESTS)}) as answer:
            self._check(answer, 200)
            return answer.headers.get("docker-content-digest", "")

    def supports_ranges(self, digest: str) -> bool:
        """Whether the registry, or its blob storage, supports range requests for a blob."""
        with self._open("GET", f"/blobs/{digest}", {"Range": "bytes=0-0"}) as answer:
            self._check(answer, 200, 206)
            return answer.status == 206

    def read_blob(self, digest: str, start: int, end: int, size: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end` of a blob. Raises NotFound, Unavailable."""
        part = (start, end) != (0, size)
        headers = {"Range": f"bytes={start}-{end - 1}"} if part else {}
        with self._open("GET", f"/blobs/{digest}", headers) as answer:
            self._check(answer, 206 if part else 200)
            yield from answer.stream()

    def has_blob(self, digest: str) -> bool:
        """Whether the registry has a blob."""
        with self._open("HEAD", f"/blobs/{digest}") as answer:
            if answer.status == 404:
                return False
            self._check(answer, 200)
            return True

    def write_blob(self, digest: str, size: int, content: Callable[[], Iterable[bytes]]) -> None:
        """Upload a blob. `content` returns an iterator of its bytes. Raises Unavailable."""
        with self._open("POST", "/blobs/uploads/", {"Content-Length": "0"}) as answer:
            self._check(answer, 202)
            target = urljoin(answer.url, answer.headers.get("location", ""))
            check_target(answer.url, target)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        if urlsplit(target).netloc == urlsplit(self._location.url).netloc:
            headers |= self._credentials()
        target += ("&" if "?" in target else "?") + urlencode({"digest": digest})
        with self._client.open("PUT", target, headers, content()) as answer:
            self._check(answer, 201)

    def write_manifest(self, reference: str, body: bytes) -> str:
        """Upload a manifest or index with a tag, or its digest, and return the digest. Raises Unavailable."""
        document = json.loads(body)
        kind = document.get("mediaType") or (OCI_INDEX if "manifests" in document else OCI_MANIFEST)
        with self._open("PUT", f"/manifests/{reference}", {"Content-Type": kind}, body) as answer:
            self._check(answer, 201)
        return f"sha256:{sha256(body).hexdigest()}"

    def _open(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpResponse:
        url = self._location.url + path
        answer = self._client.open(method, url, {**(headers or {}), **self._credentials()}, body)
        if answer.status != 401 or answer.url != url:
            return answer
        with answer, self._lock:
            self._authorization = self._authorize(answer.headers.get("www-authenticate", ""))
        return self._client.open(method, url, {**(headers or {}), **self._credentials()}, body)

    def _credentials(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization else {}

    def _authorize(self, challenge: str) -> str:
        """Return the Authorization header for a challenge. Raises Unavailable without a login."""
        login = registry_login(self._location.registry, os.environ)
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic" and login is not None:
            return _basic(login)
        if kind == "bearer":
            return f"Bearer {self._token(dict(_PARAMETER.findall(challenge)), login)}"
        raise Unavailable(
            f"{self._location}: access denied: no login for {self._location.registry} in Docker's config; "
            "run 'docker login', or name the folder of a config.json in DOCKER_CONFIG"
        )

    def _token(self, challenge: Mapping[str, str], login: RegistryLogin | None) -> str:
        realm = challenge.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
            raise Unavailable(f"{self._location}: the registry names a token server without TLS")
        check_target(self._location.url, realm)
        scope = f"repository:{self._location.name}:{self._actions}"
        parameters = {"service": challenge.get("service", ""), "scope": scope}
        if login is not None and login.identity_token:
            parameters |= {"grant_type": "refresh_token", "refresh_token": login.identity_token, "client_id": "conch"}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self._client.open("POST", realm, headers, urlencode(parameters).encode())
        else:
            headers = {"Authorization": _basic(login)} if login is not None else {}
            query = urlencode(parameters, quote_via=quote)
            answer = self._client.open("GET", f"{realm}{'&' if parts.query else '?'}{query}", headers)
        with answer:
            if answer.status != 200:
                raise Unavailable(f"{self._location}: access denied: {parts.netloc} answered {answer.status}")
            document = answer.json()
        token = document.get("token") or document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(token, str):
            raise Unavailable(f"{self._location}: {parts.netloc} returned no token")
        return token

    def _check(self, answer: HttpResponse, *expected: int) -> None:
        if answer.status in expected:
            return
        if answer.status in (401, 403):
            raise Unavailable(f"{self._location}: access denied: {answer.status}")
        if answer.status == 404:
            raise NotFound(f"{self._location}: the image or a part of it does not exist")
        if answer.status == 400:
            raise ConfigError(
                f"{self._location}: the registry refused the request as invalid (400); a file may have changed during "
                "the upload"
            )
        kind = Unreachable if answer.status >= 500 or answer.status in (408, 429) else Unavailable
        raise kind(f"{self._location}: the registry answered {answer.status}")


def _basic(login: RegistryLogin) -> str:
    return f"Basic {b64encode(f'{login.user}:{login.password}'.encode()).decode()}"
