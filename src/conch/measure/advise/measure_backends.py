"""Measure backends and forms of a model against each other: a server for each, in a child process, on free ports."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conch.base.durations import duration_text
from conch.base.errors import ConchError
from conch.base.process.local_server import local_server
from conch.measure.advise.advice import Advice, ModelAdvice
from conch.measure.advise.advice_facts import CONFIGURED_FORMS, AdvisedFigure, Demand, Failure, FigureSource, ModelForm
from conch.measure.advise.configuration import write_repository
from conch.measure.advise.rules import MEASURED, AdviceDecision, AdvisedBackend, Reason
from conch.measure.tune.repository_client import ServerAccess, ServerUnreachable
from conch.measure.tune.trials import BenchMeter
from conch.measure.tune.tune_settings import TrialSettings

_ONNX_BACKENDS = (AdvisedBackend.ONNXRUNTIME, AdvisedBackend.OPENVINO)
_MAX_WINDOW_S = 30.0
_WARM_UP_S = 1.0
_START_S = 10.0  # of a server, at most, when the time is divided


def measure(advice: Advice, alternatives: Sequence[ModelAdvice], budget_s: float) -> Advice:
    """Return the advice with what has the lowest P99 here, of one model on CPUs. Raises Failure.

    Candidates are the backends of an ONNX file, and other forms of the model, each with its backend. Their answers are
    not compared.
    """
    if len(advice.models) > 1:
        raise Failure("--measure compares forms of one model, without --also; measure others with conch bench")
    candidates = [candidate for form in (advice.models[0], *alternatives) for candidate in _candidates(form)]
    if len(candidates) < 2:
        raise Failure(
            f"--measure has nothing to compare with '{advice.models[0].model.path.name}': it compares backends of an "
            "ONNX file, and forms of a model that --alternative names, such as model.xml"
        )
    window_s = min(budget_s / len(candidates) - _START_S, _MAX_WINDOW_S)
    if window_s < 1:
        raise Failure(
            f"--measure needs at least {len(candidates) * (_START_S + 1):g}s for {len(candidates)} candidates"
        )
    times = [_p99_s(candidate, advice, window_s) for candidate in candidates]
    ranked = sorted(zip(times, map(_label, candidates), candidates, strict=True), key=lambda row: row[0])
    time_s, label, best = ranked[0]
    slo = advice.demand.slo.get("latency")
    if slo is not None and time_s > slo:
        raise Failure(
            f"latency:{duration_text(slo).replace(' ', '')} is impossible here: the P99 of {label} is "
            f"{duration_text(time_s)} [{FigureSource.MEASURED}], the best of {len(ranked)}"
        )
    rest = tuple(
        Reason(other.backend, MEASURED, f"the P99 of {text} is {duration_text(slower)} [{FigureSource.MEASURED}]")
        for slower, text, other in ranked[1:]
    )
    chosen = Reason(best.backend, MEASURED, f"the P99 of {label} is the lowest [{FigureSource.MEASURED}]")
    detail = f"{window_s:.3g} s at {_load(advice.demand)}"
    figure = AdvisedFigure("latency P99", duration_text(time_s), FigureSource.MEASURED, detail)
    decision = AdviceDecision(chosen, best.decision.excluded, rest)
    changed = replace(best, decision=decision, figures=(*best.figures, figure))
    return replace(advice, models=(changed,), notes=("--measure compares latencies, not answers",))


def _candidates(advised: ModelAdvice) -> list[ModelAdvice]:
    """Return what can serve a model on CPUs. Raises Failure for one that is not measured."""
    model = advised.model
    if model.is_language or advised.gpus or model.form in CONFIGURED_FORMS:
        raise Failure(f"--measure compares forms of a tensor model on CPUs, which '{model.name}' is not")
    if model.form is ModelForm.ONNX and model.folder is None:
        return [replace(advised, backend=onnx_backend) for onnx_backend in _ONNX_BACKENDS]
    return [advised]


def _label(advised: ModelAdvice) -> str:
    model = advised.model
    return f"{advised.backend} with {model.name + '/' if model.folder else ''}{model.path.name}"


def _load(demand: Demand) -> str:
    return f"{demand.rate:g} requests/s" if demand.rate else f"concurrency {demand.in_flight}"


def _p99_s(advised: ModelAdvice, advice: Advice, window_s: float) -> float:
    """Serve and measure one candidate."""
    demand = advice.demand
    settings = TrialSettings(window_s=window_s, warm_up_s=_WARM_UP_S, rates=(demand.rate,) if demand.rate else ())
    with tempfile.TemporaryDirectory(prefix="conch-advise-") as folder:
        write_repository(replace(advice, models=(advised,)), Path(folder) / "models")
        try:
            with local_server(Path(folder) / "server.log", f"--model-repository={folder}/models") as url:
                reading = BenchMeter(ServerAccess(url), advised.model.name, settings).measure(
                    demand.rate or demand.in_flight, 1.0
                )
        except (ServerUnreachable, ConchError) as error:
            raise Failure(f"{_label(advised)} cannot be measured: {error}") from None
    if "p99" not in reading.figures:
        raise Failure(f"{_label(advised)} cannot be measured: {reading.failure}")
    return reading.figures["p99"]
