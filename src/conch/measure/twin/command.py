"""`conch whatif`: what a change of configuration or load would do to a model's latency, from a server's event log."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import count, duration
from conch.base.control_characters import printable
from conch.base.durations import duration_text
from conch.base.errors import ConchError
from conch.base.http.credentials import KEY_HELP
from conch.domain.arrivals import parse_arrivals

if TYPE_CHECKING:
    from conch.measure.twin.forecast import Change, Forecast, Load

_FAILURE = 1
_MAX_FACTOR = 1000.0


def whatif(arguments: Sequence[str]) -> int:
    """Print the forecast; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        return _answer(given)
    except ConchError as error:
        print(f"conch whatif: {printable(str(error))}", file=sys.stderr)
    return _FAILURE


def _answer(given: Namespace) -> int:
    from conch.measure.twin.forecast import forecast
    from conch.measure.why.source import open_log

    log, missing = open_log(given.file, given.url, given.last, given.api_key_file)
    for warning in missing:
        print(f"conch whatif: {printable(warning)}", file=sys.stderr)
    change = _change(given)
    changes = {given.stage or given.model: change}
    with _shown("simulating"):
        load = _load(given)
        prediction = forecast(log, given.model, changes, load, seed=given.seed, runs=given.runs, run_s=given.duration)
    if given.json:
        changed = {name: value for name, value in asdict(change).items() if value is not None}
        print(json.dumps({"model": given.model, "change": changed, **asdict(prediction)}, indent=2))
    else:
        _print(given.model, prediction)
    return 0


