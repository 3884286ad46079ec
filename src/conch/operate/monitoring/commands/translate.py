"""`conch translate`: rewrite dashboards and rules for other metric names and units."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import read_text, write_text
from conch.base.command_line.say import say
from conch.base.errors import InvalidRequest

_TRANSLATED, _INCOMPLETE, _USAGE_ERROR = 0, 1, 2
_INDENT = 2
_UNWRAPPED = 1000  # columns


def translate(arguments: Sequence[str]) -> int:
    """Translate documents, print the report, and return the exit status."""
    from conch.operate.monitoring.translate.dialects import DIALECTS, model_label
    from conch.operate.monitoring.translate.document import Translator

    parser = _parser(DIALECTS)
    options = parser.parse_args(arguments)
    if not options.file and not options.query:
        parser.error("a FILE or --query is required")
    if options.file and options.query:
        parser.error("FILE and --query cannot be used together; omit one of them")
    if options.source == options.target:
        parser.error("--from and --to are the same")
    if options.model and not model_label(options.source, options.target):
        parser.error("--model is for --from vllm-… --to conch or triton, whose metrics are of all models")
    translator = Translator(options.source, options.target, options.model)
    if options.query:
        result = translator.query(options.query) + "\n"
    else:
        try:
            result = _translated(translator, options.file)
        except InvalidRequest as error:
            say(f"conch translate: {error}")
            return _USAGE_ERROR
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            say(f"conch translate: {options.file}: {error}")
            return _USAGE_ERROR
        if not translator.outcomes:
            name = "stdin" if options.file == "-" else options.file
            print(f"conch translate: {name} has no queries: there is nothing to translate", file=sys.stderr)
            return _USAGE_ERROR
    if options.json:
        _print_json(translator, result)
    if (options.output is not None or not options.json) and write_text("conch translate", options.output, result):
        return _INCOMPLETE
    if not options.json:
        _print_report(translator)
    failed = any(outcome.status in ("no counterpart", "invalid") for outcome in translator.outcomes)
    return _INCOMPLETE if failed else _TRANSLATED


def _parser(dialects: Sequence[str]) -> CommandParser:
    parser = CommandParser(
        "conch translate",
        description="Rewrite the queries of Grafana dashboards and Prometheus rules for other metric names and units.",
        epilog="Exit status: 0 all translated, 1 some queries have no counterpart and are unchanged, or "
        "the result cannot be written, 2 invalid usage or nothing to translate.",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="a dashboard (JSON), or rules or PrometheusRule (YAML); - for stdin"
    )
    parser.add_argument("--from", dest="source", choices=dialects, required=True, help="names that the file uses")
    parser.add_argument("--to", dest="target", choices=dialects, required=True, help="names that it shall use")
    parser.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="select this model where the new metrics are of all models, and the old ones of a language model",
    )
    parser.add_argument("--query", metavar="PROMQL", help="translate this query; values keep their unit")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the result to a file")
    parser.add_argument("--json", action="store_true", help="print the result and the report as JSON")
    return parser


def _translated(translator: Any, file: str) -> str:
    """Return the text of the translated file, JSON if it was JSON, else YAML."""
    from conch.base.yaml_documents import dump_documents, load_documents

    text = sys.stdin.read() if file == "-" else read_text(Path(file))
    if text.lstrip().startswith(("{", "[")):
        document = json.loads(text)
        for part in document if isinstance(document, list) else [document]:
            translator.translate(part)
        return json.dumps(document, indent=_INDENT, ensure_ascii=False) + "\n"
    documents = load_documents(text)
    for parsed in documents:
        translator.translate(parsed.value)
    return dump_documents(parsed.value for parsed in documents)


def _print_json(translator: Any, result: str) -> None:
    outcomes = [
        {name: getattr(outcome, name) for name in ("place", "status", "before", "after", "reason")}
        for outcome in translator.outcomes
    ]
    print(json.dumps({"result": result, "queries": outcomes}, indent=_INDENT, ensure_ascii=False))


def _print_report(translator: Any) -> None:
    """Print to stderr which queries were translated and which were not, and why."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    width = None if sys.stderr.isatty() else _UNWRAPPED
    console = Console(stderr=True, highlight=False, width=width)
    table = Table(box=SIMPLE_HEAD)
    for title in ("query", "", "result"):
        table.add_column(title)
    for outcome in translator.outcomes:
        style = "" if outcome.status in ("translated", "unchanged") else "red"
        result = ": ".join(filter(None, (outcome.reason, outcome.after if not style else outcome.before)))
        table.add_row(escape(outcome.place), outcome.status, escape(result), style=style)
    console.print(table)
    failed = sum(outcome.status in ("no counterpart", "invalid") for outcome in translator.outcomes)
    console.print(f"{len(translator.outcomes)} queries, {failed} without a translation")
