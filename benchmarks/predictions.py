"""Predicts configurations from event logs, then measures them: how good the forecasts of conch whatif are.

`python -m benchmarks.predictions` takes 22 minutes on a machine with nothing else to do, and continues where it was
interrupted. For each family of configurations it records one event log under one load, and writes the forecasts of all
others to benchmarks/predictions.json before it measures the first of them with conch bench. `--draw` writes the picture
of docs/whatif.md, docs/images/predictions.svg, from that file. Where others use the machine, `--under "chrt -r 1"`
gives server, models and load precedence, and `--lock FILE` is held during each measurement.
"""

import fcntl
import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from math import log10
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from markupsafe import Markup

from benchmarks.harness.machine import CHECKOUT, machine
from conch.base.report.page import tag
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess
from conch.measure.twin.forecast import Change, Forecaster, Load
from conch.measure.twin.learning import learn
from conch.measure.why.source import fetch_log

DATA = CHECKOUT / "benchmarks" / "predictions.json"
_PICTURE = CHECKOUT / "docs" / "images" / "predictions.svg"
_WARM_UP_S = 1.5
_START_S = 60


@dataclass(frozen=True)
class Case:
    """One configuration under one load: requests a second, or clients that send one after the other."""

    rate: float = 0.0
    clients: int = 0
    changes: Mapping[str, Change] = field(default_factory=dict)  # by model

    @property
    def name(self) -> str:
        """Load and changes in words."""
        load = f"{self.clients} clients" if self.clients else f"{self.rate:g}/s"
        words = [
            f"{model}: {key.removesuffix('_us')} {value}"
            for model, change in self.changes.items()
            for key, value in asdict(change).items()
            if value is not None
        ]
        return ", ".join([load, *words])


@dataclass(frozen=True)
class Family:
    """Cases of one model, all predicted from the log of the first load. `parameters` are those of the model `timed`."""

    name: str
    model: str
    learnt_from: Case
    cases: Sequence[Case]
    parameters: Mapping[str, str] = field(default_factory=dict)
    start: Change = field(default_factory=Change)  # of the configuration while the log is recorded
    models: Sequence[Path] = ()
    images: bool = False


_TIMED = CHECKOUT / "benchmarks" / "repository" / "timed"
_EXAMPLES = CHECKOUT / "examples" / "models"


def _cases(model: str, rates: Sequence[float], clients: Sequence[int] = (), **values: Sequence[Any]) -> list[Case]:
    """Return all combinations."""
    loads = [*(Case(rate=rate) for rate in rates), *(Case(clients=count) for count in clients)]
    return [
        Case(load.rate, load.clients, {model: Change(**dict(zip(values, chosen, strict=True)))})
        for load in loads
        for chosen in product(*values.values())
    ]


FAMILIES = (
    Family(
        "batches", "timed", Case(rate=120), _cases("timed", (80, 180), instances=(1, 2, 3), delay_us=(0, 2000, 6000)),
        start=Change(delay_us=2000), models=[_TIMED],
    ),
    Family(
        "single", "timed", Case(rate=80), [
            *_cases("timed", (60, 110), instances=(1, 2, 3, 4)), *_cases("timed", (250,), instances=(2, 3, 4)),
            *_cases("timed", (130,), instances=(1,)),
        ], {"batch_ms": "6", "item_ms": "0", "spread": "0.3"}, start=Change(max_batch_size=1), models=[_TIMED],
    ),
    Family(
        "clients", "timed", Case(clients=6), [
            *_cases("timed", (), (1, 2, 8, 16), instances=(1, 2)), *_cases("timed", (), (8,), delay_us=(0, 5000)),
        ], start=Change(delay_us=1000), models=[_TIMED],
    ),
    Family(
        "computing", "timed", Case(rate=60), [
            *_cases("timed", (40, 80, 120), instances=(1, 2)), *_cases("timed", (80, 120), instances=(3,)),
        ], {"batch_ms": "4", "item_ms": "0", "computes": "true"}, start=Change(max_batch_size=1), models=[_TIMED],
    ),
    Family(
        "DenseNet", "densenet_onnx", Case(rate=6), _cases("densenet_onnx", (4, 8), (1, 3)),
        models=[_EXAMPLES / "densenet_onnx"],
    ),
    Family(
        "digits", "digits", Case(rate=200), _cases("digits", (100, 400), delay_us=(0, 1000, 3000)),
        models=[_EXAMPLES / "digits"],
    ),
    Family(
        "pipeline", "detect", Case(rate=8), [
            *_cases("detect", (5, 12), (1,)), *_cases("preprocess", (12,), (4,), instances=(2,)),
        ],
        models=[_EXAMPLES / name for name in ("detect", "preprocess", "detector", "postprocess")], images=True,
    ),
)  # fmt: skip


