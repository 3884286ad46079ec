"""`conch check`: find errors in model repositories and deployment files without starting a server."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser

if TYPE_CHECKING:
    from rich.console import Console

    from conch.check.check_paths import Report
    from conch.check.finding import Finding, Rule

_CLEAN, _FOUND, _USAGE_ERROR = 0, 1, 2
_UNWRAPPED = 1000  # columns
_STDIN = Path("-")
_FORMATS = ("text", "json", "sarif", "github")


def check(arguments: Sequence[str]) -> int:
    """Check repositories and files, print the findings, and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    from conch.check.finding import Severity, rules, unapplied_rules

    known = rules()
    for unknown in sorted({*options.rule, *options.ignore, *options.explain} - known.keys()):
        parser.error(f"unknown rule '{unknown}'; docs/check.md lists the rules")
    if options.explain:
        return _explain([known[rule_id] for rule_id in options.explain])
    _check_paths_options(parser, options)
    asked = set(options.rule) or set(known)
    # A rule that cannot be applied must not look like one without findings.
    asked |= {missing for missing, unapplied in unapplied_rules().items() if asked & unapplied}
    selected = frozenset(asked - set(options.ignore))
    try:
        report, diff = _run(options, selected)
    except (OSError, UnicodeDecodeError) as error:
        print(f"conch check: {error}", file=sys.stderr)
        return _USAGE_ERROR
    findings = [finding for finding in report.findings if finding.rule_id in selected]
    _print(options, report, findings, diff)
    severities = {finding.rule.severity for finding in findings}
    failed = Severity.ERROR in severities or (options.strict and Severity.WARNING in severities)
    return _FOUND if failed else _CLEAN


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch check", description="Find errors in model repositories and deployment files without starting a server."
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help="a repository, a model, a file, a folder that contains some, or - for the standard input",
    )
    parser.add_argument("--fix", action="store_true", help="fix findings that have a safe fix, and print the changes")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="how findings are printed (default: text)")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the findings to a file (not for text)")
    parser.add_argument("--kind", metavar="KIND", default="yaml", help="kind of the standard input (default: yaml)")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors in the exit status")
    parser.add_argument("--rule", metavar="ID", action="append", default=[], help="check only this rule; repeatable")
    parser.add_argument("--ignore", metavar="ID", action="append", default=[], help="skip this rule; repeatable")
    parser.add_argument(
        "--explain", metavar="ID", action="append", default=[], help="explain this rule and exit; repeatable"
    )
    return parser


def _check_paths_options(parser: CommandParser, options: Namespace) -> None:
    from conch.check.check_paths import KINDS

    if not options.paths:
        parser.error("the following arguments are required: PATH")
    if _STDIN in options.paths and (len(options.paths) > 1 or options.fix):
        parser.error("- stands alone, without other paths and without --fix")
    if options.kind not in KINDS:
        parser.error(f"unknown kind '{options.kind}'; kinds: {', '.join(KINDS)}")
    if options.output and options.format == "text":
        parser.error("--output needs --format json, sarif or github")


def _run(options: Namespace, selected: frozenset[str]) -> "tuple[Report, str]":
    """Return the report and the changes as a diff."""
    from conch.check.check_paths import check_paths, check_text, fix_paths

    if options.paths == [_STDIN]:
        return check_text(sys.stdin.buffer.read().decode("utf-8"), options.kind), ""
    if options.fix:
        return fix_paths(options.paths, selected)
    return check_paths(options.paths), ""


def _print(options: Namespace, report: "Report", findings: "Sequence[Finding]", diff: str) -> None:
    if options.format == "text":
        from conch.check.formats import print_report

        sys.stdout.write(diff)
        print_report(report, findings, _console())
        return
    if options.format == "github":
        from conch.check.formats import annotations

        text = "\n".join(annotations(findings))
    elif options.format == "sarif":
        from conch.check.finding import rules
        from conch.check.formats import as_sarif

        text = json.dumps(as_sarif(findings, [*rules().values()], Path.cwd()), indent=2)
    else:
        from conch.check.formats import as_document

        text = json.dumps(as_document(report, findings) | ({"diff": diff} if options.fix else {}), indent=2)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    elif text:
        print(text)


def _explain(rules: "Sequence[Rule]") -> int:
    from conch.check.formats import print_rule

    console = _console()
    for rule in rules:
        print_rule(rule, console)
    return _CLEAN


def _console() -> "Console":
    from rich.console import Console

    # Lines in a file or pipe, which has no width, are not wrapped.
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNWRAPPED)
