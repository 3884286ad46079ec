"""Write the reference page of the fields of the OpenAI API: `python -m tools.openai_fields_page`."""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from conch.protocols.openai.field_rules import ALL_RULES, CHAT, COMPLETION, EMPTY, FieldRule

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "openai-fields.md"

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

Values in the third column ask for what happens anyway, as `null` does, and are accepted silently. Empty is `false`,
`""`, `[]` or `{}`.
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
    groups = groupby(rules, lambda rule: rule[1:])
    rows = [_row([rule.name for rule in group], FieldRule("", *kind)) for kind, group in groups]
    return [f"## {title}\n", "| Field | Decision | Accepted values | Notes |\n|---|---|---|---|", *rows, ""]


def _row(names: list[str], rule: FieldRule) -> str:
    neutral = "empty" if rule.neutral is EMPTY else ", ".join(f"`{json.dumps(value)}`" for value in rule.neutral)
    cells = (", ".join(f"`{name}`" for name in names), rule.decision, neutral, rule.note)
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
