"""`conch trace`: show recorded traces of requests."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import write_text
from conch.base.command_line.say import say

if TYPE_CHECKING:
    from conch.operate.traces.spans import RecordedSpan

_FAILURE = 1


def trace(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    from conch.base.errors import InvalidRequest

    try:
        return _view(given)
    except InvalidRequest as error:
        say(f"conch trace view: {error}")
    return _FAILURE


def _view(given: Namespace) -> int:
    from conch.operate.traces.read import read_traces

    traces = read_traces(given.sources)
    chosen = traces.find(given.id) if given.id else traces.requests[0]
    for warning in traces.warnings:
        say(f"conch trace view: {warning}")
    if given.html is not None:
        from conch.operate.traces.waterfall import html_page

        if status := write_text("conch trace view", given.html, html_page(chosen)):
            return status
    if given.json:
        shown = [chosen] if given.id else traces.requests
        print(json.dumps({"requests": [_document(root) for root in shown]}, indent=2))
    elif given.html is None:
        from rich.console import Console

        from conch.operate.traces.waterfall import print_list, print_waterfall

        console = Console(highlight=False)
        if not given.id and len(traces.requests) > 1:
            print_list(traces, console)
            console.print()
        print_waterfall(chosen, console)
    return 0


def _document(root: "RecordedSpan") -> dict[str, Any]:
    from conch.operate.traces.spans import reason

    spans = [
        {
            "id": span.id,
            "parent_id": span.parent,
            "model": span.model,
            "version": span.version,
            "start_ns": span.start - root.start,
            "duration_ns": span.ns,
            "error": span.error,
            "phases": [
                {"phase": segment.phase, "start_ns": segment.start - root.start, "duration_ns": segment.ns}
                for segment in span.segments()
            ],
        }
        for _, span in root.walk()
    ]
    return {
        "id": root.id,
        "request_id": root.request_id,
        "trace_id": root.trace_id,
        "model": root.model,
        "duration_ns": root.ns,
        "reason": reason(root),
        "spans": spans,
    }


def _parser() -> CommandParser:
    parser = CommandParser("conch trace", description="Show recorded traces of requests.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    viewing = commands.add_parser("view", help="show a request as a waterfall", description=_VIEW)
    viewing.add_argument("sources", metavar="FILE|URL", nargs="+", help="trace file, or OTLP spans in JSON; repeatable")
    viewing.add_argument("--id", default="", help="show this request: id in the file, request id, or W3C trace id")
    viewing.add_argument("--html", type=Path, metavar="OUT", help="write the request to a self-contained HTML file")
    viewing.add_argument("--json", action="store_true", help="print requests with their phases as JSON")
    return parser


_VIEW = (
    "Show a request as a waterfall, with the reason why it took its time, from Triton's and Conch's trace files "
    "(--trace-config=triton,file=…) or OpenTelemetry spans in JSON. Without --id: a list of the slowest, and the first "
    "of them."
)
