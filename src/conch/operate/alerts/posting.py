"""Build, sign and send the POST request of a message."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conch.base.http.client import HttpClient, HttpSettings, RequestFailed
from conch.operate.alerts.chat_services import DeliveryOutcome, OutgoingPost, PostReply, Verdict, body_of_template
from conch.operate.alerts.configuration import Target, redact
from conch.operate.alerts.message import DETAILS, Detail, TemplateFailed, compose
from conch.operate.alerts.webhook import Alert

_MAX_REPLY_S = 30.0
_MAX_REPLY_BYTES = 65_536


def number_that_fits(target: Target, alerts: Sequence[Alert]) -> int:
    """Return how many of the alerts, from the first, one message can have. Raises TemplateFailed."""
    number = len(alerts)
    while number > 1 and not _fits(target, _document(target, alerts[:number], DETAILS[0])):
        number = number // 2
    return number


def build_post(target: Target, alerts: Sequence[Alert], now: float) -> OutgoingPost:
    """Return the request of a message; a message that is too large gets less detail. `now` is the Unix time.

    Raises TemplateFailed, and OSError if a secret cannot be read.
    """
    document: Any = None
    for detail in DETAILS:
        document = _document(target, alerts, detail)
        if _fits(target, document):
            break
    url = target.url.read()
    if target.secret is not None and target.service.sign is not None:
        url, document = target.service.sign(url, document, target.secret.read(), now)
    headers = {name: value.read() for name, value in target.headers.items()}
    if target.service.name == "generic":
        headers["Idempotency-Key"] = idempotency_key(target, alerts)
    return OutgoingPost(url, _encode(document), headers)


def idempotency_key(target: Target, alerts: Sequence[Alert]) -> str:
    """Return a text that is equal for all attempts to deliver one message, also after a restart."""
    return hashlib.sha256("\n".join([target.name, *(alert.key for alert in alerts)]).encode()).hexdigest()[:32]


def _document(target: Target, alerts: Sequence[Alert], detail: Detail) -> Any:
    message = compose(alerts, target.templates, detail, target.service.escapes)
    return body_of_template(target.body, message) if target.body else target.service.document(message)


def _fits(target: Target, document: Any) -> bool:
    service = target.service
    return service.size(document, _encode(document)) <= service.max_size


def _encode(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


class Unanswered(Exception):
    """The target sent no complete reply; the message has the cause, without the URL."""


class HttpPoster:
    """Posts to one target, through the proxy of the environment. `ca_file` replaces the system's certificates."""

    def __init__(self, ca_file: Path | None = None) -> None:
        certificates = str(ca_file) if ca_file else None
        self._client = HttpClient(HttpSettings(read_s=20.0, max_redirects=0, retries=False, ca_file=certificates))

    def __call__(self, post: OutgoingPost) -> PostReply:
        """Send a request, without retries and redirects. Raises Unanswered."""
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "conch-alerts", **post.headers}
        try:
            with self._client.open("POST", post.url, headers, post.body) as response:
                body = response.start(_MAX_REPLY_BYTES, _MAX_REPLY_S)
        except RequestFailed as error:
            raise Unanswered(f"{urlsplit(post.url).hostname}: {error.cause}") from None
        return PostReply(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def attempt(
    target: Target,
    alerts: Sequence[Alert],
    send: Callable[[OutgoingPost], PostReply],
    now: Callable[[], float] = time.time,
) -> DeliveryOutcome:
    """Build, sign and send the message of alerts; return the outcome, whose reason has no secrets."""
    try:
        post = build_post(target, alerts, now())
        outcome = target.service.outcome(send(post), now())
    except TemplateFailed as error:
        outcome = DeliveryOutcome(Verdict.MESSAGE_REJECTED, str(error))
    except Unanswered as error:
        outcome = DeliveryOutcome(Verdict.TARGET_FAILED, str(error))
    except OSError as error:
        outcome = DeliveryOutcome(Verdict.TARGET_FAILED, f"a secret cannot be read: {error}")
    return replace(outcome, reason=redact(outcome.reason, target.secrets())) if outcome.reason else outcome
