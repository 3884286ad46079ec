"""What a service is, and the meaning of HTTP replies that all services share."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

from conch.operate.alerts.message import Message

MAX_RETRY_AFTER_S = 3600.0
_MAX_REASON = 300  # characters


class Verdict(Enum):
    """What an attempt to deliver a message came to."""

    DELIVERED = "delivered"
    TARGET_FAILED = "target failed"  # every message would fail: the target is down, limits or refuses the receiver
    MESSAGE_REJECTED = "message rejected"  # others may succeed


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The verdict, the reason of a failure, and after how many seconds the target allows a retry, if it says so."""

    verdict: Verdict
    reason: str = ""
    retry_after_s: float | None = None


DELIVERED = DeliveryOutcome(Verdict.DELIVERED)


@dataclass(frozen=True, slots=True, repr=False)
class OutgoingPost:
    """A POST request. The URL, and some headers, are secret."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PostReply:
    """The reply to a POST. Header names are in lower case; the body may be cut."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class TargetService:
    """A kind of target.

    `document` is the JSON value of a message. `sign` returns URL and document with the signature: (URL, document,
    secret, Unix time in seconds). `size` returns the size that `max_size` limits: (document, JSON body).
    """

    name: str
    document: Callable[[Message], dict[str, Any]]
    outcome: Callable[[PostReply, float], DeliveryOutcome]
    max_size: int
    # A robot's rate limit: `burst` messages, then `per_minute`. Together at most what the service allows per minute.
    burst: int
    per_minute: float
    escapes: Mapping[int, str] | None = None  # of values in the service's markup; a table of `str.translate`
    size: Callable[[dict[str, Any], bytes], int] = lambda _document, body: len(body)
    sign: Callable[[str, dict[str, Any], str, float], tuple[str, dict[str, Any]]] | None = None
    max_alerts: int = 20


def retry_after(reply: PostReply, now: float) -> float | None:
    """Return the seconds of the header Retry-After, at most an hour; None without a valid one. `now` is Unix time."""
    text = reply.headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def http_outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    """Return what the status means, for all services."""
    if 200 <= reply.status < 300:
        return DELIVERED
    reason = f"HTTP status {reply.status}{_excerpt(reply.body)}"
    if reply.status in (400, 413, 414, 415, 422):
        return DeliveryOutcome(Verdict.MESSAGE_REJECTED, reason)
    return DeliveryOutcome(Verdict.TARGET_FAILED, reason, retry_after(reply, now))


def coded_outcome(
    reply: PostReply, now: float, code_names: tuple[str, ...], text_name: str, target_codes: Mapping[int, float | None]
) -> DeliveryOutcome:
    """Return what the JSON reply of a robot means, whose errors come with status 200.

    The first of `code_names` that the reply has is its code: 0 for success; `target_codes` are those that concern the
    target, with the seconds until a retry; others concern the message.
    """
    outcome = http_outcome(reply, now)
    if outcome.verdict is Verdict.TARGET_FAILED:
        return outcome
    try:
        document = json.loads(reply.body)
        code = next(document[name] for name in code_names if name in document)
    except (ValueError, TypeError, StopIteration, RecursionError):
        if outcome.verdict is Verdict.DELIVERED:  # a proxy's or a login page
            return DeliveryOutcome(Verdict.TARGET_FAILED, f"the reply is not that of the service{_excerpt(reply.body)}")
        return outcome
    if code == 0 and outcome.verdict is Verdict.DELIVERED:
        return DELIVERED
    reason = f"code {code}: {document.get(text_name, '')}"[:_MAX_REASON]
    if isinstance(code, int) and code in target_codes:
        return DeliveryOutcome(Verdict.TARGET_FAILED, reason, target_codes[code])
    return DeliveryOutcome(Verdict.MESSAGE_REJECTED, reason)


def _excerpt(body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_REASON].decode("utf-8", "replace").split())
    return f": {text[:_MAX_REASON]}" if text else ""
