"""A real `conch gpu-exporter` in a separate process."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 60
Series = dict[str, list[tuple[dict[str, str], float]]]


def series_of(text: str) -> Series:
    """Labels and values by the name of the series; the parser appends `_total` to names of counters without it."""
    by_name: Series = {}
    names = {re.split(r"[{ ]", line, maxsplit=1)[0] for line in text.splitlines()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in names else sample.name.removesuffix("_total")
            by_name.setdefault(name, []).append((sample.labels, sample.value))
    return by_name


class GpuExporter:
    """Use as a context manager: at the end it has stopped with status 0."""

    def __init__(
        self, environment: Mapping[str, str], *flags: str, log: Path, vendors: tuple[str, ...] = ("nvidia",)
    ) -> None:
        """Assign. Without `vendors` those are sampled that are present."""
        self.log = log
        self._environment = {**os.environ, **environment}
        self._flags = ("--address=127.0.0.1:0", "--collect-interval=100", *flags)
        self._flags += tuple(f"--vendor={vendor}" for vendor in vendors)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def series(self) -> Series:
        status, text = self.get("/metrics")
        assert status == 200
        return series_of(text)

    def until(self, condition: Callable[[Series], bool]) -> Series:
        """The first scrape for which the condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text
            series = self.series()
            if condition(series):
                return series
            time.sleep(0.05)
        raise AssertionError(self.text)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "conch", "gpu-exporter", *self._flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self._environment)
        deadline = time.monotonic() + TIMEOUT_S
        while not (match := re.search(r"Started GPU exporter at \S*:(\d+)", self.text)):
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.port = int(match[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        if error is None:
            assert status == 0, self.text
