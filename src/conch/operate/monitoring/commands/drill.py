"""`conch drill`: make an alert fire on a running system, and measure the time from the cause to the webhook."""

import json
import sys
import threading
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.say import say
from conch.base.errors import Unavailable
from conch.base.http.credentials import check_no_credentials
from conch.base.http.prometheus import ask_prometheus
from conch.base.suggestion import did_you_mean

if TYPE_CHECKING:
    from conch.operate.monitoring.commands.drill_causes import LoadCause

_FAILURE = 1
_POLL_S = 0.25
_MARGIN_S = 300  # for scrapes, evaluations and the waits of Alertmanager
_SCRAPE_TIMEOUT_S = 120
_LISTEN = "127.0.0.1:9098"
_DESCRIPTION = """\
Make an alert fire, and measure the time from its cause to the webhook of Alertmanager. The cause is, by default, the
series of the alert's proof, with the label drill="true", of a model, accelerator or target 'conch-drill' that does not
exist: Prometheus scrapes them from this command, which the operator allows by a scrape job for --listen. Its messages
go to the usual receivers, too, and have 'conch-drill' in their text. With --load the cause is load on a model, with
--command a fault, such as the end of a process. Alertmanager must send its webhook to --listen, too; --config prints
both entries.
"""


class DrillError(Exception):
    """A drill cannot begin, or did not get to its end. The message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class DrillStage:
    """A step on the way from the cause to the webhook, with its time after the cause in seconds."""

    name: str
    after_s: float


def drill(arguments: Sequence[str]) -> int:
    """Run a drill; return the exit status: 0 after the webhook, 1 without, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    if given.config:
        sys.stdout.write(_configuration(given.listen))
        return 0
    if given.name is None:
        _parser().error("name an alert; conch rules list has the alerts of Conch")
    stages: list[DrillStage] = []
    failure = ""
    running = _Drill(given, stages)
    try:
        running.run()
    except (DrillError, OSError, ValueError) as error:
        failure = str(error)
    except KeyboardInterrupt:
        failure = "interrupted"
    if running.load is not None and (failed := running.load.failures()):
        if failure:
            failure += f"; {failed}"
        else:
            _warn(failed)
    _report(given, stages, failure, running.load)
    return _FAILURE if failure else 0