class _Server:
    """A server with the models of a family."""

    def __init__(self, repository: Path, family: Family, under: Sequence[str]) -> None:
        self._family = family
        self._under = under
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [
                *under, sys.executable, "-m", "conch", "serve", f"--model-repository={repository}",
                f"--http-port={self.port}", "--grpc-port=0", "--metrics-port=0", "--openai-port=0",
                "--model-control-mode=explicit", "--load-model=*",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.client = RepositoryClient(ServerAccess(f"http://127.0.0.1:{self.port}"))
        if not self.client.wait_until_live(_START_S):
            raise RuntimeError("the server does not start")
        deadline = time.monotonic() + _START_S
        while not self.client.is_ready(family.model):
            if time.monotonic() > deadline:
                raise RuntimeError(f"model {family.model} does not start")
            time.sleep(0.2)
        self._documents = {path.name: self.client.config(path.name) for path in family.models}

    def load(self, changes: Mapping[str, Change]) -> None:
        """Load the models with changes."""
        for name, original in self._documents.items():
            document: dict[str, Any] = json.loads(json.dumps(original))
            if name == self._family.model:
                for key, value in self._family.parameters.items():
                    document["parameters"][key] = {"string_value": value}
                _change(document, self._family.start)
            _change(document, changes.get(name, Change()))
            if document != original or name in changes:
                self.client.load(name, document)

    def bench(self, case: Case, seconds: float, scratch: Path) -> dict[str, float]:
        """Measure a load; latencies are ns from when a request was sent, and `server_p99` is that of the event log."""
        load = ["--concurrency", str(case.clients)] if case.clients else ["--rate", f"{case.rate:g}"]
        images = ["--images", str(CHECKOUT / "examples" / "images")] if self._family.images else []
        output = scratch / "bench.json"
        command = [
            *self._under, sys.executable, "-m", "conch", "bench", f"127.0.0.1:{self.port}", self._family.model, *load,
            *images, "--duration", f"{seconds}s", "--warm-up", f"{_WARM_UP_S}s", "--json", str(output),
        ]  # fmt: skip
        output.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not output.exists():
            raise RuntimeError(f"conch bench failed: {done.stderr or done.stdout}")
        (measured,) = json.loads(output.read_text())["measurements"]
        percentiles = measured["service_latency"]["percentiles"]
        latencies = {f"p{percent}": percentiles[percent]["value"] * 1e9 for percent in ("50", "95", "99")}
        log = fetch_log(f"http://127.0.0.1:{self.port}", seconds)
        latency = learn(log, self._family.model).requests.latency
        latencies["server_p99"] = float(np.percentile(latency[latency > 0], 99))
        return latencies | {"throughput": measured["throughput"]["value"], "requests": measured["requests"]}


def _change(document: dict[str, Any], change: Change) -> None:
    """Write a change into a configuration document."""
    if change.instances is not None:
        document["instance_group"] = [{**document["instance_group"][0], "count": change.instances}]
    if change.max_batch_size is not None:
        document["max_batch_size"] = change.max_batch_size
    if change.delay_us is not None:
        batching = document.setdefault("dynamic_batching", {})
        batching["max_queue_delay_microseconds"] = str(change.delay_us)


@contextmanager
def _serving(family: Family, under: Sequence[str]) -> Iterator[tuple[_Server, Path]]:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for model in family.models:
            shutil.copytree(model, scratch / "models" / model.name)
        server = _Server(scratch / "models", family, under)
        try:
            yield server, scratch
        finally:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)


