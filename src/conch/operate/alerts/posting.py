"""Builds the POST request of a message: renders it so that it fits, and signs it."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from conch.operate.alerts.configuration import Target
from conch.operate.alerts.message import DETAILS, Detail, compose
from conch.operate.alerts.notification import Alert
from conch.operate.alerts.services.generic import body_of_template
from conch.operate.alerts.services.service import OutgoingPost


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
