"""Services that messages are posted to: format, signature, limits, and what their replies mean."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any
from urllib.parse import quote_plus

from conch.operate.alerts.message import AlertSection, Message, TemplateFailed, render, shortened

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


_BLOCKED_S = 60.0
# Busy, too fast (two codes), security settings (signature, keyword, address), unknown token.
_DINGTALK_CODES = {-1: None, 130101: _BLOCKED_S, 410100: _BLOCKED_S, 310000: None, 300001: None}
_DINGTALK_ESCAPES = str.maketrans({"<": "&lt;", ">": "&gt;", "\n": "  \n"})


def _dingtalk_document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_DINGTALK_ESCAPES)}"]
    parts += [message.text] if message.text else [_dingtalk_section(each) for each in message.sections]
    return {"msgtype": "markdown", "markdown": {"title": message.title, "text": "\n\n".join(parts)}}


def _dingtalk_section(section: AlertSection) -> str:
    color = "#d93026" if section.firing else "#188038"
    lines = [f'**<font color="{color}">{section.heading.translate(_DINGTALK_ESCAPES)}</font>**']
    lines += [section.text.translate(_DINGTALK_ESCAPES)] if section.text else []
    lines += ["\n".join(f"- {name}: {value.translate(_DINGTALK_ESCAPES)}" for name, value in section.fields)]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n\n".join(line for line in lines if line)


def _dingtalk_sign(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(round(now * 1000))
    digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"{url}{'&' if '?' in url else '?'}timestamp={timestamp}&sign={signature}", document


def _dingtalk_outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("errcode",), "errmsg", _DINGTALK_CODES)


DINGTALK = TargetService(
    "dingtalk",
    _dingtalk_document,
    _dingtalk_outcome,
    max_size=20_000,
    burst=5,
    per_minute=15,
    escapes=_DINGTALK_ESCAPES,
    sign=_dingtalk_sign,
)


_LIMITED_S = 60.0
# Busy, too fast, unknown bot, signature, address, keyword.
_FEISHU_CODES = {-1: None, 11232: _LIMITED_S, 19001: None, 19021: None, 19022: None, 19024: None}
# Values must not form tags such as <at id=all>, links or emphasis.
_FEISHU_ESCAPES = str.maketrans({character: f"&#{ord(character)};" for character in "<>[]*_~`"})


def _feishu_document(message: Message) -> dict[str, Any]:
    contents = [message.text] if message.text else [_feishu_section(each) for each in message.sections]
    elements: list[dict[str, Any]] = []
    for content in contents:
        elements += [{"tag": "hr"}] if elements else []
        elements.append({"tag": "markdown", "content": content})
    header = {
        "title": {"tag": "plain_text", "content": message.title},
        "template": "red" if message.firing else "green",
    }
    card = {"config": {"wide_screen_mode": True}, "header": header, "elements": elements}
    return {"msg_type": "interactive", "card": card}


def _feishu_section(section: AlertSection) -> str:
    color = "red" if section.firing else "green"
    lines = [f"**<font color='{color}'>{section.heading.translate(_FEISHU_ESCAPES)}</font>**"]
    lines += [section.text.translate(_FEISHU_ESCAPES)] if section.text else []
    lines += [
        f"{name.translate(_FEISHU_ESCAPES)}: {value.translate(_FEISHU_ESCAPES)}" for name, value in section.fields
    ]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n".join(lines)


def _feishu_sign(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(int(now))
    digest = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return url, {"timestamp": timestamp, "sign": base64.b64encode(digest).decode(), **document}


def _feishu_outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("code", "StatusCode"), "msg", _FEISHU_CODES)


FEISHU = TargetService(
    "feishu",
    _feishu_document,
    _feishu_outcome,
    max_size=19_500,
    burst=3,
    per_minute=90,
    escapes=_FEISHU_ESCAPES,
    sign=_feishu_sign,
)


_WECOM_LIMITED_S = 60.0
_WECOM_CODES = {
    -1: None,
    45009: _WECOM_LIMITED_S,
    45033: _WECOM_LIMITED_S,
    93000: None,
    93017: None,
}  # busy, too fast, URL
# There are no escapes. A value must not form a mention such as <@all> or a tag.
_WECOM_ESCAPES = str.maketrans({"<": "＜", ">": "＞", "\n": " "})


def _wecom_document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_WECOM_ESCAPES)}"]
    parts += [message.text] if message.text else [_wecom_section(each) for each in message.sections]
    return {"msgtype": "markdown", "markdown": {"content": "\n".join(parts)}}


def _wecom_section(section: AlertSection) -> str:
    color = "warning" if section.firing else "info"
    lines = [f'**<font color="{color}">{section.heading.translate(_WECOM_ESCAPES)}</font>**']
    lines += [section.text.translate(_WECOM_ESCAPES)] if section.text else []
    lines += [f"> {name}: {value.translate(_WECOM_ESCAPES)}" for name, value in section.fields]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n".join(lines)


def _wecom_size(document: dict[str, Any], _body: bytes) -> int:
    return len(document["markdown"]["content"].encode())


def _wecom_outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("errcode",), "errmsg", _WECOM_CODES)


WECOM = TargetService(
    "wecom",
    _wecom_document,
    _wecom_outcome,
    max_size=4096,
    burst=5,
    per_minute=15,
    escapes=_WECOM_ESCAPES,
    size=_wecom_size,
)


_MAX_SECTION = 2_900  # characters
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def _slack_document(message: Message) -> dict[str, Any]:
    cut = [message.text[start : start + _MAX_SECTION] for start in range(0, len(message.text), _MAX_SECTION)]
    texts = cut or [_slack_section(each) for each in message.sections]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": message.title, "emoji": False}}
    ]
    blocks += [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    # `text` is what notifications show.
    return {"text": message.title.translate(_SLACK_ESCAPES), "blocks": blocks}


def _slack_section(section: AlertSection) -> str:
    lines = [
        f"{':red_circle:' if section.firing else ':large_green_circle:'} *{section.heading.translate(_SLACK_ESCAPES)}*"
    ]
    lines += [section.text.translate(_SLACK_ESCAPES)] if section.text else []
    lines += [f"• {name}: {value.translate(_SLACK_ESCAPES)}" for name, value in section.fields]
    link = f"\n<{section.link.translate(_SLACK_ESCAPES)}|Source>" if section.link else ""
    link = link if len(link) < _MAX_SECTION / 2 else ""
    return shortened("\n".join(lines), _MAX_SECTION - len(link)) + link


def _slack_size(document: dict[str, Any], _body: bytes) -> int:
    return max(len(block["text"]["text"]) for block in document["blocks"])


SLACK = TargetService(
    "slack",
    _slack_document,
    http_outcome,
    max_size=3000,
    burst=1,
    per_minute=55,
    escapes=_SLACK_ESCAPES,
    size=_slack_size,
)


def _generic_document(message: Message) -> dict[str, Any]:
    variables = message.variables
    return {
        "version": "4",
        "receiver": variables["receiver"],
        "status": variables["status"],
        "externalURL": variables["externalURL"],
        "commonLabels": variables["commonLabels"],
        "commonAnnotations": variables["commonAnnotations"],
        "title": message.title,
        "alerts": variables["alerts"],
    }


def body_of_template(source: str, message: Message) -> Any:
    """Return the JSON value that a template renders. Raises TemplateFailed."""
    text = render(source, message.variables)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = "write values as {{ value | tojson }}, which adds the quotation marks"
        raise TemplateFailed(f"the body is not valid JSON ({error}); {remedy}") from None


GENERIC = TargetService("generic", _generic_document, http_outcome, max_size=1_000_000, burst=100, per_minute=6000)


SERVICES: Mapping[str, TargetService] = {service.name: service for service in (DINGTALK, FEISHU, WECOM, SLACK, GENERIC)}
