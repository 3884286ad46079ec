"""Write the reference page of the fields of the OpenAI API: `python -m tools.openai_fields_page`."""

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from conch.protocols.openai.field_rules import ALL_RULES, CHAT, COMPLETION, EMPTY, FieldRule

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "openai-fields.md"
_COLUMNS = 120

_HEAD = """\
# Fields of the OpenAI API

A request is served although some of its fields have no effect. Each field is one of

* **used**;
* **label**: it has no effect on answers by its nature;
* **ignored**, and so are unknown fields: they are named in the header `X-Conch-Ignored` of the answer (16 at most, then
  `...`), counted in `conch_ignored_fields_total{endpoint, field}`, logged once, and shown as the degradation
  `field_ignored` for 10 minutes. `--openai-strict=true` refuses them with status 400;
* **refused** with status 400, because the answer would not be what it seems without the field. The error names the
  alternative.

Values that a row accepts ask for what happens anyway, as `null` does, and have no consequence. Empty is `false`, `""`,
`[]` or `{}`.
"""
_SHARED = "Chat completions and completions"


def page() -> str:
    """Return the page as Markdown."""
    shared = [rule for rule in CHAT.values() if COMPLETION.get(rule.name) == rule]
    parts = [_HEAD, *_section(_SHARED, shared)]
    for title, rules in ALL_RULES.items():
        parts += _section(
            title, (rule for rule in rules.values() if rules not in (CHAT, COMPLETION) or rule not in shared)
        )
    return "\n".join(parts)


def _section(title: str, rules: Iterable[FieldRule]) -> list[str]:
    """Return the fields that are used without a note as a list, the others as a table."""
    groups: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        groups.setdefault((_decision(rule), rule.note), []).append(f"`{rule.name}`")
    plain = groups.pop(("used", ""), [])
    used = [_wrapped(f"Used: {', '.join(plain)}.") + "\n"] if plain else []
    rows = [f"| {', '.join(names)} | {decision} | {note} |" for (decision, note), names in groups.items()]
    return [f"## {title}\n", *used, "| Field | Decision | Notes |\n|---|---|---|", *rows, ""]


def _wrapped(text: str) -> str:
    return fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def _decision(rule: FieldRule) -> str:
    neutral = "empty" if rule.neutral is EMPTY else ", ".join(f"`{json.dumps(value)}`" for value in rule.neutral)
    return f"{rule.decision}; accepts {neutral}" if neutral else rule.decision


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
