"""An OpenTelemetry collector, for traces and metrics: HTTP with bounds of time and memory, a log without secrets."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import requests
from opentelemetry.sdk.resources import Resource

from conch.base.http.client import cause_of
from conch.base.http.credentials import without_secrets

_log = logging.getLogger(__name__)

_SERVICE = "triton-inference-server"
_MIN_TIMEOUT_S = 1.0
_MAX_TIMEOUT_S = 60.0
_MAX_REPLY_BYTES = 65_536
_PIECE_BYTES = 4096
_MAX_REASON_CHARACTERS = 100


class CollectorSession(requests.Session):
    """Sends requests, each within its timeout including the reply, of which at most 64 KiB are read.

    The exporters compute timeouts from the wall clock, which may be stepped; they are limited here.
    """

    failure = ""  # of the last request, without the URL and headers; "" for none

    def request(self, method: Any, url: str | bytes, *arguments: Any, **options: Any) -> requests.Response:
        """Send a request. A redirect is a failure: it is not followed, and the exporters take it for a success."""
        timeout = options.get("timeout")
        timeout_s = min(
            max(timeout if isinstance(timeout, int | float) else _MAX_TIMEOUT_S, _MIN_TIMEOUT_S), _MAX_TIMEOUT_S
        )
        deadline = monotonic() + timeout_s
        self.failure = ""
        options |= {"timeout": timeout_s, "stream": True, "allow_redirects": False}
        if self.verify is not True:  # by OTEL_EXPORTER_OTLP_CERTIFICATE, which REQUESTS_CA_BUNDLE would replace
            options["verify"] = self.verify
        try:
            response = super().request(method, url, *arguments, **options)
        except Exception as error:
            self.failure = _cause_of(error)
            raise
        _read(response, deadline)
        status = response.status_code
        if status >= 300:
            self.failure = f"the collector answers {status} {response.reason or ''}"[:_MAX_REASON_CHARACTERS].strip()
        if 300 <= status < 400:
            raise requests.TooManyRedirects(self.failure)
        return response


def _read(response: requests.Response, deadline: float) -> None:
    """Read a reply that is small and in time, so that the connection can be used again; close the connection else."""
    body = b""
    with response, suppress(Exception):  # errors of urllib3, http.client and the system; the status is known
        while piece := response.raw.read1(_PIECE_BYTES, decode_content=False):
            body += piece
            if len(body) > _MAX_REPLY_BYTES or monotonic() > deadline:
                break
    response._content = body  # otherwise it would be read again


def _cause_of(error: Exception) -> str:
    """Return the cause of a failed request; messages of the package contain the URL or the value of a header."""
    inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
    return cause_of(inner)


class PackageLog(logging.Handler):
    """Replaces the log of OpenTelemetry's package, which has several lines for each batch, and secrets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "unknown reason"  # the last message, which has the reason of a failure
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; log a warning once when the package drops spans or ignores a header."""
        text = str(record.msg)
        if "Header format" in text:
            self._warn("a header of OTEL_EXPORTER_OTLP_HEADERS is not valid, and ignored: expected name=value")
            return
        self.text = record.getMessage()
        if "Queue full" in text:
            self._warn("the queue of spans is full; dropping traces; bsp_max_queue_size is its size")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text)


def package_log() -> PackageLog:
    """Return the log of the package. Call it before the package reads its environment."""
    logger = logging.getLogger("opentelemetry")
    for handler in logger.handlers:
        if isinstance(handler, PackageLog):
            return handler
    handler = PackageLog()
    logger.addHandler(handler)
    logger.propagate = False
    return handler


class OtlpCollector:
    """What the exporters of traces and metrics share: URL, session, and one warning on failure until it succeeds."""

    def __init__(self, endpoint: str) -> None:
        """Prepare the session. Call it before OpenTelemetry's package reads its environment."""
        self.url = endpoint if "://" in endpoint else f"http://{endpoint}"
        self.public_url = without_secrets(self.url)
        self.session = CollectorSession()
        self.log = package_log()
        self.failing = False  # whether the last batch was lost

    def note(self, what: str, sent: bool, consequence: str) -> None:
        """Record whether a batch was accepted, and log the first failure."""
        if not sent and not self.failing:
            reason = self.session.failure or self.log.text
            _log.warning("cannot send %s to '%s': %s; %s", what, self.public_url, reason, consequence)
        self.failing = not sent


def service_resource(own: Mapping[str, str] | None = None) -> Resource:
    """Return the resource of this server. The precedence of service names: `own`, the environment, Triton's."""
    environment = Resource.create()
    service = environment.attributes.get("service.name", "unknown_service")
    if str(service).startswith("unknown_service"):
        service = _SERVICE
    return environment.merge(Resource({"service.name": service, **(own or {})}))
