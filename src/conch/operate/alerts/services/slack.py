"""Slack: incoming webhooks.

The URL is the only credential. Limits: 1 message a second, 50 blocks, 3,000 characters a section, 150 a header. Errors
are texts with the status 400, 403, 404 or 410; 429 has Retry-After.
"""

from typing import Any

from conch.operate.alerts.message import AlertSection, Message, shortened
from conch.operate.alerts.services.service import TargetService, http_outcome

_MAX_SECTION = 2_900  # characters
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def _document(message: Message) -> dict[str, Any]:
    cut = [message.text[start : start + _MAX_SECTION] for start in range(0, len(message.text), _MAX_SECTION)]
    texts = cut or [_section(each) for each in message.sections]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": message.title, "emoji": False}}
    ]
    blocks += [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    # `text` is what notifications show.
    return {"text": message.title.translate(_ESCAPES), "blocks": blocks}


def _section(section: AlertSection) -> str:
    lines = [f"{':red_circle:' if section.firing else ':large_green_circle:'} *{section.heading.translate(_ESCAPES)}*"]
    lines += [section.text.translate(_ESCAPES)] if section.text else []
    lines += [f"• {name}: {value.translate(_ESCAPES)}" for name, value in section.fields]
    link = f"\n<{section.link.translate(_ESCAPES)}|Source>" if section.link else ""
    link = link if len(link) < _MAX_SECTION / 2 else ""
    return shortened("\n".join(lines), _MAX_SECTION - len(link)) + link


def _size(document: dict[str, Any], _body: bytes) -> int:
    return max(len(block["text"]["text"]) for block in document["blocks"])


SLACK = TargetService(
    "slack", _document, http_outcome, max_size=3000, burst=1, per_minute=55, escapes=_ESCAPES, size=_size
)
