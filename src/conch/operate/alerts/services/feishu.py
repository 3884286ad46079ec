"""Feishu and Lark: custom bots of groups.

Signature: HMAC-SHA256 of nothing, with timestamp (s), line feed and secret as key, in the body. Limits: 100 messages a
minute and 5 a second, 20 KB. Errors have status 200, some 400.
"""

import base64
import hashlib
import hmac
from typing import Any

from conch.operate.alerts.message import AlertSection, Message
from conch.operate.alerts.services.service import DeliveryOutcome, PostReply, TargetService, coded_outcome

_LIMITED_S = 60.0
# Busy, too fast, unknown bot, signature, address, keyword.
_TARGET_CODES = {-1: None, 11232: _LIMITED_S, 19001: None, 19021: None, 19022: None, 19024: None}
# Values must not form tags such as <at id=all>, links or emphasis.
_ESCAPES = str.maketrans({character: f"&#{ord(character)};" for character in "<>[]*_~`"})


def _document(message: Message) -> dict[str, Any]:
    contents = [message.text] if message.text else [_section(each) for each in message.sections]
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


def _section(section: AlertSection) -> str:
    color = "red" if section.firing else "green"
    lines = [f"**<font color='{color}'>{section.heading.translate(_ESCAPES)}</font>**"]
    lines += [section.text.translate(_ESCAPES)] if section.text else []
    lines += [f"{name.translate(_ESCAPES)}: {value.translate(_ESCAPES)}" for name, value in section.fields]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n".join(lines)


def _sign(url: str, document: dict[str, Any], secret: str, now: float) -> tuple[str, dict[str, Any]]:
    timestamp = str(int(now))
    digest = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return url, {"timestamp": timestamp, "sign": base64.b64encode(digest).decode(), **document}


def _outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("code", "StatusCode"), "msg", _TARGET_CODES)


FEISHU = TargetService(
    "feishu", _document, _outcome, max_size=19_500, burst=3, per_minute=90, escapes=_ESCAPES, sign=_sign
)
