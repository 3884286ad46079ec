"""A client of the Kubernetes API server for a pod: documents, and the events of a watch. Blocking; for a thread."""

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
from urllib.parse import urlencode

from conch.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0
# Of a watch on the server's side; then it is continued. The client waits a little longer.
WATCH_S = 30
_WATCH_SLACK_S = 10.0
_MAX_DOCUMENT_BYTES = 16 * 2**20


class KubernetesError(Exception):
    """The API server cannot be reached, refuses, or answers something else than expected; 0 is without a status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Where the API server is, which pod this is, and the folder of its token and CA."""

    host: str
    port: int
    namespace: str
    pod: str
    folder: Path = SERVICE_ACCOUNT

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
        return cls(host, port, namespace, pod, folder)


class KubernetesApi:
    """Requests to the API server. The token is read for each request, because Kubernetes rotates it."""

    def __init__(self, identity: PodIdentity) -> None:
        self.identity = identity
        self._connection: http.client.HTTPSConnection | None = None  # of the request in progress
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
        identity = self.identity
        if self._closed:
            raise KubernetesError("stopped")
        # The CA may be rotated, too.
        tls = ssl.create_default_context(cafile=str(identity.folder / "ca.crt"))
        token = (identity.folder / "token").read_text().strip()
        connection = http.client.HTTPSConnection(identity.host, identity.port, timeout=_CONNECT_TIMEOUT_S, context=tls)
        self._connection = connection
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "conch"}
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request("GET", target, headers=headers)
            # The answer holds the socket, too: closing the connection alone would leave it open.
            with connection.getresponse() as response:
                if response.status != 200:
                    detail = response.read(1000).decode("utf-8", "replace")
                    with suppress(ValueError):
                        detail = str(json.loads(detail).get("message", detail))
                    raise KubernetesError(f"{path}: status {response.status}: {detail[:200]}", response.status)
                yield response
        finally:
            self._connection = None
            connection.close()


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn errors of sockets, TLS, HTTP and files into KubernetesError."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise KubernetesError(f"{path}: {str(error) or type(error).__name__}") from error


def _document(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise KubernetesError(f"{path}: the answer is not JSON") from None
    if not isinstance(document, dict):
        raise KubernetesError(f"{path}: the answer is not a JSON object")
    return document
