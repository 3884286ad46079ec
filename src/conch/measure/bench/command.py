"""`conch bench`: measure a server, print the result, write the files."""

import gc
import os
import signal
import sys
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.flags import settings_of
from conch.base.command_line.say import say
from conch.base.command_line.wait_for_model import wait_for_model
from conch.base.errors import ConchError, InvalidRequest
from conch.measure.bench.levels import levels_of, trace_of
from conch.measure.bench.perf_analyzer import help_text, translate
from conch.measure.bench.plan import GROUPS, BenchPlan, Interruption
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol

if TYPE_CHECKING:  # what is not needed to ask the server is imported after that
    from conch.measure.bench.prepared_run import PreparedRun
    from conch.measure.bench.report.certificate import Certificate
    from conch.measure.bench.report.request_records import RequestRecords
    from conch.measure.bench.run_view import RunView

# Option → module of conch.measure.bench.report and the function that returns the content of the file.
_FORMS = {
    "json": ("certificate", "to_json"),
    "html": ("html", "to_html"),
    "csv": ("csv_tables", "perf_analyzer_csv"),
    "long_csv": ("csv_tables", "long_csv"),
    "markdown": ("markdown", "to_markdown"),
}
_DEFAULT_COLUMNS = 80
_EXAMPLES = """\
examples:
  conch bench localhost:8000                        the only model of a server, at concurrency 1, 5 and 30
  conch bench densenet_onnx --concurrency 1:32:x2   a model of localhost:8000; 1, 2, 4, 8, 16, 32
  conch bench localhost:8001 -m digits --protocol grpc --rate 100,200 --duration 30s
  conch bench localhost:8000 -m chat --protocol openai --output-tokens 64 --slo ttft:200ms,itl:30ms
  conch bench localhost:8000 -m digits --find-max --slo latency:20ms
  conch bench localhost:8000 -m digits --against localhost:9000 --html ab.html
  conch bench compare before.json after.json --fail-if 'p99 > +5 %'

The main flags of perf_analyzer work too, with its meanings: conch bench --help-perf-analyzer lists them.

exit status: 0 measured; 1 no successful request, or the server was lost; 2 usage; 3 measured, but not to be compared
with other runs: a note of the report says why; 130 (Ctrl-C) or 143 (SIGTERM) ended early, with a report of the levels
that were finished.
"""
_FAILURE = 1
_USAGE_ERROR = 2
_INVALID = 3
_SIGNALLED = 128


def bench(arguments: Sequence[str]) -> int:
    """Measure, or compare results; return the exit status."""
    if arguments and arguments[0] == "compare":
        return _compare(arguments[1:])
    try:
        words, notices = translate(arguments)
    except ConchError as error:
        return _fail(error.message, _USAGE_ERROR)
    try:
        plan = read_plan(words)
        for notice in notices:
            print(f"conch bench: {notice}", file=sys.stderr)
        _check_outputs(plan)
        run = _prepared(plan, ("conch", "bench", *arguments))
    except ConchError as error:
        return _fail(error.message, _USAGE_ERROR)
    return _measure(run)


def read_plan(words: Sequence[str]) -> BenchPlan:
    """Parse the flags, exits with status 2 for wrong ones. Raises InvalidRequest."""
    parser = CommandParser(
        "conch bench",
        usage="conch bench [URL] [MODEL] [flags]",
        description="Measure an inference server over KServe v2 (HTTP, gRPC) or the OpenAI API.",
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="URL|MODEL", help="server and model (default: localhost:8000)")
    parser.add_argument("--help-perf-analyzer", action=_PerfAnalyzerHelp, nargs=0, help=SUPPRESS)
    parser.add_flags(BenchPlan, GROUPS)
    given = parser.parse_args(words)
    return settings_of(BenchPlan, given, words=tuple(given.words))


class _HelpFormatter(LaidOutHelp):
    """As wide as the terminal. argparse makes one for each flag, and imports shutil with three compressors for it."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"width": _columns() - 2, **more})


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (ValueError, OSError):
        return _DEFAULT_COLUMNS


class _PerfAnalyzerHelp(Action):
    """Print the table of perf_analyzer's flags."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        print(help_text())
        parser.exit()


