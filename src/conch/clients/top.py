"""`conch top`: the models of running servers live: queues, rates, latencies, memory, and what is degraded."""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from math import inf

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.option_types import duration
from conch.base.control_characters import printable
from conch.base.errors import ConchError, Unavailable
from conch.base.http.credentials import KEY_HELP, client_key
from conch.clients.server_view import (
    ModelRates,
    ModelReading,
    ServerAddress,
    ServerReader,
    ServerReading,
    all_reasons,
    document,
    find_addresses,
    rates,
)
from conch.domain.degradations import reasons
from conch.machine.memory import size_text

_FAILURE, _INTERRUPTED = 1, 130
_PLAIN_COLUMNS = 160
_MAX_DEGRADED = 5
_STATE_COLUMNS = 50  # of narrower terminals, the name of a model that is not ready is followed by its state
# Heading, minimum width of the terminal.
_COLUMNS = (
    ("Model", 0),
    ("State", _STATE_COLUMNS),
    ("req/s", 0),
    ("fail/s", 80),
    ("tok/s", 100),
    ("p50", 100),
    ("p99", 0),
    ("Queue", 0),
    ("Oldest", 100),
    ("Batch", 90),
    ("Busy", 70),
    ("Memory", 60),
    ("Device", 100),
)
_EPILOG = """
p50 and p99 are upper bounds of buckets of conch_request_duration_seconds in the interval. Ctrl-C ends the view.
Exit status: 0; 1 if no server answers; 2 for invalid arguments; 130 after Ctrl-C before the first reading.
"""


def top(arguments: Sequence[str]) -> int:
    """Show servers until Ctrl-C, or once without a terminal; return the exit status."""
    parser = CommandParser(
        "conch top",
        description="Show the models of running servers live. Without a terminal, print one table of each.",
        epilog=_EPILOG,
        formatter_class=LaidOutHelp,
    )
    add_server_flags(parser)
    parser.add_argument("--interval", type=duration, default=2.0, metavar="TIME", help="between readings (default: 2s)")
    parser.add_argument("--once", action="store_true", help="print one table of each server, then exit")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each server, then exit")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    servers = _Servers(given)
    try:
        servers.read()
        if given.json or given.once or not console.is_terminal:
            time.sleep(max(given.interval, 0.0))
            servers.read()
            if given.json:
                for address, reading in servers.now.items():
                    print(json.dumps(document(reading, servers.before.get(address))))
            else:
                width = console.width if console.is_terminal else _PLAIN_COLUMNS
                Console(highlight=False, width=width).print(servers.view(width))
            return 0
        with Live(servers.view(console.width), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(max(given.interval, 0.1))
                servers.read()
                live.update(servers.view(console.width), refresh=True)
    except ConchError as error:
        print(f"conch top: {printable(str(error))}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        return 0 if servers.now else _INTERRUPTED


def add_server_flags(parser: CommandParser) -> None:
    """Add the flags that say which server to read."""
    parser.add_argument("--url", help="HTTP port of a server (default: all of this user, or 127.0.0.1:8000)")
    parser.add_argument("--metrics-url", metavar="URL", help="of its metrics (default: as recorded, or port + 2)")
    parser.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)


class _Servers:
    """The last two readings of each server that the flags name."""

    def __init__(self, given: Namespace) -> None:
        self.before: dict[ServerAddress, ServerReading] = {}
        self.now: dict[ServerAddress, ServerReading] = {}
        self._given = given
        self._readers: dict[ServerAddress, ServerReader] = {}

    def read(self) -> None:
        """Read all servers, also those that have started since. Raises Unavailable if none answers."""
        given = self._given
        addresses = find_addresses(given.url, given.metrics_url, client_key(given.api_key_file))
        now: dict[ServerAddress, ServerReading] = {}
        for address in addresses:
            if address not in self._readers:
                self._readers[address] = ServerReader(address)
            try:
                now[address] = self._readers[address].read()
            except Unavailable as error:
                if len(addresses) == 1:
                    raise
                now[address] = ServerReading(address.url, problems=[f"{address.url}: {error.message}"])
        self.before, self.now = self.now, now

    def view(self, width: int) -> RenderableType:
        """Return what to show of all servers."""
        return Group(*(_view(reading, self.before.get(address), width) for address, reading in self.now.items()))


def _view(reading: ServerReading, before: ServerReading | None, width: int) -> RenderableType:
    """Return the header, the table of models and the degradations."""
    changes = rates(before, reading)
    shown = [number for number, (_, minimum) in enumerate(_COLUMNS) if width >= minimum]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=False)
    for number in shown:
        side: JustifyMethod = "left" if number in (0, 1, 12) else "right"
        table.add_column(_COLUMNS[number][0], justify=side, no_wrap=number > 0, overflow="fold")
    for model in sorted(reading.models, key=lambda model: (-getattr(changes.get(model.key), "requests", 0), model.key)):
        cells = _cells(model, changes.get(model.key))
        if width < _STATE_COLUMNS and model.state != "READY":
            cells[0] += f" {cells[1]}"
        table.add_row(*(escape(printable(cells[number])) for number in shown))
    parts: list[RenderableType] = [Text(_head(reading, before)), table]
    parts += [Text(f"cannot read {problem}", "yellow") for problem in reading.problems]
    holding = list(all_reasons(reading))
    for model_name, reason in holding[:_MAX_DEGRADED]:
        costs = reasons()[reason].costs if reason in reasons() else ""
        parts.append(
            Text(printable(f"degraded: {reason}{f' ({model_name})' if model_name else ''}  {costs}"), "yellow")
        )
    if len(holding) > _MAX_DEGRADED:
        parts.append(Text(f"and {len(holding) - _MAX_DEGRADED} more; conch doctor lists them with cures", "yellow"))
    return Group(*parts)


def _head(reading: ServerReading, before: ServerReading | None) -> str:
    ready = sum(model.state == "READY" for model in reading.models)
    words = [reading.url, f"{ready} of {len(reading.models)} models ready"]
    if before is not None and reading.taken_s > before.taken_s:
        words.append(f"CPU {(reading.cpu_s - before.cpu_s) / (reading.taken_s - before.taken_s):.0%}")
    if reading.memory_bytes:
        words.append(f"memory {size_text(reading.memory_bytes)}")
    words.append(f"{reading.connections} connections")
    words += [f"GPU {number} {share:.0%}" for number, share in enumerate(reading.gpus.values())]
    return "  ".join(words)


def _cells(model: ModelReading, change: ModelRates | None) -> list[str]:
    state = model.state if not model.reason else f"{model.state}: {model.reason.splitlines()[0][:60]}"
    known = [
        _seconds(model.oldest_s) if model.queued else "",
        "",
        "",
        size_text(model.memory_bytes) if model.memory_bytes else "",
        model.device,
    ]
    name = model.name if model.version in ("", "1") else f"{model.name}/{model.version}"
    if change is None:
        return [name, state, "", "", "", "", "", str(model.queued or ""), *known]
    known[1:3] = [f"{change.batch:.1f}" if change.batch else "", f"{change.busy:.0%}"]
    rated = [f"{change.requests:.1f}", f"{change.failures:.1f}" if change.failures else ""]
    rated.append(f"{change.tokens:.0f}" if change.tokens else "")
    return [name, state, *rated, _bound(change.median_s), _bound(change.slow_s), str(model.queued), *known]


def _bound(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "> 60 s" if seconds == inf else f"≤ {_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
