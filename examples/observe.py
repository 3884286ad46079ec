"""Observability in one command: a server under load, a limit crossed, the alert delivered, dashboards with data.

    python examples/observe.py            run until Ctrl-C
    python examples/observe.py --once     end after the last check; the exit status says whether all went well

Starts a server with the example models, Prometheus, Alertmanager, and `conch alerts receive`, which posts to a chat
service played by this program. Everything listens on loopback, on free ports.
"""

import argparse
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES / "clients"))

try:
    import openai
    import tritonclient.http as triton
    import yaml
    from chat import ask
    from detect import detect
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as error:
    sys.exit(
        f"observe.py: {error.name} is not installed; run: make observe, or: pip install -e '.[examples,monitoring]'"
    )

PROGRAMS = {"prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"}
MODEL, LIMIT = "detect", 2
ALERT = "ConchRequestRateAboveLimit"
START_TIMEOUT_S = 90
ALERT_TIMEOUT_S = 180

console = Console()
T = TypeVar("T")


class ObserveError(Exception):
    """A part of the demonstration did not do what it should."""


def find_programs() -> dict[str, str]:
    """Return the paths of Prometheus and Alertmanager. Raises ObserveError with the way to install them."""
    paths = {name: shutil.which(name) for name in PROGRAMS}
    paths["prometheus-alertmanager"] = paths["prometheus-alertmanager"] or shutil.which("alertmanager")
    if missing := [PROGRAMS[name] for name, path in paths.items() if not path]:
        raise ObserveError(
            f"this needs {' and '.join(missing)}; on Debian and Ubuntu: apt-get install {' '.join(missing)}, "
            "elsewhere: https://prometheus.io/download"
        )
    return {name: str(path) for name, path in paths.items()}


def free_ports(count: int) -> list[int]:
    """Return unused ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@contextmanager
def running(name: str, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file."""
    environment = {**os.environ, "NO_COLOR": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            console.print(f"[red]{name} does not stop[/]")
            process.kill()


def get(url: str) -> bytes:
    """Return the body of a GET."""
    with urllib.request.urlopen(url, timeout=10) as response:
        body: bytes = response.read()
        return body


def wait_for(what: str, attempt: Callable[[], T | None], timeout_s: float = START_TIMEOUT_S) -> T:
    """Return the first result of `attempt` that is not None. Raises ObserveError when the time is up."""
    deadline = time.monotonic() + timeout_s
    with console.status(what):
        while time.monotonic() < deadline:
            try:
                result = attempt()
            except (urllib.error.URLError, OSError):
                result = None
            if result is not None:
                return result
            time.sleep(0.2)
    raise ObserveError(f"{what}: not within {timeout_s:.0f} s")


class ChatService(ThreadingHTTPServer):
    """A chat service: each message is a POST."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Message)
        self.messages: Queue[dict[str, Any]] = Queue()


class _Message(BaseHTTPRequestHandler):
    server: ChatService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.put(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Load:
    """Requests of several threads until `stop`: pictures above the limit, and conversations."""

    def __init__(self, http: int) -> None:
        self._http = http
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._pictures, self._pictures, self._chat)
        ]
        self.started = time.monotonic()

    def start(self) -> None:
        """Send."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _pictures(self) -> None:
        picture = (EXAMPLES / "images" / "plate.jpg").read_bytes()
        with triton.InferenceServerClient(f"127.0.0.1:{self._http}") as client:
            while not self._stop.wait(0.3):
                detect(client, [picture], model=MODEL)

    def _chat(self) -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self._http}/v1", api_key="none") as client:
            while not self._stop.wait(3):
                for _ in ask(client, "What is Conch?"):
                    pass


