"""`conch ps` and `stop`: what the servers of this user have loaded, read from their HTTP and metrics ports."""

import json
import os
import select
import signal
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conch.base.command_line.command_parser import CommandParser
from conch.base.control_characters import printable
from conch.base.errors import ConchError, InvalidRequest, NotFound, Unavailable
from conch.base.http.client import HttpClient, HttpSettings
from conch.base.http.credentials import client_key
from conch.base.http.prometheus import ScrapeSettings, scrape
from conch.base.process.running_servers import RunningServer, running_servers
from conch.base.suggestion import did_you_mean
from conch.clients.run.command import exit_status
from conch.clients.run.memory import size_text
from conch.domain.degradations import REASONS
from conch.measure.bench.observers.server_metrics import MetricSeries, parse_exposition

_TIMEOUT_S, _STOP_S = 2.0, 60.0
_RATE_S, _WATCH_S = 0.5, 2.0  # between the two readings that a rate needs
_TABLE_COLUMNS, _PLAIN_COLUMNS = 90, 200  # the least of a table; without a terminal
_REQUESTS, _QUEUE, _DEGRADED = "nv_inference_request_success", "conch_queue_depth", "conch_degraded"
_MODEL_MEMORY, _SERVER_MEMORY = "conch_process_resident_memory_bytes", "process_resident_memory_bytes"
_SLEEP = "vllm:engine_sleep_state"
_ON_CPU = "kind_gpu_on_cpu"
_IDLE = "idle_unload_secs"


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
    watch = _Watch()

    def once() -> int:
        models = watch.look()
        if watch.requests:
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
    given = parser.parse_args(arguments)
    if bool(given.names) == given.all:
        parser.error("give names, or --all")
    return exit_status("stop", lambda: _stop_all() if given.all else max(map(_stop, given.names)))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise ArgumentTypeError(f"'{text}' must be a number of seconds from 0.1 to 3600")
    return seconds


# ---- reading


class _Watch:
    """Readings of all servers: a rate is the growth between two."""

    def __init__(self) -> None:
        self.requests: dict[tuple[int, str, str], float] = {}
        self._read_at = 0.0

    def look(self) -> list[LoadedModel]:
        """Return the loaded models, those of the oldest server first."""
        now, requests = time.monotonic(), dict[tuple[int, str, str], float]()
        loaded = [model for server in running_servers() for model in self._of(server, now, requests)]
        self.requests, self._read_at = requests, now
        return loaded

    def _of(
        self, server: RunningServer, now: float, requests: dict[tuple[int, str, str], float]
    ) -> Iterator[LoadedModel]:
        try:
            rows = [row for row in _asked(server, "/v2/repository/index", b"{}") if row.get("state")]
        except (ConchError, ConnectionError) as error:
            state = f"no answer: {getattr(error, 'cause', error)}"
            yield LoadedModel(server.source, "", "", "", None, state, 0, None, None, (), server.url, server.pid)
            return
        series = _Series(server)
        for row in rows:
            name, version = str(row["name"]), str(row.get("version", ""))
            config = _config(server, name) if row["state"] == "READY" else {}
            key = (server.pid, name, version)
            count = requests[key] = series.total(_REQUESTS, name, version)
            before = self.requests.get(key)
            degraded = series.degraded(name)
            yield LoadedModel(
                name,
                version,
                str(config.get("backend", "")),
                _device(config, degraded) if config else "",
                series.memory(name, alone=len(rows) == 1),
                series.state(name, row),
                int(series.total(_QUEUE, name, version)),
                None if before is None else max(0.0, count - before) / (now - self._read_at),
                _until(server, name, config),
                (*degraded, *series.degraded("")),
                server.url,
                server.pid,
            )


class _Series:
    """The metrics of one server, none if it does not serve them."""

    def __init__(self, server: RunningServer) -> None:
        self._series: list[MetricSeries] = []
        if server.metrics:
            with suppress(OSError):
                settings = ScrapeSettings(f"http://{server.metrics}/metrics", tuple(_headers().items()))
                self._series = list(parse_exposition(scrape(settings)))

    def total(self, name: str, model: str = "", version: str = "") -> float:
        """Return the sum of a metric, or of a model's series of it."""
        return sum(series.value for series in self._chosen(name, model) if series.labels.get("version", "") == version)

    def memory(self, model: str, *, alone: bool) -> int | None:
        """Return the bytes of a model's processes, or those of the server that serves it alone; None if unknown."""
        own = sum(series.value for series in self._chosen(_MODEL_MEMORY, model))
        return int(own + (self.total(_SERVER_MEMORY) if alone else 0)) or None

    def degraded(self, model: str) -> tuple[str, ...]:
        """Return the reasons of a model, or with "" those of the server."""
        return tuple(series.labels["reason"] for series in self._chosen(_DEGRADED, model) if series.value)

    def state(self, model: str, row: Mapping[str, Any]) -> str:
        """Return the state of the index, or "idle" if the engine sleeps until the next request."""
        awake = [
            series.value
            for series in self._series
            if series.name == _SLEEP and series.labels.get("model_name") == model
            and series.labels.get("sleep_state") == "awake"
        ]  # fmt: skip
        if row["state"] == "READY" and awake and not any(awake):
            return "idle"
        reason = row.get("reason") or ""
        return f"{str(row['state']).lower()}{f': {reason}' if reason else ''}"

    def _chosen(self, name: str, model: str) -> Iterator[MetricSeries]:
        return (series for series in self._series if series.name == name and series.labels.get("model", "") == model)


