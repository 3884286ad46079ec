"""`conch why`: why a request, or the slowest requests of a server, took their time."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import write_text
from conch.base.command_line.option_types import duration
from conch.base.control_characters import printable
from conch.base.errors import ConchError
from conch.base.http.credentials import KEY_HELP

_FAILURE = 1


def why(arguments: Sequence[str]) -> int:
    """Print the answer; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        return _answer(given)
    except ConchError as error:
        print(f"conch why: {printable(str(error))}", file=sys.stderr)
    return _FAILURE


def _answer(given: Namespace) -> int:
    from conch.measure.why.answer import answer
    from conch.measure.why.source import open_log

    log, missing = open_log(given.file, given.url, given.last, given.api_key_file)
    explanation = answer(log, given.target, given.model)
    for warning in (*missing, *explanation.warnings):
        print(f"conch why: {printable(warning)}", file=sys.stderr)
    if given.html is not None:
        from conch.measure.why.report import html_page

        if status := write_text("conch why", given.html, html_page(explanation)):
            return status
    if given.json:
        print(json.dumps(explanation.document(), indent=2, ensure_ascii=False))
    elif given.html is None:
        from rich.console import Console

        from conch.measure.why.report import print_answer

        print_answer(explanation, Console(highlight=False))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch why",
        description="Say why a request took its time, or why the slowest requests take longer than ordinary ones. Each "
        "nanosecond has one cause, from the server's event log.",
    )
    parser.add_argument(
        "target", metavar="REQUEST-ID|p99|MODEL", help="a request's id or #NUMBER; a percentile; the p99 of a model"
    )
    parser.add_argument("--model", default="", help="only requests to this model, for a percentile")
    parser.add_argument(
        "--last", type=duration, default=300.0, metavar="TIME", help="how much of the log (default: 5m)"
    )
    parser.add_argument("--url", help="HTTP port of the server (default: the newest of this user, or 127.0.0.1:8000)")
    parser.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    parser.add_argument("--file", type=Path, help="read an event log or an incident bundle instead of a server")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a self-contained HTML file")
    return parser
