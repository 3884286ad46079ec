"""A client of the model repository API and of statistics, for Conch and Triton, over HTTP."""

import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from conch.base.http.credentials import client_key
from conch.measure.bench.generator import Tls, Transport
from conch.measure.bench.observers.local_processes import is_local
from conch.measure.bench.targets.http_probe import HttpProbe, first_line
from conch.measure.bench.targets.target import TargetError, parse_address
from conch.measure.tune.knobs import Document

LOAD_TIMEOUT_S = 600.0
_TIMEOUT_S = 30.0
_POLL_S = 0.2
_NOT_EXPLICIT = "explicit model load / unload is not allowed"
_PROBE = "conch-tune-probe"  # a model that does not exist


class ServerUnreachable(ConnectionError):
    """No answer: the server does not run, or the connection was lost."""


class ServerRefusal(RuntimeError):
    """The server answered with an error. `status` is of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Where a server is and how to authenticate. Holds the file of the key, not the key, so that it may be stored."""

    url: str
    api_key_file: str | None = None
    ca_file: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.url).hostname
        return host is not None and is_local(host)

    def key(self) -> str:
        """Return the key to send, "" for none. Raises InvalidRequest."""
        return client_key(self.api_key_file)


@dataclass(slots=True)
class RepositoryClient:
    """One connection a request: the server may restart between two of them."""

    access: ServerAccess
    _headers: tuple[tuple[str, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        key = self.access.key()
        self._headers = (("authorization", f"Bearer {key}"),) if key else ()

    def server(self) -> dict[str, Any]:
        """Return name, version and extensions of the server."""
        metadata: dict[str, Any] = self._call("GET", "/v2")
        return metadata

    def check_explicit(self) -> None:
        """Raise ServerRefusal, with what to do, unless the server lets clients load models."""
        try:
            self._call("POST", f"/v2/repository/models/{_PROBE}/load", {})
        except ServerRefusal as refusal:
            if _NOT_EXPLICIT in str(refusal):
                raise ServerRefusal(
                    refusal.status,
                    "the server does not load models on request; start it with --model-control-mode=explicit and "
                    "--load-model=NAME (or '*') for the models to serve",
                ) from None
            if refusal.status in (401, 403):
                raise

    def is_ready(self, model: str) -> bool:
        """Return whether a model is served."""
        try:
            self._call("GET", f"/v2/models/{quote(model)}/ready")
        except ServerRefusal:
            return False
        return True

    def config(self, model: str) -> Document:
        """Return the configuration of a served model. Raises ServerRefusal if it is not served."""
        document: Document = self._call("GET", f"/v2/models/{quote(model)}/config")
        return document

    def load(self, model: str, config: Document | None = None) -> None:
        """Load or reload a model, from the repository's configuration without `config`.

        Raises ServerRefusal with the cause if it fails; then the served instances stay.
        """
        parameters = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        self._call("POST", f"/v2/repository/models/{quote(model)}/load", parameters, LOAD_TIMEOUT_S)

    def unload(self, model: str) -> None:
        """Unload a model and wait until it is not ready."""
        self._call("POST", f"/v2/repository/models/{quote(model)}/unload", {}, LOAD_TIMEOUT_S)
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while self.is_ready(model) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def statistics(self, model: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the statistics of one model, or of all, summed over versions, by model."""
        path = "/v2/models/stats" if model is None else f"/v2/models/{quote(model)}/stats"
        by_model: dict[str, dict[str, Any]] = {}
        for stat in self._call("GET", path).get("model_stats", []):
            by_model[stat["name"]] = stat  # the newest version comes last
        return by_model

    def is_live(self) -> bool:
        """Return whether the server answers."""
        try:
            self._call("GET", "/v2/health/live")
        except ServerRefusal:
            return True
        except ServerUnreachable:
            return False
        return True

    def wait_until_live(self, timeout_s: float) -> bool:
        """Wait until the server answers; return False if it does not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.is_live():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float = _TIMEOUT_S) -> Any:
        try:
            address = parse_address(self.access.url)
            endpoint = address.endpoint(Transport.HTTP1, Tls(ca_file=self.access.ca_file), self._headers)
            content = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"}
            answer = HttpProbe(endpoint, timeout_s).ask(method, address.path + path, content, headers)
        except TargetError as error:
            raise ServerUnreachable(error.message) from error
        request = f"{method} {path}"
        if answer.body.strip() and answer.json is None:
            text = f"{request} answered {answer.status} and '{first_line(answer.body, 60)}', which is not JSON"
            raise ServerRefusal(answer.status, f"{text}; is the URL that of an inference server?")
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise ServerRefusal(answer.status, answer.error_message() or f"{request} answered {answer.status}")
        return answer.json or {}