class _Drill:
    def __init__(self, given: Namespace, stages: list[DrillStage]) -> None:
        self._given = given
        self._stages = stages
        self._began_at = 0.0
        self.load: LoadCause | None = None

    def run(self) -> None:
        """Prepare, apply the cause, and follow the alert. Raises DrillError, OSError or ValueError."""
        rule = self._rule()
        name = rule["name"]
        hold_s = rule.get("duration", 0)
        if hold_s and self._given.timeout is not None and self._given.timeout <= hold_s:
            raise DrillError(
                f"--timeout {self._given.timeout:g} is not longer than the hold time of {name}, {hold_s:g} s,"
                " before which it does not fire"
            )
        limit_s = self._given.timeout or rule.get("duration", 0) + self._proof_s(name) + _MARGIN_S
        known = {_identity(alert) for alert in self._alerts(name)}
        if known and (self._given.load or self._given.command):
            raise DrillError(f"{name} is already active; wait until it is resolved, or a drill measures nothing")
        host, port = self._given.listen
        try:
            listener = DrillListener(host, port, name)
        except OSError as error:
            raise DrillError(f"cannot listen on {host}:{port}: {error.strerror}; --listen chooses another") from error
        listener.start()
        try:
            cause = self._begin(listener, name)
            try:
                self._follow(listener, name, known, limit_s, hold_s)
            finally:
                if cause is not None:
                    cause.stop()
        finally:
            listener.stop()

    def _rule(self) -> dict[str, Any]:
        """Return the alerting rule of Prometheus that is meant."""
        groups = self._prometheus("rules", type="alert")["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        wanted = _normal(self._given.name)
        for name, rule in rules.items():
            if wanted in (_normal(name), _normal(name.removeprefix("Conch"))):
                return dict(rule)
        name = self._given.name
        hint = did_you_mean(name, rules, "; conch rules prometheus writes the alerts of Conch", cutoff=0.4)
        raise DrillError(f"Prometheus at {self._given.prometheus} has no alert '{name}'{hint}")

    def _proof_s(self, name: str) -> float:
        return 0 if self._given.load or self._given.command else _proof(name).at_s

    def _begin(self, listener: Any, name: str) -> Any:
        """Apply the cause and note the time; return what is to be stopped."""
        from conch.operate.monitoring.commands import drill_causes as causes

        cause: Any = None
        if self._given.load:
            cause = self.load = causes.LoadCause(self._given.url, self._given.load, self._given.concurrency)
        elif self._given.command:
            cause = causes.CommandCause(self._given.command, self._given.every, _warn)
        else:
            from conch.domain.metrics.catalog import all_metrics
            from conch.operate.monitoring.rules.known_metrics import MetricTable

            proof, table = _proof(name), MetricTable(all_metrics())
            if not causes.can_be_scraped(proof):
                raise DrillError(f"{name} needs a target that is down: use --command to stop one")
            self._began_at = time.monotonic()
            listener.exposition = lambda: causes.live_exposition(proof, time.monotonic() - self._began_at, table)
            return None
        self._began_at = time.monotonic()
        cause.start()
        return cause

    def _follow(self, listener: Any, name: str, known: set[str], limit_s: float, hold_s: float) -> None:
        """Record the stages of the alert until the webhook arrives."""
        sampled = not (self._given.load or self._given.command)
        seen: set[str] = set()
        active = False
        while True:
            elapsed_s = time.monotonic() - self._began_at
            if sampled and listener.scraped_at is not None and "sample scraped" not in seen:
                self._note(seen, "sample scraped", listener.scraped_at)
            with suppress(DrillError):
                fresh = [alert for alert in self._alerts(name) if _identity(alert) not in known]
                active = bool(fresh)
                for alert in fresh:
                    # The webhook can arrive while the state of the alert is read.
                    self._note(seen, f"alert {alert['state']}", min(time.monotonic(), listener.received_at or inf))
            if listener.received_at is not None:
                self._note(seen, "alert firing", listener.received_at)
                self._note(seen, "webhook received", listener.received_at)
                return
            if sampled and listener.scraped_at is None and elapsed_s > min(limit_s, _SCRAPE_TIMEOUT_S):
                host, port = self._given.listen
                raise DrillError(
                    f"Prometheus does not scrape {host}:{port}; conch drill --config prints the job that it needs"
                )
            if elapsed_s > limit_s:
                raise DrillError(_missing(seen, name, limit_s, hold_s, active=active))
            listener.received.wait(_POLL_S)

    def _note(self, seen: set[str], stage: str, at: float) -> None:
        if stage not in seen:
            seen.add(stage)
            self._stages.append(DrillStage(stage, at - self._began_at))
            if not self._given.json:
                print(f"{at - self._began_at:8.1f} s  {stage}", file=sys.stderr, flush=True)

    def _alerts(self, name: str) -> list[dict[str, Any]]:
        alerts = self._prometheus("alerts")["alerts"]
        return [alert for alert in alerts if alert["labels"].get("alertname") == name]

    def _prometheus(self, path: str, **parameters: str) -> Any:
        url = self._given.prometheus
        try:
            return ask_prometheus(url, path, parameters)
        except Unavailable as error:
            raise DrillError(f"cannot ask Prometheus at {url}: {error.message}; --prometheus is its URL") from None


def _proof(name: str) -> Any:
    """Return the series that fire an alert of this project. Raises DrillError for others."""
    from conch.operate.monitoring.rules.shipped_alerts import rule_groups
    from conch.operate.monitoring.rules.thresholds import Thresholds

    for group in rule_groups(Thresholds()):
        for alert in group.alerts:
            if alert.name == name:
                return next(proof for proof in alert.proofs if proof.fires)
    raise DrillError(f"'{name}' is not an alert of Conch, so there are no samples for it; use --load or --command")


def _missing(seen: set[str], name: str, limit_s: float, hold_s: float, *, active: bool) -> str:
    within = f"within {limit_s:.0f} s"
    if "alert firing" in seen:
        return f"no webhook {within}: check the route of Alertmanager to --listen, and its group_wait"
    if "alert pending" in seen and active:
        return f"{name} is pending, and did not fire {within}: its hold time is {hold_s:g} s; give a longer --timeout"
    if "alert pending" in seen:
        return f"{name} did not fire {within}: the condition ended before its hold time"
    return f"{name} was never pending {within}: the cause does not fulfil the condition"


def _report(given: Namespace, stages: Sequence[DrillStage], failure: str, load: "LoadCause | None") -> None:
    if given.json:
        document = {
            "alert": given.name,
            "cause": "load" if given.load else "command" if given.command else "sample",
            "delivered": not failure,
            "stages": [{"stage": stage.name, "after_s": round(stage.after_s, 3)} for stage in stages],
            **({} if load is None else {"requests": dict(load.outcomes)}),
            **({"failure": failure} if failure else {}),
        }
        print(json.dumps(document, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "after the cause", "since the stage before", box=None, pad_edge=False, header_style="bold")
    before_s = 0.0
    for stage in stages:
        table.add_row(stage.name, f"{stage.after_s:.1f} s", f"{stage.after_s - before_s:.1f} s")
        before_s = stage.after_s
    if stages:
        Console(highlight=False).print(table)
    if failure:
        say(f"conch drill: {failure}")


def _configuration(listen: tuple[str, int]) -> str:
    address = f"{listen[0]}:{listen[1]}"
    return (
        "# prometheus.yml\n"
        "scrape_configs:\n"
        "  - job_name: conch-drill\n"
        f"    static_configs: [{{targets: ['{address}']}}]\n"
        "\n# alertmanager.yml\n"
        "route:\n"
        "  routes:\n"
        "    - receiver: conch-drill\n"
        "      continue: true\n"
        "receivers:\n"
        "  - name: conch-drill\n"
        f"    webhook_configs: [{{url: 'http://{address}/'}}]\n"
    )


def _parser() -> CommandParser:
    parser = CommandParser("conch drill", description=_DESCRIPTION)
    parser.add_argument("name", metavar="NAME", nargs="?", help="alert, such as ConchQueueTimeHigh or queue-time-high")
    parser.add_argument("--config", action="store_true", help="print what Prometheus and Alertmanager need for drills")
    parser.add_argument("--prometheus", metavar="URL", type=_url, default="http://127.0.0.1:9090", help="%(default)s")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        default=_LISTEN,
        help="where Prometheus scrapes the samples and Alertmanager sends the webhook (default: %(default)s)",
    )
    cause = parser.add_mutually_exclusive_group()
    cause.add_argument("--load", metavar="MODEL", help="the cause is load on this model")
    cause.add_argument("--command", metavar="COMMAND", help="the cause is this command, such as 'kill -9 4242'")
    parser.add_argument("--url", type=_url, default="http://127.0.0.1:8000", help="server for --load (%(default)s)")
    parser.add_argument("--concurrency", metavar="N", type=int, default=16, help="for --load (default: %(default)s)")
    parser.add_argument("--every", metavar="SECONDS", type=float, help="repeat --command")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="default: what the alert needs, and 5 minutes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"'{text}' is not HOST:PORT")
    return host, int(port)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ArgumentTypeError(f"'{text}' is not a URL; it must begin with http:// or https://")
    try:
        check_no_credentials(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _identity(alert: dict[str, Any]) -> str:
    return json.dumps(alert["labels"], sort_keys=True)


def _normal(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _warn(text: str) -> None:
    say(f"conch drill: {text}")


_MAX_BODY_BYTES = 4 << 20


class DrillListener:
    """An HTTP server on one address: `GET /metrics` has the samples, `POST /` receives webhooks."""

    def __init__(self, host: str, port: int, alert: str) -> None:
        """Bind the address. Raises OSError."""
        self._alert = alert
        self.exposition: Callable[[], str] = str
        self.scraped_at: float | None = None  # of the first scrape with samples, on the monotonic clock
        self.received_at: float | None = None  # of the first webhook with the alert firing
        self.received = threading.Event()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Release the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def scrape(self) -> bytes:
        """Return the text of a scrape, and note the first one with samples."""
        text = self.exposition()
        if text and self.scraped_at is None:
            self.scraped_at = time.monotonic()
        return text.encode()

    def accept(self, body: bytes) -> bool:
        """Record a webhook; return whether it is one of Alertmanager."""
        try:
            document: Any = json.loads(body)
            alerts = document["alerts"]
            firing = [alert for alert in alerts if alert["status"] == "firing" and self._is_meant(alert)]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        if firing and self.received_at is None:
            self.received_at = time.monotonic()
            self.received.set()
        return True

    def _is_meant(self, alert: dict[str, Any]) -> bool:
        return bool(alert["labels"]["alertname"] == self._alert)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/metrics"
                self._answer(200 if known else 404, listener.scrape() if known else b"not found\n")

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                valid = 0 < length <= _MAX_BODY_BYTES and listener.accept(self.rfile.read(length))
                self._answer(200 if valid else 400, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the base class
                del format, args

        return Handler