def _asked(server: RunningServer, path: str, body: bytes | None = None) -> Any:
    """Return the JSON that a server answers. Raises ConchError with its message."""
    settings = HttpSettings.once(_TIMEOUT_S, max_redirects=0, environment_proxies=False)
    url = f"{server.url}{path}"
    with HttpClient(settings).open("GET" if body is None else "POST", url, _headers(), body) as response:
        if response.status == 200:
            return json.loads(response.read() or b"null")
        reason = f"status {response.status}"
        with suppress(ConchError, KeyError, TypeError):
            reason = str(response.json()["error"])
    raise Unavailable(reason)


def _headers() -> dict[str, str]:
    key = client_key(None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _config(server: RunningServer, model: str) -> Mapping[str, Any]:
    with suppress(ConchError):
        config = _asked(server, f"/v2/models/{quote(model, safe='')}/config")
        return config if isinstance(config, dict) else {}
    return {}


def _device(config: Mapping[str, Any], degraded: Sequence[str]) -> str:
    """Return where the instances compute: what KIND_GPU asks for does not count on a CPU."""
    gpus = {gpu for group in config.get("instance_group", ()) for gpu in group.get("gpus", ())}
    asked = any(group.get("kind") == "KIND_GPU" for group in config.get("instance_group", ()))
    return "CPU" if _ON_CPU in degraded or not asked else f"GPU {','.join(map(str, sorted(gpus)))}".strip()


def _until(server: RunningServer, model: str, config: Mapping[str, Any]) -> float | None:
    own = config.get("parameters", {}).get(_IDLE, {}).get("string_value", "")
    idle_s = int(own) if own.isdecimal() else server.idle_unload_s
    if not idle_s:
        return None
    with suppress(ConchError, KeyError, IndexError, TypeError):
        statistics = _asked(server, f"/v2/models/{quote(model, safe='')}/stats")["model_stats"][0]
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
    cells = [[printable(value(model)) for value in _COLUMNS.values()] for model in models]
    parts: list[RenderableType] = []
    if console.width >= _TABLE_COLUMNS:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in _COLUMNS:
            table.add_column(title, overflow="fold", justify="right" if title in ("queue", "rate") else "left")
        for row in cells:
            table.add_row(*map(Text, row))
        parts.append(table)
    else:
        blocks = ("\n".join(f"{title:<8} {text}" for title, text in zip(_COLUMNS, row, strict=True)) for row in cells)
        parts.append(Text("\n\n".join(blocks)))
    for reason in dict.fromkeys(reason for model in models for reason in model.degraded):
        known = REASONS.get(reason)
        of_server = known is not None and known.scope == "server"
        having = [model for model in models if reason in model.degraded]
        names = ", ".join(dict.fromkeys(model.url if of_server else model.model for model in having))
        detail = f" {known.costs} Cure: {known.cure}" if known else ""
        parts.append(Text(f"degraded: {printable(names)}: {printable(reason)}.{detail}", style="yellow"))
    return Group(*parts)


def _remaining(seconds: float) -> str:
    return "now" if seconds <= 0 else f"in {seconds:.0f} s" if seconds < 120 else f"in {seconds / 60:.0f} min"


# ---- stopping


def _stop_all() -> int:
    for server in running_servers():
        _end(server, server.source)
    return 0


def _stop(name: str) -> int:
    """Stop the server of a pid, an address, or a single model; else unload the model. Raises ConchError."""
    servers: dict[RunningServer, set[str]] = {}
    for server in running_servers():
        if name in (str(server.pid), server.http, server.url):
            _end(server, server.source)
            return 0
        with suppress(ConchError):
            rows = _asked(server, "/v2/repository/index", b'{"ready": true}')
            servers[server] = {str(row["name"]) for row in rows}
    having = [server for server, models in servers.items() if name in models]
    alone = [server for server in having if servers[server] == {name}]
    if not having:
        hint = did_you_mean(name, sorted(set().union(*servers.values())))
        raise NotFound(f"'{name}' is not a loaded model or a server{hint}; conch ps lists them")
    if len(alone or having) > 1:
        places = ", ".join(f"{server.url} (pid {server.pid})" for server in alone or having)
        raise InvalidRequest(f"'{name}' is loaded more than once: name the server instead, by its pid: {places}")
    if alone:
        _end(alone[0], name)
    else:
        _unload(having[0], name)
    return 0


def _unload(server: RunningServer, name: str) -> None:
    try:
        _asked(server, f"/v2/repository/models/{quote(name, safe='')}/unload", b"{}")
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
    "Stop the server of a model; of a server with several models, unload one (with --model-control-mode=explicit). "
    "Requests in flight are answered before."
)
