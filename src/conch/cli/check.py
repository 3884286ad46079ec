"""`conch check`: lint model repositories without starting a server."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from conch.cli.command_parser import CommandParser

_CLEAN, _FOUND, _USAGE_ERROR = 0, 1, 2
_UNWRAPPED = 1000  # columns


def check(arguments: Sequence[str]) -> int:
    """Check repositories, print the findings, and return the exit status."""
    parser = CommandParser("conch check", description="Find errors in model repositories without starting a server.")
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="a repository, a model, or a folder that contains some"
    )
    parser.add_argument("--fix", action="store_true", help="fix findings that have a safe fix, and print the changes")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors in the exit status")
    parser.add_argument("--rule", metavar="ID", action="append", default=[], help="check only this rule; repeatable")
    parser.add_argument("--ignore", metavar="ID", action="append", default=[], help="skip this rule; repeatable")
    options = parser.parse_args(arguments)

    from rich.console import Console

    from conch.check.finding import Severity
    from conch.check.fixes import fix_paths
    from conch.check.render import as_document, print_report
    from conch.check.rules.catalog import RULES
    from conch.check.run import check_paths

    known = {rule.id for rule in RULES}
    for unknown in sorted({*options.rule, *options.ignore} - known):
        parser.error(f"unknown rule '{unknown}'; docs/check.md lists the rules")
    selected = frozenset((set(options.rule) or known) - set(options.ignore))
    diff = ""
    try:
        if options.fix:
            report, diff = fix_paths(options.paths, selected)
        else:
            report = check_paths(options.paths)
    except OSError as error:
        print(f"conch check: {error}", file=sys.stderr)
        return _USAGE_ERROR
    findings = [finding for finding in report.findings if finding.rule.id in selected]
    if options.json:
        document = as_document(report, findings) | ({"diff": diff} if options.fix else {})
        print(json.dumps(document, indent=2))
    else:
        sys.stdout.write(diff)
        # Lines in a file or pipe, which has no width, are not wrapped.
        width = None if sys.stdout.isatty() else _UNWRAPPED
        print_report(report, findings, Console(highlight=False, width=width))
    severities = {finding.rule.severity for finding in findings}
    failed = Severity.ERROR in severities or (options.strict and Severity.WARNING in severities)
    return _FOUND if failed else _CLEAN
