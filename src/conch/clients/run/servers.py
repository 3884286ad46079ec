"""`conch ps` and `stop`: what the servers of this user have loaded, read from their HTTP and metrics ports."""

import json
import os
import select
import signal
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conch.base.command_line.command_parser import CommandParser
from conch.base.control_characters import printable
from conch.base.errors import InvalidRequest, NotFound, Unavailable
from conch.base.http.credentials import client_key
from conch.base.process.running_servers import RunningServer, running_servers
from conch.base.suggestion import did_you_mean
from conch.clients.run.command import exit_status
from conch.clients.server_view import ModelReading, ServerReader, ServerReading, address_of, rates
from conch.domain.degradations import reasons
from conch.machine.memory import size_text

_STOP_S = 60.0
_RATE_S, _WATCH_S = 0.5, 2.0  # between the two readings that a rate needs
_IN_USE = ("READY", "LOADING")
_UNLOADED = "unloaded"  # the reason of a model that was unloaded by request
_PLAIN_COLUMNS = 200  # without a terminal
_GAP, _FOLDED = 2, 20  # between the columns of a table; the least of a long state
_LIVE = ("queue", "rate")  # columns that are left out first


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model of a running server. Memory in bytes, None if it shares the server's process with other models.

    `rate` is in requests per second; `until` is the Unix time at which it is unloaded if no request comes.
    """

    model: str
    version: str
    backend: str
    device: str
    memory: int | None
    state: str
    queue: int
    rate: float | None
    until: float | None
    degraded: tuple[str, ...]  # reasons, also those of the whole server
    context_length: int | None  # tokens of prompt and completion, of a language model
    url: str
    pid: int


def ps(arguments: Sequence[str]) -> int:
    """Print the loaded models of all servers of this user; return the exit status."""
    parser = CommandParser("conch ps", description=_PS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch", nargs="?", type=_seconds, const=_WATCH_S, metavar="SECONDS",
        help=f"print again every few seconds (default: {_WATCH_S:g}) until Ctrl-C",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    watch = ServerWatch()

    def once() -> int:
        models = watch.look()
        if any(reading.models for reading in watch.readings.values()):
            time.sleep(_RATE_S)
            models = watch.look()
        _print(models, as_json=given.json)
        return 0

    def repeated() -> int:
        with suppress(KeyboardInterrupt):
            if given.json or not sys.stdout.isatty():
                while True:
                    _print(watch.look(), as_json=given.json)
                    time.sleep(given.watch)
            with Live(console=Console(), auto_refresh=False) as live:
                while True:
                    live.update(_shown(watch.look(), live.console), refresh=True)
                    time.sleep(given.watch)
        return 0

    return exit_status("ps", once if given.watch is None else repeated)


def stop(arguments: Sequence[str]) -> int:
    """Stop servers, or unload models of servers with several; return the exit status."""
    parser = CommandParser("conch stop", description=_STOP)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model, or the pid or host:port of a server")
    parser.add_argument("--all", action="store_true", help="stop all servers of this user")
    parser.add_quiet_flag()
    given = parser.parse_args(arguments)
    if bool(given.names) == given.all:
        parser.error("give names, or --all")
    return exit_status("stop", lambda: _stop_all() if given.all else max(map(_stop, given.names)), given)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise ArgumentTypeError(f"'{text}' must be a number of seconds from 0.1 to 3600")
    return seconds


# ---- reading


class ServerWatch:
    """Readings of all servers: a rate is the growth between two."""

    def __init__(self) -> None:
        self.readers: dict[RunningServer, ServerReader] = {}
        self.readings: dict[RunningServer, ServerReading] = {}

    def look(self) -> list[LoadedModel]:
        """Return the loaded models, those of the oldest server first."""
        before, self.readings = self.readings, {}
        return [model for server in running_servers() for model in self._of(server, before.get(server))]

    def _of(self, server: RunningServer, before: ServerReading | None) -> Iterator[LoadedModel]:
        reader = self.readers.setdefault(server, _reader(server))
        try:
            now = self.readings[server] = reader.read()
        except Unavailable as error:
            state = f"no answer: {error.message}"
            yield LoadedModel(server.source, "", "", "", None, state, 0, None, None, (), None, server.url, server.pid)
            return
        changes = rates(before, now)
        for model in now.models:
            if model.reason == _UNLOADED:
                continue
            change = changes.get(model.key)
            memory = model.memory_bytes + (now.memory_bytes if len(now.models) == 1 else 0)
            reason = f": {model.reason}" if model.reason else ""
            yield LoadedModel(
                model.name,
                model.version,
                model.backend,
                model.device,
                memory or None,
                "idle" if model.asleep else f"{model.state.lower()}{reason}",
                model.queued,
                change.requests if change else None,
                _until(server, reader, model),
                (*model.degraded, *now.degraded),
                model.context_length or None,
                server.url,
                server.pid,
            )


def _reader(server: RunningServer) -> ServerReader:
    return ServerReader(address_of(server, None, client_key(None)))


def _until(server: RunningServer, reader: ServerReader, model: ModelReading) -> float | None:
    idle_s = model.idle_unload_s or server.idle_unload_s
    if not idle_s:
        return None
    with suppress(Unavailable, KeyError, IndexError, TypeError):
        statistics = reader.ask("GET", f"/v2/models/{quote(model.name, safe='')}/stats")["model_stats"][0]
        return max(server.started, float(statistics["last_inference"]) / 1000) + idle_s
    return None


# ---- printing


def _print(models: Sequence[LoadedModel], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(model) for model in models], indent=2), flush=True)
        return
    console = Console()
    if not console.is_terminal:
        console.width = _PLAIN_COLUMNS
    console.print(_shown(models, console))


_COLUMNS: Mapping[str, Callable[[LoadedModel], str]] = {
    "model": lambda model: model.model,
    "backend": lambda model: model.backend,
    "device": lambda model: model.device,
    "memory": lambda model: "" if model.memory is None else size_text(model.memory),
    "state": lambda model: model.state,
    "queue": lambda model: str(model.queue),
    "rate": lambda model: "" if model.rate is None else f"{model.rate:.1f}/s",
    "until": lambda model: "stopped" if model.until is None else _remaining(model.until - time.time()),
    "url": lambda model: model.url,
}


def _shown(models: Sequence[LoadedModel], console: Console) -> RenderableType:
    """Return a table, or on a narrow terminal a block for each model; then the degradations with their cures."""
    if not models:
        return Text("no server runs; conch run X starts one")
    rows = [{title: printable(value(model)) for title, value in _COLUMNS.items()} for model in models]
    choices = (_COLUMNS, [title for title in _COLUMNS if title not in _LIVE])
    fitting = (_table(rows, titles) for titles in choices if _least_width(rows, titles) <= console.width)
    blocks = ("\n".join(f"{title:<8} {text}" for title, text in row.items()) for row in rows)
    parts: list[RenderableType] = [next(fitting, None) or Text("\n\n".join(blocks))]
    for reason in dict.fromkeys(reason for model in models for reason in model.degraded):
        known = reasons().get(reason)
        of_server = known is not None and known.scope == "server"
        having = [model for model in models if reason in model.degraded]
        names = ", ".join(dict.fromkeys(model.url if of_server else model.model for model in having))
        detail = f" {known.costs} Cure: {known.cure}" if known else ""
        parts.append(Text(f"degraded: {printable(names)}: {printable(reason)}.{detail}", style="yellow"))
    return Group(*parts)


def _least_width(rows: Sequence[Mapping[str, str]], titles: Iterable[str]) -> int:
    """Return the columns of the terminal that a table needs: a state with its reason is folded."""
    widths = {title: max(map(cell_len, (title, *(row[title] for row in rows)))) for title in titles}
    widths["state"] = min(widths["state"], _FOLDED)
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _table(rows: Iterable[Mapping[str, str]], titles: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(
            title, overflow="fold", no_wrap=title != "state", justify="right" if title in _LIVE else "left"
        )
    for row in rows:
        table.add_row(*(Text(row[title]) for title in titles))
    return table


def _remaining(seconds: float) -> str:
    return "now" if seconds <= 0 else f"in {seconds:.0f} s" if seconds < 120 else f"in {seconds / 60:.0f} min"


# ---- stopping


def _stop_all() -> int:
    for server in running_servers():
        _end(server, server.source)
    return 0


def _stop(name: str) -> int:
    """Stop the server of a pid, an address, or a single model; else unload the model. Raises ConchError."""
    servers: dict[RunningServer, dict[str, str]] = {}  # their models, with versions
    silent = ""
    for server in running_servers():
        if name in (str(server.pid), server.http, server.url):
            _end(server, server.source)
            return 0
        try:
            rows = _reader(server).ask("POST", "/v2/repository/index", b"{}")
        except Unavailable as error:
            silent += f"; {error}; conch stop {server.pid} stops this server"
        else:
            in_use = [row for row in rows if row.get("state") in _IN_USE]
            servers[server] = {str(row["name"]): str(row.get("version", "")) for row in in_use}
    having = [server for server, models in servers.items() if name in models]
    alone = [server for server in having if servers[server].keys() <= _with_parts(server, name, servers[server])]
    if not having:
        hint = did_you_mean(name, sorted(set().union(*servers.values())))
        raise NotFound(f"'{name}' is not a loaded model or a server{hint}; conch ps lists them{silent}")
    if len(alone or having) > 1:
        places = ", ".join(f"{server.url} (pid {server.pid})" for server in alone or having)
        raise InvalidRequest(f"'{name}' is loaded more than once: name the server instead, by its pid: {places}")
    if alone:
        _end(alone[0], name)
    else:
        _unload(having[0], name)
    return 0


def _with_parts(server: RunningServer, name: str, versions: Mapping[str, str]) -> set[str]:
    """Return a model and, of an ensemble, the models of its steps and of theirs."""
    reader, parts = _reader(server), [name]
    for part in parts:  # grows
        steps = reader.config(part, versions.get(part, "")).get("ensemble_scheduling", {}).get("step", ())
        parts += [step["model_name"] for step in steps if step["model_name"] not in parts]
    return set(parts)


def _unload(server: RunningServer, name: str) -> None:
    try:
        _reader(server).ask("POST", f"/v2/repository/models/{quote(name, safe='')}/unload", b"{}")
    except Unavailable as error:
        raise Unavailable(
            f"'{name}' is one of several models of {server.url}, which does not unload it: {error}; "
            f"conch stop {server.pid} stops this server"
        ) from None
    print(f"unloaded '{printable(name)}' from {server.url}")


def _end(server: RunningServer, what: str) -> None:
    """Stop a server, and wait until it has ended. Raises Unavailable if it takes too long."""
    try:
        process = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return
    try:
        if server not in running_servers():  # the pid may be another process's by now
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], _STOP_S)[0]:
            raise Unavailable(f"the server {server.pid} still answers requests after {_STOP_S:.0f} s")
    finally:
        os.close(process)
    print(f"stopped '{printable(what)}' at {server.url}")


_PS = (
    "List the models that the servers of this user on this machine have loaded: device, memory, queue, rate, when an "
    "idle model is unloaded, and what runs worse than asked. CONCH_API_KEY is sent to servers that need a key."
)
_STOP = (
    "Stop the server of a model; of a server with several models, unload one (conch serve needs "
    "--model-control-mode=explicit for that). Requests in flight are answered before."
)