def _predict(server: _Server, family: Family, timing: "_Timing", scratch: Path) -> list[dict[str, Any]]:
    """Record a log and forecast all cases."""
    with _held(timing.lock):
        server.load({})
        server.bench(family.learnt_from, timing.learn_s, scratch)
    log = fetch_log(f"http://127.0.0.1:{server.port}", timing.learn_s)
    forecaster = Forecaster(learn(log, family.model), run_s=timing.seconds)
    forecasts = []
    for case in family.cases:
        load = Load(clients=case.clients) if case.clients else Load(rate=case.rate)
        forecast = forecaster.forecast(case.changes, load)
        forecasts.append(
            {
                "case": case.name,
                "predicted_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "predicted": {
                    name: asdict(value) for name in ("p50", "p95", "p99", "throughput")
                    if (value := getattr(forecast, name))
                },
                "notes": forecast.notes,
            }
        )  # fmt: skip
    return forecasts


@dataclass(frozen=True)
class _Timing:
    """How long is measured and learnt from, under which command, and the file that is locked meanwhile."""

    seconds: float
    learn_s: float
    under: Sequence[str]
    lock: Path | None


@contextmanager
def _held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measure(families: Sequence[Family], data: dict[str, Any], timing: _Timing) -> None:
    for family in families:
        kept = data["families"].get(family.name)
        if kept and all("measured" in row for row in kept["cases"]):
            continue
        with _serving(family, timing.under) as (server, scratch):
            if not kept:
                cases = _predict(server, family, timing, scratch)
                kept = data["families"][family.name] = {"learnt_from": family.learnt_from.name, "cases": cases}
                _write(data)
            for case, row in zip(family.cases, kept["cases"], strict=True):
                if "measured" not in row:
                    with _held(timing.lock):
                        server.load(case.changes)
                        row["measured"] = server.bench(case, timing.seconds, scratch)
                    _write(data)
                    told = f"{row['predicted']['p99']['value'] / 1e6:.1f} ms"
                    print(f"{family.name}: {case.name}: P99 {row['measured']['p99'] / 1e6:.1f} ms, {told} predicted")


def _write(data: Mapping[str, Any]) -> None:
    DATA.write_text(json.dumps(data, indent=1) + "\n")