@contextmanager
def _shown(work: str) -> Iterator[None]:
    """Show on a terminal what a block does, and for how long."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(work, total=None)
        yield


def _change(given: Namespace) -> "Change":
    from conch.measure.twin.forecast import Change

    return Change(
        instances=given.instances,
        max_batch_size=given.max_batch_size,
        delay_us=None if given.delay is None else round(given.delay * 1e6),
        preferred=given.preferred,
        max_queue_size=given.queue_size,
        timeout_us=None if given.queue_timeout is None else round(given.queue_timeout * 1e6),
    )


def _load(given: Namespace) -> "Load":
    from conch.measure.twin.forecast import Load

    factor, rate = given.rate
    process, cv = given.arrivals or (None, 1.0)
    if process is not None and rate is None:
        from conch.base.errors import InvalidRequest

        raise InvalidRequest("--arrivals is for a number of requests a second: add --rate, such as --rate 200")
    times = None
    if given.trace:
        times = _trace_times(given.trace)
        times = [at / factor for at in times]
    more = {} if process is None else {"process": process}
    return Load(factor=factor, rate=rate, cv=cv, times=times, clients=given.concurrency, **more)


def _trace_times(source: str) -> list[float]:
    from conch.base.errors import InvalidRequest
    from conch.domain.load_traces import TraceError, read_trace

    try:
        times: list[float] = read_trace(source).times_s.tolist()
    except TraceError as error:
        raise InvalidRequest(f"--trace: {error}") from None
    return times


def _print(model: str, forecast: "Forecast") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("", "log", "forecast", "90 % interval", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(table.columns):
        column.justify, column.overflow = "right" if place else "left", "fold"
    for row in _rows(forecast):
        table.add_row(*row)
    console.print(f"{model}: {_load_text(forecast)}")
    console.print(table)
    console.print(
        f"Learnt from {forecast.executions:,} executions; {forecast.simulated:,} requests were simulated. "
        f"Without the change the simulation gives {duration_text(forecast.check[2] / 1e9)} for the log's P99 of "
        f"{duration_text(forecast.recorded[2] / 1e9)}.",
    )
    for note in forecast.notes:
        console.print(f"! {note}", markup=False)


def _load_text(forecast: "Forecast") -> str:
    if forecast.clients:
        return (
            f"{forecast.clients} client{'s' if forecast.clients > 1 else ''}, each of which sends one request at a time"
        )
    return f"{forecast.throughput.value:.4g} requests a second"


def _rows(forecast: "Forecast") -> Iterator[tuple[str, ...]]:
    for index, (name, latency) in enumerate((("P50", forecast.p50), ("P95", forecast.p95), ("P99", forecast.p99))):
        yield (
            name,
            duration_text(forecast.recorded[index] / 1e9),
            duration_text(latency.value / 1e9),
            f"{duration_text(latency.low / 1e9)} – {duration_text(latency.high / 1e9)}",
        )
    rate = forecast.throughput
    yield "throughput", "", f"{rate.value:.4g}/s", f"{rate.low:.4g} – {rate.high:.4g}/s"
    if forecast.refused.high:
        yield (
            "refused",
            "",
            f"{forecast.refused.value:.1%}",
            f"{forecast.refused.low:.1%} – {forecast.refused.high:.1%}",
        )
    for model, busy in forecast.utilisation.items():
        of = f" ({model})" if len(forecast.utilisation) > 1 else ""
        yield f"instances busy{of}", "", f"{busy.value:.0%}", f"{busy.low:.0%} – {busy.high:.0%}"
        yield f"mean batch{of}", "", f"{forecast.batch[model]:.3g}", ""


def _rate(text: str) -> tuple[float, float | None]:
    """Return the factor of 2x, or 1 and the requests a second of 300 or 300/s."""
    number, is_factor = text.removesuffix("x"), text.endswith("x")
    try:
        value = float(number.removesuffix("/s"))
    except ValueError:
        value = -1.0
    if not 0 < value < (_MAX_FACTOR if is_factor else 1e7):
        raise ArgumentTypeError(f"'{text}' is not a rate: expected 2x, or 300 for requests a second")
    return (value, None) if is_factor else (1.0, value)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))


def _arrivals(text: str) -> Any:
    try:
        return parse_arrivals(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch whatif",
        description="Forecast latency, throughput and utilisation of a model under another configuration or load. A "
        "simulation runs the server's own scheduling decisions with service times and arrivals from its event log.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model that computes tensors, or an ensemble of such")
    change = parser.add_argument_group("configuration")
    change.add_argument("--instances", type=count, metavar="N", help="instances of the model")
    change.add_argument("--max-batch-size", type=count, metavar="N", help="largest batch")
    change.add_argument("--delay", type=duration, metavar="TIME", help="max_queue_delay_microseconds, such as 500us")
    change.add_argument("--preferred", type=_sizes, metavar="N,…", help="preferred_batch_size")
    change.add_argument("--queue-size", type=count, metavar="N", help="max_queue_size of the default queue policy")
    change.add_argument("--queue-timeout", type=duration, metavar="TIME", help="timeout of the default queue policy")
    change.add_argument("--stage", metavar="NAME", help="the model of an ensemble that is changed")
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rate", type=_rate, default=(1.0, None), metavar="2x|N", help="as in the log but faster; or N a second"
    )
    load.add_argument(
        "--arrivals", type=_arrivals, metavar="FORM", help="constant, poisson (default) or gamma:CV, for --rate N"
    )
    load.add_argument("--trace", metavar="FILE", help="arrival times from a file, as of conch bench --trace")
    load.add_argument("--concurrency", type=count, metavar="N", help="N clients, each with one request at a time")
    source = parser.add_argument_group("event log")
    source.add_argument(
        "--last", type=duration, default=300.0, metavar="TIME", help="how much of the log (default: 5m)"
    )
    source.add_argument("--url", help="HTTP port of the server (default: the newest of this user, or 127.0.0.1:8000)")
    source.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    source.add_argument("--file", type=Path, help="read an event log or an incident bundle instead of a server")
    parser.add_argument(
        "--duration", type=duration, metavar="TIME", help="length of the runs that are forecast (default: of the log)"
    )
    parser.add_argument("--runs", type=count, default=80, metavar="N", help="simulated runs (default: 80)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of random numbers (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON; times are nanoseconds")
    return parser
