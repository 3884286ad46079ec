"""Write the reference page of the fields of the OpenAI API: `python -m tools.openai_fields_page`."""

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from conch.protocols.openai.field_rules import ALL_RULES, EMPTY, FieldRule

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

A field that is ignored or refused accepts `null`, and values that ask for what happens anyway: those that its row
names, else `false`, `""`, `[]` and `{}`; only `null` if it is always refused.
"""
# Sections with what several other sections share: their rules are not repeated there.
_SHARED = {
    "Chat completions and completions": ("Chat completions", "Completions"),
    "Rerank, score, classify and pooling": ("Rerank", "Score", "Classify", "Pooling"),
    "Classify and pooling": ("Classify", "Pooling"),
    "Ollama's API": ("Ollama's `/api/chat`", "Ollama's `/api/generate`", "Ollama's `/api/embed` and `/api/embeddings`"),
    "Ollama's `/api/chat` and `/api/generate`": ("Ollama's `/api/chat`", "Ollama's `/api/generate`"),
}


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    left = {title: dict(rules) for title, rules in ALL_RULES.items()}
    for title in ALL_RULES:
        for heading, members in _SHARED.items():
            if title == members[0]:
                first, *others = (left[member] for member in members)
                shared = [rule for rule in first.values() if all(other.get(rule.name) == rule for other in others)]
                for rules in (first, *others):
                    for rule in shared:
                        del rules[rule.name]
                parts += _section(heading, shared)
        if left[title]:
            parts += _section(title, left[title].values())
    return "\n".join(parts)


def _section(title: str, rules: Iterable[FieldRule]) -> list[str]:
    """Return the fields that are used without a note as a list, the others as a table."""
    groups: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        groups.setdefault((_decision(rule), rule.note), []).append(f"`{rule.name}`")
    plain = groups.pop(("used", ""), [])
    used = [_wrapped(f"Used: {', '.join(plain)}.") + "\n"] if plain else []
    rows = [f"| {', '.join(names)} | {decision} | {note} |" for (decision, note), names in groups.items()]
    table = ["| Field | Decision | Notes |\n|---|---|---|", *rows, ""] if rows else []
    return [f"## {title}\n", *used, *table]


def _wrapped(text: str) -> str:
    return fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def _decision(rule: FieldRule) -> str:
    if rule.neutral is EMPTY or rule.decision in ("used", "label"):
        return rule.decision
    accepted = ", ".join(f"`{json.dumps(value)}`" for value in rule.neutral)
    return f"{rule.decision}; accepts {accepted}" if accepted else f"always {rule.decision}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
