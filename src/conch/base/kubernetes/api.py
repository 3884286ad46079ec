"""A client of the Kubernetes API server, of a pod or through `kubectl proxy`. Blocking; for a thread."""

import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import urlencode, urlsplit

from conch.base.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0
# Of a watch on the server's side; then it is continued. The client waits a little longer.
WATCH_S = 30
_WATCH_SLACK_S = 10.0
_MAX_DOCUMENT_BYTES = 16 * 2**20
_MAX_ERROR_BYTES = 64 * 2**10
_MAX_ERROR_CHARACTERS = 500


class KubernetesError(Exception):
    """The API server cannot be reached, refuses, or answers something else than expected; 0 is without a status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ApiServerAddress:
    """Where an API server is. `folder` has `token` and `ca.crt`; None is without a login, as with `kubectl proxy`."""

    host: str
    port: int
    folder: Path | None = None
    secure: bool = True
    prefix: str = ""  # of all paths, such as that of a proxy

    @classmethod
    def of_url(cls, url: str) -> "ApiServerAddress":
        """Return the address of a URL. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{url!r} is not a valid URL, such as http://127.0.0.1:8001") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{url!r} is not a valid URL, such as http://127.0.0.1:8001")
        secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if secure else 80), None, secure, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Where the API server is, and which pod this is."""

    server: ApiServerAddress
    namespace: str
    pod: str

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> "PodIdentity":
        """Return the identity of this pod. Raises ConfigError outside of one."""
        host, pod = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("POD_NAME", "")
        pod = pod or environment.get("HOSTNAME", "")
        if not host or not pod:
            missing = "HOSTNAME" if host else "KUBERNETES_SERVICE_HOST"
            raise ConfigError(f"--limits-kubernetes: {missing} is not set, so this is not a pod of Kubernetes")
        try:
            port = int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
            namespace = environment.get("POD_NAMESPACE") or (folder / "namespace").read_text().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"--limits-kubernetes: the pod has no service account: {error}") from None
        return cls(ApiServerAddress(host, port, folder), namespace, pod)


class KubernetesApi:
    """Requests to the API server. The token is read for each request, because Kubernetes rotates it."""

    def __init__(self, server: ApiServerAddress) -> None:
        self._server = server
        self._connection: http.client.HTTPConnection | None = None  # of the request in progress
        self._closed = False

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the document at a path. Raises KubernetesError."""
        with _errors(path), self._answer(path, query, _ANSWER_TIMEOUT_S) as response:
            return _document(response.read(_MAX_DOCUMENT_BYTES), path)

    def watch(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it. Raises KubernetesError."""
        wanted = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S), **query}
        with _errors(path), self._answer(path, wanted, WATCH_S + _WATCH_SLACK_S) as response:
            while line := response.readline(_MAX_DOCUMENT_BYTES):
                if not line.endswith(b"\n"):
                    raise KubernetesError(f"{path}: the watch was cut off")
                yield _document(line, path)

    def close(self) -> None:
        """End the request in progress, and fail later ones. May be called from another thread."""
        self._closed = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(SHUT_RDWR)

    @contextmanager
    def _answer(self, path: str, query: Mapping[str, str], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its answer. The connection is closed on every way out."""
        if self._closed:
            raise KubernetesError("stopped")
        connection, login = self._connect()
        self._connection = connection
        target = f"{self._server.prefix}{path}{f'?{urlencode(query)}' if query else ''}"
        # The API server answers 406 to types that it has no form for, such as text/plain.
        headers = {**login, "Accept": "application/json", "User-Agent": "conch"}
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request("GET", target, headers=headers)
            # The answer holds the socket, too: closing the connection alone would leave it open.
            with connection.getresponse() as response:
                if response.status != 200:
                    detail = _detail(response.read(_MAX_ERROR_BYTES))
                    raise KubernetesError(f"{path}: status {response.status}{detail}", response.status)
                yield response
        finally:
            self._connection = None
            connection.close()

    def _connect(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """Return a connection that is not open yet, and the headers of the login."""
        server = self._server
        if not server.secure:
            return http.client.HTTPConnection(server.host, server.port, timeout=_CONNECT_TIMEOUT_S), {}
        folder = server.folder
        # The CA may be rotated, too.
        tls = ssl.create_default_context(cafile=None if folder is None else str(folder / "ca.crt"))
        token = {} if folder is None else {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        return http.client.HTTPSConnection(server.host, server.port, timeout=_CONNECT_TIMEOUT_S, context=tls), token


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn errors of sockets, TLS, HTTP and files into KubernetesError."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise KubernetesError(f"{path}: {str(error) or type(error).__name__}") from error


def _detail(body: bytes) -> str:
    """Return the message of a Status object, or the text of another answer, after a colon; "" without a text."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError, AttributeError):
        text = str(json.loads(body).get("message") or text)
    text = " ".join(text.split())
    return f": {text[:_MAX_ERROR_CHARACTERS]}" if text else ""


def _document(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise KubernetesError(f"{path}: the answer is not JSON") from None
    if not isinstance(document, dict):
        raise KubernetesError(f"{path}: the answer is not a JSON object")
    return document
