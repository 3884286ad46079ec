"""What makes an alert fire in a drill: the series of its proof for a model that does not exist, load, or a command."""

import json
import re
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from conch.base.http.client import HttpClient, HttpSettings, RequestFailed
from conch.operate.monitoring.promql import Selector, parse
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.rule import InputSeries, Proof

DRILL_NAME = "conch-drill"

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_SEGMENT = re.compile(rf"(?P<first>_|{_NUMBER})(?P<step>(?=[+-]){_NUMBER})?(?:x(?P<count>\d+))?")
_OF_TARGET = ("job", "instance")  # Prometheus adds the drill's
_SUBJECTS = ("model", "model_name", "name", "source", "target", "vendor")  # named in the messages of alerts
_DRILL_LABEL = {"drill": "true"}


def sample_values(values: str) -> list[float | None]:
    """Return the samples of promtool's notation, such as `0+5x3 _x2 7`; None for a missing one."""
    samples: list[float | None] = []
    for word in values.split():
        match = _SEGMENT.fullmatch(word)
        if match is None:
            raise ValueError(f"'{word}' is not a sequence of samples")
        count = int(match["count"] or 0)
        if match["first"] == "_":
            samples += [None] * max(count, 1)
        else:
            first, step = float(match["first"]), float(match["step"] or 0)
            samples += [first + step * index for index in range(count + 1)]
    return samples


def live_exposition(proof: Proof, elapsed_s: float, table: MetricTable) -> str:
    """Return the text of a scrape at a time after the start of a proof. Its series are those of a drill."""
    lines = []
    for series in proof.series:
        value = _value_at(series, elapsed_s / proof.interval_s, table)
        if value is not None:
            lines.append(f"{live_name(series)} {value!r}\n")
    return "".join(lines)


def can_be_scraped(proof: Proof) -> bool:
    """Return whether a target can expose the series of a proof: `up` is Prometheus's own."""
    return not any(_selector(series).metric == "up" for series in proof.series)


def _selector(series: InputSeries) -> Selector:
    selector = parse(series.series)
    assert isinstance(selector, Selector)
    return selector


def live_name(series: InputSeries) -> str:
    """Return the name of a series with the labels of a drill: `drill`, and the name of what does not exist."""
    selector = _selector(series)
    labels = {matcher.label: matcher.value for matcher in selector.matchers if matcher.label not in _OF_TARGET}
    labels |= {name: DRILL_NAME for name in _SUBJECTS if name in labels} | _DRILL_LABEL
    pairs = [f'{name}="{value}"' for name, value in labels.items()]
    return f"{selector.metric}{{{','.join(pairs)}}}"


def _value_at(series: InputSeries, position: float, table: MetricTable) -> float | None:
    """Return the value between two samples: counters grow evenly, gauges keep their value."""
    samples = sample_values(series.values)
    index = min(int(position), len(samples) - 1)
    value = samples[index]
    name = _selector(series).metric or ""
    metric = table.find(name)
    if value is None or not (metric.is_counter if metric else name.endswith("_total")):
        return value
    low = max(min(index, len(samples) - 2), 0)
    before, after = samples[low], samples[min(low + 1, len(samples) - 1)]
    slope = after - before if before is not None and after is not None else 0
    return value + slope * (position - index)


_REQUEST_TIMEOUT_S = 30
_COMMAND_TIMEOUT_S = 60
_PAUSE_AFTER_ERROR_S = 0.1
NO_RESPONSE = "none"


class LoadCause:
    """Requests with zeros to a model, from a number of threads, until it is stopped."""

    def __init__(self, url: str, model: str, concurrency: int) -> None:
        """`url` is the HTTP port of a server."""
        self._url = url.rstrip("/")
        self._client = HttpClient(HttpSettings.once(_REQUEST_TIMEOUT_S, max_redirects=0, environment_proxies=False))
        self._model = model
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(concurrency)]
        self._body = b""
        self._lock = threading.Lock()
        self.outcomes = Counter[str]()  # requests by HTTP status; NO_RESPONSE for broken and refused connections

    def failures(self) -> str:
        """Return how many requests failed, and how; "" if none did."""
        with self._lock:
            outcomes = dict(self.outcomes)
        failed = {status: count for status, count in outcomes.items() if status != "200"}
        if not failed:
            return ""
        parts = [
            f"{count} without a response" if status == NO_RESPONSE else f"{count} with status {status}"
            for status, count in sorted(failed.items())
        ]
        hint = " (429 is the status of an enforced limit)" if "429" in failed else ""
        return f"{sum(failed.values())} of {sum(outcomes.values())} requests failed: {', '.join(parts)}{hint}"

    def start(self) -> None:
        """Read the model's inputs from the server, and begin to send. Raises ValueError."""
        try:
            with self._client.open("GET", f"{self._url}/v2/models/{self._model}") as response:
                inputs = self._inputs(response.status, response.read())
        except RequestFailed as error:
            raise ValueError(f"cannot ask the server at {self._url}: {error.cause}; --url is its URL") from error
        self._body = json.dumps({"inputs": [_zeros(tensor) for tensor in inputs]}).encode()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_REQUEST_TIMEOUT_S)

    def _inputs(self, status: int, text: bytes) -> Any:
        try:
            document = json.loads(text)
            if status == 200:
                return document["inputs"]
            reason = document["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{self._url} does not serve models (HTTP status {status}); --url is its URL") from None
        raise ValueError(f"model '{self._model}' at {self._url}: {reason}")

    def _send(self) -> None:
        url, headers = f"{self._url}/v2/models/{self._model}/infer", {"Content-Type": "application/json"}
        while not self._stopped.is_set():
            try:
                with self._client.open("POST", url, headers, self._body) as response:
                    response.read()
                self._count(str(response.status))
            except RequestFailed:
                # Refused and broken connections are part of what is drilled.
                self._count(NO_RESPONSE)
                time.sleep(_PAUSE_AFTER_ERROR_S)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


class CommandCause:
    """A command that causes a fault, once or repeatedly, until it is stopped."""

    def __init__(self, command: str, every_s: float | None, log: Callable[[str], None]) -> None:
        """`log` is called with what goes wrong in repetitions."""
        self._command = command
        self._every_s = every_s
        self._log = log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def start(self) -> None:
        """Run the command. Raises ValueError if it fails the first time."""
        if failure := self._run():
            raise ValueError(failure)
        if self._every_s is not None:
            self._thread.start()

    def stop(self) -> None:
        """Run it no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_COMMAND_TIMEOUT_S)

    def _repeat(self) -> None:
        while not self._stopped.wait(self._every_s):
            if failure := self._run():
                self._log(failure)

    def _run(self) -> str:
        try:
            result = subprocess.run(
                shlex.split(self._command), capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
            )
        except OSError as error:
            return f"--command '{self._command}' cannot run: {error.strerror}"
        except ValueError as error:
            return f"--command '{self._command}' is not valid: {error}"
        except subprocess.TimeoutExpired:
            return f"--command '{self._command}' did not end within {_COMMAND_TIMEOUT_S} s"
        if result.returncode == 0:
            return ""
        output = (result.stderr or result.stdout).strip()
        return f"--command '{self._command}' failed with exit status {result.returncode}" + (output and f": {output}")


def _zeros(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return an input of zeros, or of empty strings; unknown dimensions are 1."""
    shape = [max(int(size), 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    zero: Any = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [zero] * count}