def _prepared(plan: BenchPlan, command: Sequence[str]) -> "PreparedRun":
    """Find the server and make its requests. Raises ConchError.

    For a quick start, nothing collects garbage among the imports, and numpy starts no threads for linear algebra.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    collects = gc.isenabled()
    gc.disable()
    try:
        return _prepare(plan, command)
    finally:
        if collects:
            gc.enable()


def _prepare(plan: BenchPlan, command: Sequence[str]) -> "PreparedRun":
    url, model = plan.url_and_model()
    trace = trace_of(plan, model)
    load = levels_of(plan, trace)
    target = _find(plan, url, model)
    from conch.measure.bench.prepared_run import PreparedRun, side_of

    side = side_of(plan, target, trace)
    against = None
    if plan.against is not None:
        against = side_of(plan, _find(plan, plan.against, side.target.model.name), trace)
    return PreparedRun(replace(plan, command=tuple(command)), load, side, against)


def _find(plan: BenchPlan, url: str | None, model: str | None) -> BenchTarget:
    """Return the server that answers at a URL, and its model, once it is loaded. Raises ConchError."""
    headers, tls = plan.headers(), plan.tls()

    def attempt() -> BenchTarget:
        return discover(
            url,
            protocol=Protocol(plan.protocol) if plan.protocol else None,
            model=model,
            version=plan.model_version,
            headers=headers,
            tls=tls,
            metrics=plan.metrics_url is None,
        )

    return wait_for_model(attempt, "conch bench", plan.wait_s)


def _compare(arguments: Sequence[str]) -> int:
    return int(import_module("conch.measure.bench.compare").compare(arguments))


def _measure(run: "PreparedRun") -> int:
    from conch.measure.bench.bench_run import BenchRun

    plan = run.plan
    interruption = Interruption()
    signals = _Signals(interruption)
    view = _view(run)
    records = None
    if plan.records is not None:
        try:
            records = _open_records(plan.records)
        except OSError as error:
            return _fail(f"--records: cannot write {plan.records}: {error.strerror or error}", _USAGE_ERROR)
    signals.install()
    try:
        certificate = BenchRun(run, view, interruption, records=records).run()
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except ConchError as error:
        return _fail(error.message, _FAILURE)
    except (ConnectionError, RuntimeError) as error:
        return _fail(str(error), _FAILURE)
    finally:
        view.end()
        signals.restore()
        if records is not None:
            records.close()
    from conch.measure.bench.certify import exit_status

    status = _report(certificate, plan)
    if records is not None and records.error is not None:
        status = _fail(f"cannot write {plan.records}: {records.error.strerror or records.error}", _FAILURE)
    status = status or exit_status(certificate)
    return _SIGNALLED + signals.received if signals.received and status in (0, _INVALID) else status


def _open_records(path: str) -> "RequestRecords":
    """Create the file of --records. Raises OSError."""
    from conch.measure.bench.report.request_records import RequestRecords

    records = RequestRecords(Path(path))
    records.open()
    return records


def _report(certificate: "Certificate", plan: BenchPlan) -> int:
    """Print the result, then write the files; return 1 if one could not be written."""
    from conch.measure.bench.report.terminal import print_certificate

    print_certificate(certificate)
    sys.stdout.flush()
    status = 0
    for name in _FORMS:
        path = getattr(plan, name)
        if path is None:
            continue
        try:
            write_certificate(name, certificate, Path(path))
        except OSError as error:
            status = _fail(f"cannot write {path}: {error.strerror or error}", _FAILURE)
        except ConchError as error:
            status = _fail(error.message, _FAILURE)
        else:
            if not plan.quiet:
                print(f"conch bench: wrote {path}", file=sys.stderr)
    return status


def write_certificate(form: str, certificate: "Certificate", path: Path) -> None:
    """Write one form, such as "json", atomically. Raises OSError, InvalidRequest."""
    from conch.base.files.atomic import replace_file

    module, function = _FORMS[form]
    content = getattr(import_module(f"conch.measure.bench.report.{module}"), function)(certificate)
    replace_file(path, content if isinstance(content, bytes) else content.encode())


def _check_outputs(plan: BenchPlan) -> None:
    """Raise InvalidRequest for files that cannot be written, before minutes are spent on measuring."""
    flags: dict[Path, str] = {}
    for name in (*_FORMS, "records"):
        path = getattr(plan, name)
        if path is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        other = flags.setdefault(Path(path).resolve(), flag)
        if other != flag and (Path(path).is_file() or not Path(path).exists()):
            raise InvalidRequest(f"{other} and {flag} name the same file '{path}'")
        folder = Path(path).absolute().parent
        if Path(path).is_dir():
            raise InvalidRequest(f"{flag}: '{path}' is a folder, not a file")
        if not folder.is_dir():
            raise InvalidRequest(f"{flag}: the folder '{folder}' does not exist")
        replaced = name != "records" and (Path(path).is_file() or not Path(path).exists())  # by a file beside it
        written = folder if replaced or not Path(path).exists() else path
        if not os.access(written, os.W_OK):
            raise InvalidRequest(f"{flag}: '{written}' is not writable")


def _view(run: "PreparedRun") -> "RunView":
    from conch.measure.bench.run_view import PlainView, RunView

    if run.plan.quiet:
        return RunView()
    if run.plan.plain or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return PlainView()
    from conch.measure.bench.run_view import LiveView

    target = run.side.target
    return LiveView(f"{target.model.name} · {target.url} · {target.protocol.value}")


class _Signals:
    """The first SIGINT or SIGTERM ends the load, with a report; the second ends the command at once."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._previous: dict[int, object] = {}
        self.received = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        self._interruption.request()


def _fail(message: str, status: int) -> int:
    say(f"conch bench: {message}")
    return status
