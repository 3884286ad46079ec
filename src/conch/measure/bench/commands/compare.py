"""`conch bench compare`: two certificates, or one of two servers, as a gate for continuous integration."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.errors import InvalidRequest

if TYPE_CHECKING:
    from conch.measure.bench.report.comparison import Comparison
    from conch.measure.bench.report.gate import Decision

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


def compare(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit status."""
    from conch.measure.bench.report.certificate_file import read_certificate
    from conch.measure.bench.report.comparison import compare_interleaved, compare_runs
    from conch.measure.bench.report.gate import ConditionOutcome, decide, parse_condition

    given = _parser().parse_args(arguments)
    try:
        conditions = [parse_condition(each) for each in given.fail_if]
        first = read_certificate(given.a)
        if given.b is None:
            comparison = compare_interleaved(first)
            names = (first.ab.baseline.url if first.ab else "", first.target.url)
        else:
            wanted = [condition.quantity for condition in conditions]
            comparison = compare_runs(first, read_certificate(given.b), wanted)
            names = (str(given.a), str(given.b))
        refused = bool(comparison.obstacles) and not given.anyway
        decisions = () if refused else decide(conditions, comparison.effects)
    except (InvalidRequest, ValueError) as error:
        print(f"conch bench compare: {error}", file=sys.stderr)
        return _REFUSED
    unjudged = "" if decisions else _NOT_COMPARABLE if refused else _NO_CONDITION
    _show(given.format, names, comparison, decisions, unjudged)
    if refused:
        print("conch bench compare: not comparable; --anyway compares nevertheless", file=sys.stderr)
        return _REFUSED
    failing = (
        {ConditionOutcome.HOLDS, ConditionOutcome.UNDECIDED} if given.undecided == "fail" else {ConditionOutcome.HOLDS}
    )
    return _FAILED if any(decision.outcome in failing for decision in decisions) else _PASSED


def _show(
    form: str, names: tuple[str, str], comparison: "Comparison", decisions: "Sequence[Decision]", unjudged: str
) -> None:
    from conch.measure.bench.report import comparison_output as output

    if form == "json":
        sys.stdout.write(output.comparison_json(names, comparison, decisions, unjudged).decode())
    elif form == "text":
        output.print_comparison(names, comparison, decisions, unjudged)
    else:
        for line in output.github_annotations(comparison, decisions, unjudged):
            print(line)
        table = output.comparison_markdown(names, comparison, decisions, unjudged)
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", type=Path, help="certificate of the baseline, JSON or HTML")
    parser.add_argument("b", metavar="B", type=Path, nargs="?", help="certificate to compare with it")
    parser.add_argument("--fail-if", metavar="CONDITION", action="append", default=[], help="repeatable; see above")
    parser.add_argument(
        "--undecided",
        choices=("pass", "fail"),
        default="pass",
        help="what an interval that contains the limit means; default pass",
    )
    parser.add_argument("--anyway", action="store_true", help="compare runs that are not comparable, too")
    parser.add_argument(
        "--format",
        choices=("text", "json", "github"),
        default="text",
        help="github: annotations, and a table for $GITHUB_STEP_SUMMARY; default text",
    )
    return parser
