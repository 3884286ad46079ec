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
class ReplyCodes:
    """The codes in the JSON replies of a robot: 0 for success.

    The first of `names` that a reply has is its code, and `text` its reason. Codes in `of_target` concern the target,
    with the seconds until a retry; others concern the message.
    """

    names: tuple[str, ...]
    text: str
    of_target: Mapping[int, float | None]

    def outcome(self, reply: PostReply, by_status: DeliveryOutcome) -> DeliveryOutcome:
        """Return what a reply means, whose status alone means `by_status`."""
        if by_status.verdict is Verdict.TARGET_FAILED:
            return by_status
        try:
            document = json.loads(reply.body)
            code = next(document[name] for name in self.names if name in document)
        except (ValueError, TypeError, StopIteration, RecursionError):
            if by_status.verdict is Verdict.DELIVERED:  # a proxy's or a login page
                text = f"the reply is not that of the service{_excerpt(reply.body)}"
                return DeliveryOutcome(Verdict.TARGET_FAILED, text)
            return by_status
        if code == 0 and by_status.verdict is Verdict.DELIVERED:
            return DELIVERED
        reason = f"code {code}: {document.get(self.text, '')}"[:_MAX_REASON]
        if isinstance(code, int) and code in self.of_target:
            return DeliveryOutcome(Verdict.TARGET_FAILED, reason, self.of_target[code])
        return DeliveryOutcome(Verdict.MESSAGE_REJECTED, reason)


@dataclass(frozen=True, slots=True)
class TargetService:
    """A kind of target.

    `document` is the JSON value of a message. `sign` returns URL and document with the signature: (URL, document,
    secret, Unix time in seconds). `size` returns the size that `max_size` limits: (document, JSON body). `codes` are
    those of replies, where errors come with status 200.
    """

    name: str
    document: Callable[[Message], dict[str, Any]]
    max_size: int
    # A robot's rate limit: `burst` messages, then `per_minute`. Together at most what the service allows per minute.
    burst: int
    per_minute: float
    escapes: Mapping[int, str] | None = None  # of values in the service's markup; a table of `str.translate`
    size: Callable[[dict[str, Any], bytes], int] = lambda _document, body: len(body)
    sign: Callable[[str, dict[str, Any], str, float], tuple[str, dict[str, Any]]] | None = None
    codes: ReplyCodes | None = None
    max_alerts: int = 20

    def outcome(self, reply: PostReply, now: float) -> DeliveryOutcome:
        """Return what a reply means. `now` is the Unix time."""
        outcome = _http_outcome(reply, now)
        return outcome if self.codes is None else self.codes.outcome(reply, outcome)


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


def _http_outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    if 200 <= reply.status < 300:
        return DELIVERED
    reason = f"HTTP status {reply.status}{_excerpt(reply.body)}"
    if reply.status in (400, 413, 414, 415, 422):
        return DeliveryOutcome(Verdict.MESSAGE_REJECTED, reason)
    return DeliveryOutcome(Verdict.TARGET_FAILED, reason, retry_after(reply, now))


def _excerpt(body: bytes) -> str:
    text = " ".join(body[: 4 * _MAX_REASON].decode("utf-8", "replace").split())
    return f": {text[:_MAX_REASON]}" if text else ""


@dataclass(frozen=True, slots=True)
class _Markup:
    """How a service writes an alert: formats of heading and field, colors of firing and resolved ones, blank lines."""

    heading: str
    colors: tuple[str, str]
    field: str
    escapes: Mapping[int, str]
    gap: str = "\n"

    def texts(self, message: Message) -> list[str]:
        """Return the text of the template, or one for each alert."""
        if message.text:
            return [message.text]
        links = [f"[Source]({section.link})" if section.link else "" for section in message.sections]
        texts = [self.section(section) for section in message.sections]
        return [self.gap.join(filter(None, parts)) for parts in zip(texts, links, strict=True)]

    def section(self, section: AlertSection) -> str:
        """Return an alert without its link."""
        fields = [
            self.field.format(name.translate(self.escapes), value.translate(self.escapes))
            for name, value in section.fields
        ]
        color = self.colors[0] if section.firing else self.colors[1]
        heading = self.heading.format(color, section.heading.translate(self.escapes))
        return self.gap.join(filter(None, (heading, section.text.translate(self.escapes), "\n".join(fields))))


# DingTalk: custom robots of groups. Signature: HMAC-SHA256 with the secret as key over timestamp (ms), line feed and
# secret, in the URL. Limits: 20 messages a minute (else the robot is blocked for up to 10 minutes), 20,000 bytes.
_DINGTALK = _Markup(
    '**<font color="{}">{}</font>**',
    ("#d93026", "#188038"),
    "- {}: {}",
    str.maketrans({"<": "&lt;", ">": "&gt;", "\n": "  \n"}),
    gap="\n\n",
)


def _dingtalk_document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_DINGTALK.escapes)}", *_DINGTALK.texts(message)]
    return {"msgtype": "markdown", "markdown": {"title": message.title, "text": "\n\n".join(parts)}}