class Stack:
    """All processes, with their files in one folder and their ports."""

    def __init__(self, folder: Path, programs: dict[str, str]) -> None:
        self.folder = folder
        self._programs = programs
        names = ("http", "grpc", "metrics", "prometheus", "alertmanager", "receiver", "chat")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    def url(self, name: str) -> str:
        """Return the address of a part."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def start(self, stack: ExitStack) -> ChatService:
        """Write the configurations and start everything; `stack` stops it."""
        self._write_configurations()
        chat = ChatService(self.ports["chat"])
        threading.Thread(target=chat.serve_forever, daemon=True).start()
        stack.callback(chat.shutdown)
        processes = {}
        for name, command in self._commands().items():
            console.print(f"[bold]{name}[/] {' '.join(self._shortened(part) for part in command[1:])}", soft_wrap=True)
            log = self.folder / f"{name}.log"
            processes[name] = stack.enter_context(running(name, command, log))
        health = {
            "server": f"{self.url('http')}/v2/health/ready",
            "receiver": f"{self.url('receiver')}/-/healthy",
            "alertmanager": f"{self.url('alertmanager')}/-/ready",
            "prometheus": f"{self.url('prometheus')}/-/ready",
        }
        for name, url in health.items():
            wait_for(f"{name} starts", lambda url=url, name=name: self._healthy(name, processes[name], url))  # type: ignore[misc]
        return chat

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the result of a PromQL query. Raises ObserveError with Prometheus' message."""
        url = f"{self.url('prometheus')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            answer = json.loads(get(url))
        except urllib.error.HTTPError as error:
            raise ObserveError(f"Prometheus refuses {query}: {error.read().decode()}") from None
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def _healthy(self, name: str, process: subprocess.Popen[bytes], url: str) -> bool | None:
        if process.poll() is not None:
            tail = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
            raise ObserveError(f"{name} ended with status {process.returncode}:\n{tail}")
        return bool(get(url) or True)

    def _write_configurations(self) -> None:
        self._write("limits.yaml", {"limits": [{"model": MODEL, "requests_per_second": LIMIT}]})
        self._write("receiver.yaml", {"targets": {"chat": {"type": "generic", "url": f"{self.url('chat')}/"}}})
        webhook = f"--webhook={self.url('receiver')}/"
        conch("rules", "alertmanager", webhook, f"--output={self.folder / 'alertmanager.yml'}")
        conch("rules", "prometheus", f"--output={self.folder / 'rules.yaml'}")
        self._write(
            "prometheus.yml",
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yaml"],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self._target("alertmanager")]}]}]},
                "scrape_configs": [
                    {"job_name": "conch", "static_configs": [{"targets": [self._target("metrics")]}]},
                    {"job_name": "alerts", "static_configs": [{"targets": [self._target("receiver")]}]},
                ],
            },
        )

    def _commands(self) -> dict[str, list[str]]:
        serve = [f"--model-repository={EXAMPLES / 'models'}", f"--limits-file={self.folder / 'limits.yaml'}"]
        for name in ("http", "grpc", "metrics"):
            serve += [f"--{name}-address=127.0.0.1", f"--{name}-port={self.ports[name]}"]
        receive = [f"--config={self.folder / 'receiver.yaml'}", f"--queue={self.folder / 'queue'}"]
        receive.append(f"--port={self.ports['receiver']}")
        return {
            "server": [sys.executable, "-m", "conch", "serve", *serve],
            "receiver": [sys.executable, "-m", "conch", "alerts", "receive", *receive],
            "alertmanager": [
                self._programs["prometheus-alertmanager"],
                f"--config.file={self.folder / 'alertmanager.yml'}",
                f"--storage.path={self.folder / 'alertmanager'}",
                f"--web.listen-address={self._target('alertmanager')}",
                "--cluster.listen-address=",
            ],
            "prometheus": [
                self._programs["prometheus"],
                f"--config.file={self.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'prometheus'}",
                f"--web.listen-address={self._target('prometheus')}",
            ],
        }

    def _target(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(yaml.safe_dump(document, sort_keys=False))

    def _shortened(self, part: str) -> str:
        return part.replace(f"{self.folder}/", "").replace(f"{EXAMPLES.parent}/", "")


def conch(*arguments: str) -> str:
    """Return the output of a command of Conch. Raises ObserveError with its message."""
    done = subprocess.run([sys.executable, "-m", "conch", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ObserveError(f"conch {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout


def wait_for_alert(stack: Stack, chat: ChatService, load: Load) -> None:
    """Show the stages of the alert, from the measured rate to the message."""
    console.print(f"\nThe limit of model [bold]{MODEL}[/] is {LIMIT} requests per second. Sending more …")
    load.start()
    crossed = f'conch_request_rate{{model="{MODEL}"}} > min without (enforced) (conch_request_rate_limit)'
    (rate, *_) = wait_for("the rate exceeds the limit", lambda: stack.query(crossed) or None)
    began = time.monotonic()
    table = Table("after", "event", title="From the cause to the message")
    table.add_row("0 s", f"Prometheus sees {float(rate['value'][1]):.0f} requests per second")
    firing = f'ALERTS{{alertname="{ALERT}", alertstate="firing"}}'
    wait_for(f"{ALERT} fires", lambda: stack.query(firing) or None, ALERT_TIMEOUT_S)
    table.add_row(f"{time.monotonic() - began:.0f} s", f"{ALERT} fires")

    def delivered() -> str | None:
        while not chat.messages.empty():
            text = json.dumps(chat.messages.get())
            if ALERT in text:
                return text
        return None

    message = wait_for("the message arrives", delivered, ALERT_TIMEOUT_S)
    table.add_row(f"{time.monotonic() - began:.0f} s", "the chat service has the message")
    console.print(table)
    console.print("The message:")
    console.print_json(message)


def check_dashboards(stack: Stack) -> int:
    """Run all queries of all dashboards; print which panels have data. Returns the number of queries with data."""
    values = defaultdict(lambda: ".*", __rate_interval="30s", __interval="10s", __range="5m", objective="0.999")
    table = Table("dashboard", "panels", "with data", "without", title="Queries of all dashboards, run by Prometheus")
    with_data = 0
    for dashboard in json.loads(conch("dashboards", "--list", "--json")):
        empty, full = [], []
        for panel in dashboard["panels"]:
            queries = [Template(query) for query in panel["queries"]]
            filled = [
                query.substitute({name: values.get(name, ".*") for name in query.get_identifiers()})
                for query in queries
            ]
            series = [row for query in filled for row in stack.query(query)]
            numbers = [row for row in series if not math.isnan(float(row["value"][1]))]
            (full if numbers else empty).append(panel["title"])
        with_data += len(full)
        total = str(len(dashboard["panels"]))
        table.add_row(dashboard["title"], total, str(len(full)), ", ".join(empty))
    console.print(table)
    console.print("Panels of accelerators, tenants and failures have data where there are some.")
    return with_data


def observe(options: argparse.Namespace) -> None:
    """Run the demonstration. Raises ObserveError."""
    programs = find_programs()
    with TemporaryDirectory(prefix="conch-observe-") as folder, ExitStack() as exits:
        stack = Stack(Path(folder), programs)
        chat = stack.start(exits)
        load = Load(stack.ports["http"])
        exits.callback(load.stop)
        wait_for_alert(stack, chat, load)
        if not check_dashboards(stack):
            raise ObserveError("no query of a dashboard has data")
        if options.once:
            return
        console.print(
            f"\nPrometheus: [bold]{stack.url('prometheus')}/alerts[/], Alertmanager: "
            f"[bold]{stack.url('alertmanager')}[/], metrics: [bold]{stack.url('metrics')}/metrics[/]\n"
            "The load continues. Ctrl-C stops everything."
        )
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            console.print("stopping")


def main() -> int:
    """Run the demonstration; 0 if the alert was delivered and dashboards have data."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--once", action="store_true", help="stop after the last check")
    try:
        observe(arguments.parse_args())
    except ObserveError as error:
        console.print(f"[red]observe failed:[/] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("stopping")
    return 0


if __name__ == "__main__":
    sys.exit(main())
