"""`conch bench compare`: two certificates, or one of two servers, as a gate; as text, JSON, or for GitHub."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.say import say
from conch.base.errors import InvalidRequest
from conch.measure.bench.report.comparison import (
    FALSE_ALARM_RATE,
    Comparison,
    ConditionOutcome,
    Decision,
    compare_interleaved,
    compare_runs,
    decide,
    parse_condition,
)
from conch.measure.bench.report.fact_tables import effect_table, quantity_units
from conch.measure.bench.report.markdown import markdown_table, markdown_text
from conch.measure.bench.report.number_text import format_change, format_estimate
from conch.measure.bench.statistics.quantities import QUANTITIES

_PASSED, _FAILED, _REFUSED = 0, 1, 2
_NO_CONDITION = "Nothing was judged: no condition was given, such as --fail-if 'p99 > +5 %'."
_NOT_COMPARABLE = "Nothing was judged: the runs are not comparable."
_DESCRIPTION = """\
Compare two runs of conch bench, level by level: B against the baseline A. The files are what --json or --html wrote. A
single file is a run that measured two servers in turn (--against).

--fail-if QUANTITY > LIMIT compares the change from A to B with a percentage, or the value of B with a time or a rate.
It fails where the whole confidence interval is beyond the limit. Without a real change beyond the limits at most 1 %
of comparisons fail, however many conditions and levels there are.
"""
_EPILOG = """\
examples:
  conch bench compare main.json branch.json --fail-if 'p99 > +5 %' --fail-if 'throughput < -3 %'
  conch bench compare main.json branch.html --fail-if 'ttft_p99 > 200 ms @ 30' --format github

exit status: 0 if no condition holds, or none was given; 1 if one holds; 2 if the runs are not comparable or the command
is wrong
"""
WORDS = {
    ConditionOutcome.HOLDS: "FAIL",
    ConditionOutcome.DOES_NOT_HOLD: "pass",
    ConditionOutcome.UNDECIDED: "undecided",
}
_LEVELS = {"invalid": "error", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class CompareFlags:
    """The flags of the command."""

    # fmt: off
    fail_if: tuple[str, ...] = flag_field(
        (), "", "repeatable; see above", value_kind("CONDITION"), repeatable=True)
    undecided: str = flag_field(
        "pass", "", "what an interval that contains the limit means; default pass", one_of("pass", "fail"))
    anyway: bool = flag_field(False, "", "compare runs that are not comparable, too", value_kind(""), bare=True)
    format: str = flag_field(
        "text", "", "github: annotations, and a table for $GITHUB_STEP_SUMMARY; default text",
        one_of("text", "json", "github"))
    # fmt: on


def compare(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit status."""
    from conch.measure.bench.report.certificate import read_certificate

    given = _parser().parse_args(arguments)
    flags = settings_of(CompareFlags, given)
    try:
        conditions = [parse_condition(text) for text in flags.fail_if]
        first = read_certificate(given.a)
        if given.b is None:
            comparison = compare_interleaved(first)
            names = (first.ab.baseline.url if first.ab else "", first.target.url)
        else:
            wanted = [condition.quantity for condition in conditions]
            comparison = compare_runs(first, read_certificate(given.b), wanted)
            names = (str(given.a), str(given.b))
        refused = bool(comparison.obstacles) and not flags.anyway
        decisions = () if refused else decide(conditions, comparison.effects)
    except (InvalidRequest, ValueError) as error:
        say(f"conch bench compare: {error}")
        return _REFUSED
    unjudged = "" if decisions else _NOT_COMPARABLE if refused else _NO_CONDITION
    _show(flags.format, names, comparison, decisions, unjudged)
    if refused:
        print("conch bench compare: not comparable; --anyway compares nevertheless", file=sys.stderr)
        return _REFUSED
    failing = (
        {ConditionOutcome.HOLDS, ConditionOutcome.UNDECIDED} if flags.undecided == "fail" else {ConditionOutcome.HOLDS}
    )
    return _FAILED if any(decision.outcome in failing for decision in decisions) else _PASSED


def _show(
    form: str, names: tuple[str, str], comparison: Comparison, decisions: Sequence[Decision], unjudged: str
) -> None:
    if form == "json":
        sys.stdout.write(comparison_json(names, comparison, decisions, unjudged).decode())
    elif form == "text":
        print_comparison(names, comparison, decisions, unjudged)
    else:
        for line in github_annotations(comparison, decisions, unjudged):
            print(line)
        table = comparison_markdown(names, comparison, decisions, unjudged)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(table)
        else:
            print(table, end="")


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch bench compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=LaidOutHelp,
    )
    parser.add_argument("a", metavar="A", type=Path, help="certificate of the baseline, JSON or HTML")
    parser.add_argument("b", metavar="B", type=Path, nargs="?", help="certificate to compare with it")
    parser.add_flags(CompareFlags)
    return parser


def decision_line(decision: Decision) -> str:
    """Return a decision as a sentence."""
    quantity = decision.condition.quantity
    if decision.condition.relative:
        value = format_change(decision.estimate)
        value = value.replace(" %", " points") if QUANTITIES[quantity].is_ratio else value
    else:
        value = format_estimate(decision.estimate, quantity_units(quantity))
    reason = f"; {decision.reason}" if decision.reason else ""
    condition = decision.condition.text.partition("@")[0].rstrip()
    return f"{condition} at {decision.level}: {value}{reason}"


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
                "found": decision.estimate,
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
