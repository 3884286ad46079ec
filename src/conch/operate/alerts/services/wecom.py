"""WeCom: robots of groups.

The key in the URL is the only credential. Limits: 20 messages a minute, 4,096 bytes of Markdown. Errors have status
200.
"""

from typing import Any

from conch.operate.alerts.message import AlertSection, Message
from conch.operate.alerts.services.service import DeliveryOutcome, PostReply, TargetService, coded_outcome

_LIMITED_S = 60.0
_TARGET_CODES = {-1: None, 45009: _LIMITED_S, 45033: _LIMITED_S, 93000: None, 93017: None}  # busy, too fast, URL
# There are no escapes. A value must not form a mention such as <@all> or a tag.
_ESCAPES = str.maketrans({"<": "＜", ">": "＞", "\n": " "})


def _document(message: Message) -> dict[str, Any]:
    parts = [f"### {message.title.translate(_ESCAPES)}"]
    parts += [message.text] if message.text else [_section(each) for each in message.sections]
    return {"msgtype": "markdown", "markdown": {"content": "\n".join(parts)}}


def _section(section: AlertSection) -> str:
    color = "warning" if section.firing else "info"
    lines = [f'**<font color="{color}">{section.heading.translate(_ESCAPES)}</font>**']
    lines += [section.text.translate(_ESCAPES)] if section.text else []
    lines += [f"> {name}: {value.translate(_ESCAPES)}" for name, value in section.fields]
    lines += [f"[Source]({section.link})"] if section.link else []
    return "\n".join(lines)


def _size(document: dict[str, Any], _body: bytes) -> int:
    return len(document["markdown"]["content"].encode())


def _outcome(reply: PostReply, now: float) -> DeliveryOutcome:
    return coded_outcome(reply, now, ("errcode",), "errmsg", _TARGET_CODES)


WECOM = TargetService("wecom", _document, _outcome, max_size=4096, burst=5, per_minute=15, escapes=_ESCAPES, size=_size)
