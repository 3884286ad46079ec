"""`conch bench`: measure a server, print the result, write the files."""

import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from conch.base.errors import ConchError, InvalidRequest
from conch.measure.bench.commands.flags import parser
from conch.measure.bench.commands.perf_analyzer import translate

if TYPE_CHECKING:
    from conch.measure.bench.measuring_window import Interruption
    from conch.measure.bench.report.certificate import Certificate
    from conch.measure.bench.report.request_records import RequestRecords
    from conch.measure.bench.run import RunSettings
    from conch.measure.bench.view.run_view import RunView

# Option → module of conch.measure.bench.report and the function that writes the file.
_WRITERS = {
    "json": ("certificate_file", "write_json"),
    "html": ("html", "write_html"),
    "csv": ("csv_tables", "write_csv"),
    "long_csv": ("csv_tables", "write_long_csv"),
    "markdown": ("markdown", "write_markdown"),
}
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
    options = parser().parse_args(words)
    for notice in notices:
        print(f"conch bench: {notice}", file=sys.stderr)
    try:
        _check_outputs(options)
        settings = _settings(options, arguments)
    except ConchError as error:
        return _fail(error.message, _USAGE_ERROR)
    return _measure(settings, options)


def _settings(options: Namespace, arguments: Sequence[str]) -> "RunSettings":
    """Find the server and make its requests. Raises ConchError.

    For a quick start, nothing collects garbage among the imports, and numpy starts no threads for linear algebra.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    collects = gc.isenabled()
    gc.disable()
    try:
        from conch.measure.bench.commands.run_settings import run_settings

        return run_settings(options, ("conch", "bench", *arguments))
    finally:
        if collects:
            gc.enable()


def _compare(arguments: Sequence[str]) -> int:
    return int(import_module("conch.measure.bench.commands.compare").compare(arguments))


def _measure(settings: "RunSettings", options: Namespace) -> int:
    from conch.measure.bench.measuring_window import Interruption
    from conch.measure.bench.run import run

    interruption = Interruption()
    signals = _Signals(interruption)
    view = _view(settings, options)
    records = None
    if options.records is not None:
        try:
            records = _open_records(options.records)
        except OSError as error:
            return _fail(f"--records: cannot write {options.records}: {error.strerror or error}", _USAGE_ERROR)
    signals.install()
    try:
        certificate = run(settings, view, interruption, records)
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

    status = _report(certificate, options)
    if records is not None and records.error is not None:
        status = _fail(f"cannot write {options.records}: {records.error.strerror or records.error}", _FAILURE)
    status = status or exit_status(certificate)
    return _SIGNALLED + signals.received if signals.received and status in (0, _INVALID) else status


def _open_records(path: str) -> "RequestRecords":
    """Create the file of --records. Raises OSError."""
    from conch.measure.bench.report.request_records import RequestRecords

    records = RequestRecords(Path(path))
    records.open()
    return records


def _report(certificate: "Certificate", options: Namespace) -> int:
    """Print the result, then write the files; return 1 if one could not be written."""
    from conch.measure.bench.report.terminal import print_certificate

    print_certificate(certificate)
    sys.stdout.flush()
    status = 0
    for name in _WRITERS:
        path = getattr(options, name)
        if path is None:
            continue
        try:
            _write(name, certificate, Path(path))
        except OSError as error:
            status = _fail(f"cannot write {path}: {error.strerror or error}", _FAILURE)
        except ConchError as error:
            status = _fail(error.message, _FAILURE)
        else:
            if not options.quiet:
                print(f"conch bench: wrote {path}", file=sys.stderr)
    return status


def _write(name: str, certificate: "Certificate", path: Path) -> None:
    """Write one form. Raises OSError, InvalidRequest."""
    module, function = _WRITERS[name]
    getattr(import_module(f"conch.measure.bench.report.{module}"), function)(certificate, path)


def _check_outputs(options: Namespace) -> None:
    """Raise InvalidRequest for files that cannot be written, before minutes are spent on measuring."""
    flags: dict[Path, str] = {}
    for name in (*_WRITERS, "records"):
        path = getattr(options, name)
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


def _view(settings: "RunSettings", options: Namespace) -> "RunView":
    from conch.measure.bench.view.run_view import QuietView

    if options.quiet:
        return QuietView()
    if options.plain or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        from conch.measure.bench.view.plain_view import PlainView

        return PlainView()
    from conch.measure.bench.view.live_view import LiveView

    target = settings.side.target
    return LiveView(f"{target.model.name} · {target.url} · {target.protocol.value}")


class _Signals:
    """The first SIGINT or SIGTERM ends the load, with a report; the second ends the command at once."""

    def __init__(self, interruption: "Interruption") -> None:
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
    print(f"conch bench: {message}", file=sys.stderr)
    return status
