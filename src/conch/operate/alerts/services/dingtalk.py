"""DingTalk: custom robots of groups.

Signature: HMAC-SHA256 with the secret as key over timestamp (ms), line feed and secret, in the URL. Limits: 20
messages a minute (else the robot is blocked for up to 10 minutes), 20,000 bytes. Errors have status 200.
"""

import base64
import hashlib
import hmac
from typing import Any
from urllib.parse import quote_plus

from conch.operate.alerts.message import AlertSection, Message
from conch.operate.alerts.services.service import DeliveryOutcome, PostReply, TargetService, coded_outcome

_BLOCKED_S = 60.0
# Busy, too fast (two codes), security settings (signature, keyword, address), unknown token.
_TARGET_CODES = {-1: None, 130101: _BLOCKED_S, 410100: _BLOCKED_S, 310000: None, 300001: None}
_ESCAPES = str.maketrans({"<": "&lt;", ">": "&gt;", "\n": "  \n"})


def _document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_ESCAPES)}"]
    parts += [message.text] if message.text else [_section(each) for each in message.sections]
    return {"msgtype": "markdown", "markdown": {"title": message.title, "text": "\n\n".join(parts)}}


def _section(section: AlertSection) -> str:
    color = "#d93026" if section.firing else "#188038"
    lines = [f'**<font color="{color}">{section.heading.translate(_ESCAPES)}</font>**']
    lines += [section.text.translate(_ESCAPES)] if section.text else []
    lines += ["\n".join(f"- {name}: {value.translate(_ESCAPES)}" for name, value in section.fields)]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n\n".join(line for line in lines if line)


def _sign(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(round(now * 1000))
    digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"{url}{'&' if '?' in url else '?'}timestamp={timestamp}&sign={signature}", document


def _outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("errcode",), "errmsg", _TARGET_CODES)


DINGTALK = TargetService(
    "dingtalk", _document, _outcome, max_size=20_000, burst=5, per_minute=15, escapes=_ESCAPES, sign=_sign
)
