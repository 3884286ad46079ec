"""A comparison as text, as JSON, and for GitHub: annotations and a table in Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from conch.measure.bench.report.comparison import Comparison
from conch.measure.bench.report.fact_tables import effect_table, quantity_units
from conch.measure.bench.report.gate import FALSE_ALARM_RATE, ConditionOutcome, Decision
from conch.measure.bench.report.markdown import markdown_table, markdown_text
from conch.measure.bench.report.quantity import format_change, format_estimate
from conch.measure.bench.statistics.quantities import QUANTITIES

WORDS = {
    ConditionOutcome.HOLDS: "FAIL",
    ConditionOutcome.DOES_NOT_HOLD: "pass",
    ConditionOutcome.UNDECIDED: "undecided",
}
_LEVELS = {"invalid": "error", "warning": "warning"}


def decision_line(decision: Decision) -> str:
    """Return a decision as a sentence."""
    quantity = decision.condition.quantity
    if decision.condition.relative:
        found = format_change(decision.found)
        found = found.replace(" %", " points") if QUANTITIES[quantity].is_ratio else found
    else:
        found = format_estimate(decision.found, quantity_units(quantity))
    reason = f"; {decision.reason}" if decision.reason else ""
    condition = decision.condition.text.partition("@")[0].rstrip()
    return f"{condition} at {decision.level}: {found}{reason}"


def print_comparison(
    names: tuple[str, str], comparison: Comparison, decisions: Sequence[Decision], unjudged: str = ""
) -> None:
    """Print a comparison to stdout, for people. `unjudged` says why there are no decisions."""
    from rich.console import Console
    from rich.text import Text

    from conch.measure.bench.report.terminal import effects_renderable, note_line, plain_text

    console = Console(highlight=False)
    console.print(plain_text(f"A: {names[0]}\nB: {names[1]}"))
    if comparison.effects:
        console.print(effects_renderable(comparison.effects, console.width))
    for note in (*comparison.obstacles, *comparison.warnings):
        console.print(note_line(note))
    styles = {
        ConditionOutcome.HOLDS: "bold red",
        ConditionOutcome.DOES_NOT_HOLD: "green",
        ConditionOutcome.UNDECIDED: "yellow",
    }
    for decision in decisions:
        line = Text(f"{WORDS[decision.outcome]}: ", styles[decision.outcome])
        console.print(line.append_text(plain_text(decision_line(decision))))
    if unjudged:
        console.print(plain_text(unjudged))


def comparison_json(
    names: tuple[str, str], comparison: Comparison, decisions: Sequence[Decision], unjudged: str = ""
) -> bytes:
    """Return a comparison as JSON."""
    document: dict[str, Any] = {
        "a": names[0],
        "b": names[1],
        "effects": comparison.effects,
        "obstacles": comparison.obstacles,
        "warnings": comparison.warnings,
        "judged": bool(decisions),
        "remark": unjudged,
        "decisions": [
            {
                "condition": decision.condition.text,
                "level": decision.level,
                "outcome": decision.outcome.name.lower(),
                "found": decision.found,
                "reason": decision.reason,
            }
            for decision in decisions
        ],
        "false_alarm_rate": FALSE_ALARM_RATE,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def comparison_markdown(
    names: tuple[str, str], comparison: Comparison, decisions: Sequence[Decision], unjudged: str = ""
) -> str:
    """Return a comparison as Markdown, for pull requests and summaries of jobs."""
    table = effect_table(comparison.effects)
    parts = [
        f"### Benchmark: {markdown_text(names[1])} against {markdown_text(names[0])}",
        markdown_table(table.head, table.rows),
    ]
    if decisions:
        rows = [
            (
                WORDS[decision.outcome],
                decision.condition.text,
                decision.level,
                decision_line(decision).partition(": ")[2],
            )
            for decision in decisions
        ]
        parts.append(markdown_table(("Outcome", "Fails if", "Level", "Found"), rows))
    if unjudged:
        parts.append(markdown_text(unjudged))
    notes = [*comparison.obstacles, *comparison.warnings]
    parts.append("\n".join(f"- {note.severity}: {markdown_text(note.message)}" for note in notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def github_annotations(comparison: Comparison, decisions: Sequence[Decision], unjudged: str = "") -> Iterator[str]:
    """Yield workflow commands of GitHub: an error or a warning each."""
    for note in (*comparison.obstacles, *comparison.warnings):
        yield f"::{_LEVELS.get(note.severity, 'notice')} title=conch bench::{_command_text(note.message)}"
    if unjudged:
        yield f"::notice title=conch bench::{_command_text(unjudged)}"
    kinds = {ConditionOutcome.HOLDS: "error", ConditionOutcome.UNDECIDED: "warning"}
    for decision in decisions:
        if decision.outcome in kinds:
            yield f"::{kinds[decision.outcome]} title=conch bench::{_command_text(decision_line(decision))}"


def _command_text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
