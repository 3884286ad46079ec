"""A real Prometheus in a separate process, with its API as the tests need it."""

import json
import math
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.debian import debian_environment, debian_tool

_TIMEOUT_S = 60
_CONFIGURATION = "global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}\nscrape_configs: {jobs}\n"


class Value(NamedTuple):
    """A series of the result of an instant query."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """Use as a context manager: inside, Prometheus is ready."""

    def __init__(
        self,
        folder: Path,
        *,
        jobs: Sequence[Mapping[str, Any]] = (),
        rules: str = "",
        interval: str = "1s",
        alertmanager: str = "",
    ) -> None:
        """Assign. `alertmanager` is a `host:port`.

        `jobs` are scrape configurations, `rules` is the text of a rule file, `folder` is for its data.
        """
        self.folder = folder
        self._jobs = jobs
        self._rules = rules
        self._interval = interval
        self._alertmanager = alertmanager
        self.port = 0
        self._process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def backfill(self, exposition: str) -> None:
        """Write samples with timestamps, in OpenMetrics form, to the data before the start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        samples = self.folder / "samples.txt"
        samples.write_text(exposition)
        command = [debian_tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", samples, self.folder / "data"]
        subprocess.run(command, check=True, capture_output=True, env=debian_environment(), timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        rules = self.folder / "rules.yaml"
        rules.write_text(self._rules)
        text = _CONFIGURATION.format(interval=self._interval, jobs=json.dumps(list(self._jobs)))
        configuration = self.folder / "prometheus.yaml"
        text += f"rule_files: [{rules}]\n" if self._rules else ""
        if self._alertmanager:
            text += f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{self._alertmanager}']}}]}}]}}\n"
        configuration.write_text(text)
        for attempt in range(3):
            self._start(configuration)
            if self._ready():
                return self
            self._process.kill()
            self._process.wait()
            assert attempt < 2, (self.folder / "prometheus.log").read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self, configuration: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]  # may be taken before Prometheus listens: then the start is repeated
        command = [
            debian_tool("prometheus"),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--storage.tsdb.retention.time=100y",
            "--log.level=warn",
        ]
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=debian_environment())

    def _ready(self) -> bool:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def get(self, path: str, **parameters: str | float) -> Any:
        """Return the data of an answer of the API. Raises ValueError with Prometheus's message."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {json.load(error)['error']}") from None

    def query(self, expression: str, at: float | None = None) -> list[Value]:
        """Return the series of an instant query, sorted by labels; that of a scalar has no labels."""
        data = self.get("query", query=expression, **({} if at is None else {"time": at}))
        if data["resultType"] == "scalar":
            return [Value({}, float(data["result"][1]))]
        values = [Value(series["metric"], float(series["value"][1])) for series in data["result"]]
        return sorted(values, key=lambda value: sorted(value.labels.items()))

    def until(self, expression: str, limit_s: float = _TIMEOUT_S) -> list[Value]:
        """Return the result of a query as soon as it has one that is not NaN."""
        deadline = time.monotonic() + limit_s
        while True:
            values = self.query(expression)
            if values and not any(math.isnan(value.value) for value in values):
                return values
            assert time.monotonic() < deadline, f"no result of {expression}"
            time.sleep(0.2)
