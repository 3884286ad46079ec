"""Blocking HTTP requests to find out what a server is."""

import json
import socket
import ssl
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection, RemoteDisconnected
from typing import Any, NoReturn

from conch.measure.bench.generator import Endpoint, Tls
from conch.measure.bench.targets.target import TargetError

TIMEOUT_S = 10.0
# Of one body: metadata and lists of models are far below it.
MAX_BODY_BYTES = 64 * 2**20


class NotHttp(TargetError):
    """The answer is not HTTP/1.1. `start` has its first bytes, none if the connection was closed."""

    def __init__(self, message: str, start: bytes) -> None:
        super().__init__(message)
        self.start = start


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One response."""

    path: str
    status: int
    reason: str
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, or None if it is not valid JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def error_message(self) -> str:
        """Return the message of an error body of Triton, the OpenAI API or FastAPI, else the first line of the body."""
        document = self.json
        if isinstance(document, dict):
            error = document.get("error", document.get("detail", document.get("message")))
            if isinstance(error, dict):
                error = error.get("message")
            if error:
                return error if isinstance(error, str) else json.dumps(error)
        return first_line(self.body)


def first_line(body: bytes, limit: int = 120) -> str:
    """Return the first line with text, cut at `limit` characters; what cannot be printed is escaped."""
    line = next((line for line in body[:4096].splitlines() if line.strip()), b"")
    text = line.strip().decode("utf-8", "backslashreplace")
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def client_context(tls: Tls, protocols: list[str]) -> ssl.SSLContext:
    """Return the TLS settings of a client. Raises TargetError for unreadable files."""
    try:
        return tls.context(protocols)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(file for file in (tls.ca_file, tls.certificate_file, tls.key_file) if file)
        raise TargetError(f"TLS: {files} cannot be used: {error.strerror or error}") from None


def refuse_connection(endpoint: Endpoint, error: OSError, timeout_s: float) -> NoReturn:
    """Raise TargetError with the cause of a failed connection and a remedy."""
    where = endpoint.place
    if isinstance(error, ConnectionRefusedError):
        raise TargetError(f"nothing listens at {where}: connection refused; is the server running, on this port?")
    if isinstance(error, socket.gaierror):
        raise TargetError(f"the host name '{endpoint.host}' cannot be resolved: {error.strerror}")
    if isinstance(error, ssl.SSLCertVerificationError):
        raise TargetError(
            f"the certificate of {where} is not trusted: {error.verify_message}; "
            "give the certificate of its authority with --ca-file"
        )
    if isinstance(error, ssl.SSLError):
        plain = error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
        if plain or error.reason == "UNEXPECTED_EOF_WHILE_READING" or isinstance(error, ssl.SSLEOFError):
            raise TargetError(f"{where} does not speak TLS; use http:// or grpc:// without TLS")
        raise TargetError(f"TLS with {where} failed: {error.reason or error}")
    if isinstance(error, TimeoutError):
        raise TargetError(
            f"{where} did not answer within {timeout_s:g} s; is there a firewall, or is the server stuck?"
        )
    raise TargetError(f"{where} cannot be reached: {error.strerror or error}")


def speaks_tls(endpoint: Endpoint) -> bool:
    """Whether the server begins a TLS handshake, whatever its certificate."""
    context = client_context(Tls(verify=False), ["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=endpoint.host),
        ):
            return True
    except ssl.SSLError as error:
        # An alert is an answer in TLS: for example, a client certificate is required.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


class HttpProbe:
    """Requests over one connection at a time, which ends with the object. The endpoint's headers go with each."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._connection: HTTPConnection | None = None

    def __del__(self) -> None:
        self.close()

    def get(self, path: str) -> HttpAnswer:
        """Send GET. Raises TargetError, NotHttp."""
        return self.ask("GET", path)

    def post(self, path: str, document: Any) -> HttpAnswer:
        """Send a JSON document. Raises TargetError, NotHttp."""
        return self.ask("POST", path, json.dumps(document).encode(), {"content-type": "application/json"})

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request, a second time if the server has closed an idle connection. Raises TargetError, NotHttp."""
        fresh = self._connection is None
        try:
            return self._ask(method, path, body, headers or {})
        except NotHttp as failure:
            if fresh or failure.start:
                raise
            return self._ask(method, path, body, headers or {})

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> HttpAnswer:
        try:
            connection = self._connection or self._connect()
            self._connection = connection
            connection.request(method, path, body, {**dict(self.endpoint.headers), **headers})
            response = connection.getresponse()
            content = response.read(MAX_BODY_BYTES)
            if response.will_close or not response.isclosed():
                self.close()
            return HttpAnswer(path, response.status, response.reason, response.headers, content)
        except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.close()
            raise NotHttp(f"{self.endpoint.place} closes the connection without an answer", b"") from None
        except BadStatusLine as error:
            self.close()
            start = str(error.args[0]).encode("latin-1", "replace")
            raise NotHttp(f"{self.endpoint.place} does not speak HTTP/1.1: {first_line(start)}", start) from None
        except HTTPException as error:
            self.close()
            raise NotHttp(f"{self.endpoint.place} does not speak valid HTTP/1.1: {error}", b"?") from None
        except OSError as error:
            self.close()
            refuse_connection(self.endpoint, error, self._timeout_s)

    def _connect(self) -> HTTPConnection:
        """Open a connection, so that its errors are not taken for those of a request."""
        endpoint = self.endpoint
        connection: HTTPConnection
        if endpoint.tls is None:
            connection = HTTPConnection(endpoint.host, endpoint.port, timeout=self._timeout_s)
        else:
            context = client_context(endpoint.tls, ["http/1.1"])
            connection = HTTPSConnection(endpoint.host, endpoint.port, timeout=self._timeout_s, context=context)
        try:
            connection.connect()
        except OSError as error:
            refuse_connection(endpoint, error, self._timeout_s)
        return connection