def summary(data: Mapping[str, Any], measure: str = "p99") -> dict[str, tuple[int, float, float]]:
    """Return, by family and for all, the number of cases, the median error of P99, and the share within intervals.

    `measure` is "p99" for what clients measured, "server_p99" for what the server recorded.
    """
    rows = {name: [row for row in kept["cases"] if "measured" in row] for name, kept in data["families"].items()}
    rows["all"] = [row for cases in rows.values() for row in cases]
    by_family = {}
    for name, cases in rows.items():
        if cases:
            pairs = [(row["predicted"]["p99"], row["measured"][measure]) for row in cases]
            error = median(abs(predicted["value"] / measured - 1) for predicted, measured in pairs)
            within = sum(predicted["low"] <= measured <= predicted["high"] for predicted, measured in pairs)
            by_family[name] = len(cases), error, within / len(cases)
    return by_family


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 460, 70, 50, 20  # pixels
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.axis{stroke:#57606a}.grid{stroke:#d0d7de}
.equal{stroke:#57606a;stroke-dasharray:3 3}.case{stroke:#0a8f82;stroke-width:1.5}.dot{fill:#0a8f82}
.out .case{stroke:#b7791f}.out .dot{fill:#b7791f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}
.axis,.equal{stroke:#9198a1}.grid{stroke:#30363d}}"""


def draw(data: Mapping[str, Any]) -> str:
    """Return the picture: measured P99 across, forecast and interval up, both logarithmic."""
    rows = [row for kept in data["families"].values() for row in kept["cases"] if "measured" in row]
    values = [value for row in rows for value in (row["measured"]["p99"], *row["predicted"]["p99"].values())]
    low, high = log10(min(values) / 1e6) - 0.05, log10(max(values) / 1e6) + 0.05
    side = _HEIGHT - _BOTTOM - _TOP

    def across(ns: float) -> float:
        return _LEFT + (log10(ns / 1e6) - low) / (high - low) * (_WIDTH - _LEFT - 20)

    def up(ns: float) -> float:
        return _TOP + side - (log10(ns / 1e6) - low) / (high - low) * side

    parts = [tag("style", Markup(_STYLE))]
    ticks = [number * 10**power for power in range(-2, 6) for number in (1, 2, 5)]
    for ms in (tick for tick in ticks if low <= log10(tick) <= high):
        x, y = f"{across(ms * 1e6):.1f}", f"{up(ms * 1e6):.1f}"
        parts += [
            tag("line", x1=x, x2=x, y1=_TOP, y2=_TOP + side, class_="grid"),
            tag("line", x1=_LEFT, x2=_WIDTH - 20, y1=y, y2=y, class_="grid"),
            tag("text", f"{ms:g}", x=x, y=_TOP + side + 18, text_anchor="middle"),
            tag("text", f"{ms:g}", x=_LEFT - 8, y=float(y) + 4, text_anchor="end"),
        ]
    ends = [10**low * 1e6, 10**high * 1e6]
    parts += [
        tag("line", x1=f"{across(ends[0]):.1f}", x2=f"{across(ends[1]):.1f}", y1=f"{up(ends[0]):.1f}",
            y2=f"{up(ends[1]):.1f}", class_="equal"),
        tag("text", "P99 measured by conch bench, ms", x=(_WIDTH + _LEFT) / 2, y=_HEIGHT - 8, text_anchor="middle"),
        tag("text", "forecast, with its 90 % interval, ms", x=-(_TOP + side / 2), y=18, text_anchor="middle",
            transform="rotate(-90)"),
    ]  # fmt: skip
    for row in rows:
        predicted, measured = row["predicted"]["p99"], row["measured"]["p99"]
        x = f"{across(measured):.1f}"
        within = predicted["low"] <= measured <= predicted["high"]
        bar = tag(
            "line", x1=x, x2=x, y1=f"{up(predicted['low']):.1f}", y2=f"{up(predicted['high']):.1f}", class_="case"
        )
        dot = tag("circle", cx=x, cy=f"{up(predicted['value']):.1f}", r=3.5, class_="dot")
        parts.append(tag("g", tag("title", row["case"]), bar, dot, class_="in" if within else "out"))
    label = f"Forecasts of P99 against measurements of {len(rows)} configurations"
    xmlns, view = "http://www.w3.org/2000/svg", f"0 0 {_WIDTH} {_HEIGHT}"
    size = {"width": _WIDTH, "height": _HEIGHT}
    return f"{tag('svg', *parts, xmlns=xmlns, role='img', aria_label=label, viewBox=view, **size)}\n"


def main(
    seconds: float = 12.0,
    learn_seconds: float = 25.0,
    only: Annotated[str, typer.Option(help="families, separated by commas")] = "",
    cases: Annotated[int, typer.Option(help="at most N of each family, evenly chosen", metavar="N")] = 100,
    fresh: Annotated[bool, typer.Option("--fresh", help="discard earlier measurements")] = False,
    under: Annotated[str, typer.Option(help="command that runs server and load, such as 'chrt -r 1'")] = "",
    lock: Annotated[Path | None, typer.Option(help="file to lock during a measurement")] = None,
    picture: Annotated[bool, typer.Option("--draw", help="write the picture only")] = False,
) -> None:
    """Predict, measure, and print the errors."""
    data: dict[str, Any] = {"machine": machine(), "window_s": seconds, "families": {}}
    if DATA.exists() and not fresh:
        data = json.loads(DATA.read_text())
    if not picture:
        timing = _Timing(seconds, learn_seconds, shlex.split(under), lock)
        chosen = [family for family in FAMILIES if not only or family.name in only.split(",")]
        _measure([_fewer(family, cases) for family in chosen], data, timing)
    for measure in ("p99", "server_p99"):
        for name, (count, error, within) in summary(data, measure).items():
            print(f"{measure} {name}: {count} cases, median error {error:.1%}, {within:.0%} within the interval")
    _PICTURE.write_text(draw(data), "utf-8")


def _fewer(family: Family, count: int) -> Family:
    step = max(len(family.cases) / count, 1.0)
    chosen = [family.cases[int(number * step)] for number in range(min(count, len(family.cases)))]
    return Family(**{**vars(family), "cases": chosen})


if __name__ == "__main__":
    typer.run(main)
