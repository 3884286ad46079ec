"""Sentences and tables that terminal and page share."""

from collections.abc import Mapping

from conch.measure.bench.report.fact_tables import FactTable
from conch.measure.tune.knobs import LOAD
from conch.measure.tune.objective import METRICS, shown
from conch.measure.tune.outcome import Finalist, Gain, TuneOutcome
from conch.measure.tune.space import Value

CURRENT = "current"
_MAX_SPREAD = 4  # of the bounds of an interval that is printed: beyond it, two rounds differ more than configurations
COLUMNS = ("throughput", "p50", "p99", "goodput", "output_tokens", "ttft_p99", "cpu_memory", "gpu_memory")


def settings_text(settings: Mapping[str, Value], current: Mapping[str, Value] | None = None) -> str:
    """Return what differs from the current configuration in one line, without the load."""
    known = current or {}
    own = {
        name: value
        for name, value in settings.items()
        if name not in (LOAD, "round") and (name not in known or known[name] != value)
    }
    return " ".join(f"{name}={value_text(value)}" for name, value in own.items()) or "as configured"


def value_text(value: Value) -> str:
    """Return a value as --knob takes it."""
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "off"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def gain_text(gain: Gain) -> str:
    """Return a gain with its interval, if the rounds suffice for one: +23.1 % (+19.2 … +27.3)."""
    if not gain.ratio:
        return "not comparable"
    if _is_vague(gain):
        return f"{(gain.ratio - 1) * 100:+.1f} % (too few rounds)"
    assert gain.low is not None
    assert gain.high is not None
    return f"{(gain.ratio - 1) * 100:+.1f} % ({(gain.low - 1) * 100:+.1f} … {(gain.high - 1) * 100:+.1f})"


def _is_vague(gain: Gain) -> bool:
    """Return whether the rounds say nothing of a gain: without an interval, or with bounds that are far apart."""
    return gain.low is None or gain.high is None or gain.high > _MAX_SPREAD * gain.low


def verdict(outcome: TuneOutcome) -> str:
    """Return the result in one sentence."""
    if outcome.winner is not None:
        gain = next(measured for measured in outcome.gains if measured.name == outcome.winner)
        finalist = outcome.finalist(outcome.winner)
        assert finalist is not None
        changes = settings_text(finalist.settings, outcome.current)
        if changes == "as configured":
            return f"the current configuration serves best at another load: {gain_text(gain)}"
        return f"{changes} is better than the current configuration by {gain_text(gain)}"
    if outcome.ended == "interrupted" or not outcome.finalists:
        return f"no verdict: the run ended early ({outcome.ended or 'too few trials'})"
    current = outcome.finalist(CURRENT)
    if current is not None and not current.feasible and not any(gain.feasible for gain in outcome.gains):
        return "no configuration that was measured meets the constraints"
    if any(gain.feasible and gain.ratio > 1 and _is_vague(gain) for gain in outcome.gains):
        return "no configuration is shown to be better than the current one: too few rounds, --rounds sets more"
    return "no configuration is shown to be better than the current one"


def stage_table(outcome: TuneOutcome) -> FactTable:
    """Return the times of each stage, and which is the bottleneck."""
    rows = tuple(
        (stage.model, _ms(stage.queue_s), _ms(stage.compute_s), f"{stage.busy_instances:.1f} of {stage.instances}",
         "bottleneck" if stage.model == outcome.bottleneck else "")
        for stage in outcome.stages
    )  # fmt: skip
    return FactTable(("stage", "queue", "compute", "busy instances", ""), rows)


def finalist_table(outcome: TuneOutcome) -> FactTable:
    """Return the figures of the finalists that any of them has, their gains, and whether they meet the constraints."""
    columns = [name for name in COLUMNS if any(name in finalist.figures for finalist in outcome.finalists)]
    gains = {gain.name: gain_text(gain) for gain in outcome.gains}
    rows = tuple(
        (finalist_label(finalist, outcome.current), value_text(finalist.settings.get(LOAD)),
         *(figure_text(name, finalist.figures.get(name)) for name in columns),
         gains.get(finalist.name, ""), "met" if finalist.feasible else "not met")
        for finalist in outcome.finalists
    )  # fmt: skip
    return FactTable(("configuration", "load", *columns, "gain", "constraints"), rows)


def effect_table(outcome: TuneOutcome) -> FactTable:
    """Return the change of each figure by each value of a knob: +20 %."""
    names = list(dict.fromkeys(name for effect in outcome.effects for name in effect.ratios))
    rows = tuple(
        (f"{effect.knob}={value_text(effect.value)}", str(effect.trials),
         *(f"{(effect.ratios[name] - 1) * 100:+.0f} %" if name in effect.ratios else "" for name in names))
        for effect in outcome.effects
    )  # fmt: skip
    return FactTable(("knob, other knobs equal", "trials", *names), rows)


def finalist_label(finalist: Finalist, current: Mapping[str, Value]) -> str:
    """Return name and settings of a finalist."""
    changes = "" if finalist.name == CURRENT else f": {settings_text(finalist.settings, current)}"
    return finalist.name + changes


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.1f} ms"


def figure_text(name: str, value: float | None) -> str:
    """Return a figure with its unit, "" if it is unknown."""
    return "" if value is None else shown(name, value) if name in METRICS else f"{value:g}"