def _sign_url(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(round(now * 1000))
    digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"{url}{'&' if '?' in url else '?'}timestamp={timestamp}&sign={signature}", document


# Feishu and Lark: custom bots of groups. Signature: HMAC-SHA256 of nothing, with timestamp (s), line feed and secret as
# key, in the body. Limits: 100 messages a minute and 5 a second, 20 KB. Some errors have status 400.
_FEISHU = _Markup(
    "**<font color='{}'>{}</font>**",
    ("red", "green"),
    "{}: {}",
    # Values must not form tags such as <at id=all>, links or emphasis.
    str.maketrans({character: f"&#{ord(character)};" for character in "<>[]*_~`"}),
)


def _feishu_document(message: Message) -> dict[str, Any]:
    elements: list[dict[str, Any]] = []
    for text in _FEISHU.texts(message):
        elements += [{"tag": "hr"}] if elements else []
        elements.append({"tag": "markdown", "content": text})
    title = {"tag": "plain_text", "content": message.title}
    header = {"title": title, "template": "red" if message.firing else "green"}
    card = {"config": {"wide_screen_mode": True}, "header": header, "elements": elements}
    return {"msg_type": "interactive", "card": card}


def _sign_body(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(int(now))
    digest = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return url, {"timestamp": timestamp, "sign": base64.b64encode(digest).decode(), **document}


# WeCom: robots of groups. The key in the URL is the only credential. Limits: 20 messages a minute, 4,096 bytes of
# Markdown, in which nothing can be escaped: a value must not form a mention such as <@all> or a tag.
_WECOM = _Markup(
    '**<font color="{}">{}</font>**',
    ("warning", "info"),
    "> {}: {}",
    str.maketrans({"<": "＜", ">": "＞", "\n": " "}),
)


def _wecom_document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_WECOM.escapes)}", *_WECOM.texts(message)]
    return {"msgtype": "markdown", "markdown": {"content": "\n".join(parts)}}


def _wecom_size(document: dict[str, Any], _body: bytes) -> int:
    return len(document["markdown"]["content"].encode())


# Slack: incoming webhooks. The URL is the only credential. Limits: 1 message a second, 50 blocks, 3,000 characters a
# section, 150 a header. Errors are texts with the status 400, 403, 404 or 410; 429 has Retry-After.
_SLACK = _Markup(
    "{} *{}*",
    (":red_circle:", ":large_green_circle:"),
    "• {}: {}",
    str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"}),
)
_MAX_SECTION = 2_900  # characters


def _slack_document(message: Message) -> dict[str, Any]:
    cut = [message.text[start : start + _MAX_SECTION] for start in range(0, len(message.text), _MAX_SECTION)]
    texts = cut or [_slack_section(section) for section in message.sections]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": message.title, "emoji": False}}
    ]
    blocks += [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    # `text` is what notifications show.
    return {"text": message.title.translate(_SLACK.escapes), "blocks": blocks}


def _slack_section(section: AlertSection) -> str:
    link = f"\n<{section.link.translate(_SLACK.escapes)}|Source>" if section.link else ""
    link = link if len(link) < _MAX_SECTION / 2 else ""
    return shortened(_SLACK.section(section), _MAX_SECTION - len(link)) + link


def _slack_size(document: dict[str, Any], _body: bytes) -> int:
    return max(len(block["text"]["text"]) for block in document["blocks"])


# Any URL: a JSON body by template, by default Alertmanager's own payload. Any status 2xx is success.
def _generic_document(message: Message) -> dict[str, Any]:
    names = ("receiver", "status", "externalURL", "commonLabels", "commonAnnotations")
    payload = {name: message.variables[name] for name in names}
    return {"version": "4", **payload, "title": message.title, "alerts": message.variables["alerts"]}


def body_of_template(source: str, message: Message) -> Any:
    """Return the JSON value that a template renders. Raises TemplateFailed."""
    text = render(source, message.variables)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = "write values as {{ value | tojson }}, which adds the quotation marks"
        raise TemplateFailed(f"the body is not valid JSON ({error}); {remedy}") from None


_BLOCKED_S = 60.0
_ALL = (
    TargetService(
        "dingtalk",
        _dingtalk_document,
        max_size=20_000,
        burst=5,
        per_minute=15,
        escapes=_DINGTALK.escapes,
        sign=_sign_url,
        # Busy, too fast (two codes), security settings (signature, keyword, address), unknown token.
        codes=ReplyCodes(
            ("errcode",), "errmsg", {-1: None, 130101: _BLOCKED_S, 410100: _BLOCKED_S, 310000: None, 300001: None}
        ),
    ),
    TargetService(
        "feishu",
        _feishu_document,
        max_size=19_500,
        burst=3,
        per_minute=90,
        escapes=_FEISHU.escapes,
        sign=_sign_body,
        # Busy, too fast, unknown bot, signature, address, keyword.
        codes=ReplyCodes(
            ("code", "StatusCode"),
            "msg",
            {-1: None, 11232: _BLOCKED_S, 19001: None, 19021: None, 19022: None, 19024: None},
        ),
    ),
    TargetService(
        "wecom",
        _wecom_document,
        max_size=4096,
        burst=5,
        per_minute=15,
        escapes=_WECOM.escapes,
        size=_wecom_size,
        # Busy, too fast (two codes), URL (two codes).
        codes=ReplyCodes(
            ("errcode",), "errmsg", {-1: None, 45009: _BLOCKED_S, 45033: _BLOCKED_S, 93000: None, 93017: None}
        ),
    ),
    TargetService(
        "slack", _slack_document, max_size=3000, burst=1, per_minute=55, escapes=_SLACK.escapes, size=_slack_size
    ),
    TargetService("generic", _generic_document, max_size=1_000_000, burst=100, per_minute=6000),
)
# By the `type` of a target.
SERVICES: Mapping[str, TargetService] = {service.name: service for service in _ALL}
