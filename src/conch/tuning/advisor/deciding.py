"""Measure backends of an ONNX file against each other: a server for each, in a child process, on free ports."""

import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from conch.bench.durations import duration_text
from conch.errors import ConchError
from conch.tuning.advisor.advice import Advice, ModelAdvice
from conch.tuning.advisor.configuration import write_repository
from conch.tuning.advisor.decide import AdviceDecision, Reason
from conch.tuning.advisor.facts import AdvisedFigure, Demand, Failure, FigureSource, ModelForm
from conch.tuning.advisor.rules import AdvisedBackend
from conch.tuning.repository_client import ServerAccess, ServerUnreachable
from conch.tuning.settings import TrialSettings
from conch.tuning.trials.bench_meter import BenchMeter

_CANDIDATES = (AdvisedBackend.ONNXRUNTIME, AdvisedBackend.OPENVINO)
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 30.0
_PORT = re.compile(r"Started HTTPService at \S*:(\d+)")
_MAX_WINDOW_S = 30.0
_WARM_UP_S = 1.0
_START_S = 10.0  # of a server, at most, when the time is divided


def measure(advice: Advice, budget_s: float) -> Advice:
    """Return the advice with the backend that is best here, for a single ONNX file on CPUs. Raises Failure."""
    advised = advice.models[0]
    if len(advice.models) > 1 or advised.model.form is not ModelForm.ONNX or advised.gpus or advised.model.folder:
        raise Failure("--measure compares backends of a single ONNX file on CPUs; measure others with conch bench")
    window_s = min(budget_s / len(_CANDIDATES) - _START_S, _MAX_WINDOW_S)
    if window_s < 1:
        raise Failure(f"--measure needs at least {len(_CANDIDATES) * (_START_S + 1):g}s")
    times = {each: _p99_s(replace(advised, backend=each), advice, window_s) for each in _CANDIDATES}
    best = min(times, key=lambda each: times[each])
    slo = advice.demand.slo.get("latency")
    if slo is not None and times[best] > slo:
        raise Failure(
            f"latency:{duration_text(slo).replace(' ', '')} is impossible here: the P99 of {best} is "
            f"{duration_text(times[best])} [{FigureSource.MEASURED}], the best of {len(times)} backends"
        )
    rest = tuple(
        Reason(each, "measured", f"its P99 is {duration_text(times[each])} [{FigureSource.MEASURED}]")
        for each in times
        if each is not best
    )
    chosen = Reason(best, "measured", f"its P99 is the lowest [{FigureSource.MEASURED}]")
    detail = f"{window_s:g} s at {_load(advice.demand)}"
    figure = AdvisedFigure("latency P99", duration_text(times[best]), FigureSource.MEASURED, detail)
    decision = AdviceDecision(chosen, advised.decision.excluded, rest)
    changed = replace(advised, backend=best, decision=decision, figures=(*advised.figures, figure))
    return replace(advice, models=(changed,), notes=())


def _load(demand: Demand) -> str:
    return f"{demand.rate:g} requests/s" if demand.rate else f"concurrency {demand.in_flight}"


def _p99_s(advised: ModelAdvice, advice: Advice, window_s: float) -> float:
    """Serve and measure one candidate."""
    demand = advice.demand
    settings = TrialSettings(window_s=window_s, warm_up_s=_WARM_UP_S, rates=(demand.rate,) if demand.rate else ())
    with tempfile.TemporaryDirectory(prefix="conch-advise-") as folder:
        write_repository(replace(advice, models=(advised,)), Path(folder) / "models")
        with _server(Path(folder)) as url:
            try:
                reading = BenchMeter(ServerAccess(url), advised.model.name, settings).measure(
                    demand.rate or demand.in_flight, 1.0
                )
            except (ServerUnreachable, ConchError) as error:
                raise Failure(f"{advised.backend} cannot be measured: {error}") from None
    if "p99" not in reading.figures:
        raise Failure(f"{advised.backend} cannot be measured: {reading.failure}")
    return reading.figures["p99"]


def _is_ready(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run `conch serve` on the repository in a folder; yield its URL. Raises Failure."""
    log = folder / "server.log"
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    command = [sys.executable, "-m", "conch", "serve", f"--model-repository={folder / 'models'}", *ports]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"], stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (match := _PORT.search(log.read_text(errors="replace"))) is None or not _is_ready(match[1]):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"conch serve did not start: {log.read_text(errors='replace')[-500:].strip()}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{match[1]}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
