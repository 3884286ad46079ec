"""Two runs compared: effects with intervals, and whether the runs can be compared at all. Pure.

The interval of an effect combines those of both values (method of variance estimates recovery, on the logarithm). It
covers the noise within runs. What differs from run to run is in it only if levels were measured repeatedly.

Conditions on it, such as `p99 > +5 %`, hold where the whole interval fulfils them. Intervals are widened for the number
of decisions (Bonferroni), so that of comparisons without a real change beyond the limits at most 1 % fail.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist, mean, stdev

from conch.measure.bench.measurement import Effect, Estimate, Measurement, Note
from conch.measure.bench.report.certificate import Certificate, all_notes
from conch.measure.bench.statistics.comparison import change_of, verdict_of
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL, t_quantile
from conch.measure.bench.statistics.quantities import QUANTITIES, ComparedQuantity

# Of the environment, what changes results.
_ENVIRONMENT = ("cpu_model", "cpus", "cpu_quota", "memory_bytes", "virtualization", "governor")
FALSE_ALARM_RATE = 0.01
"""Bound of the share of comparisons that fail without a real change beyond the limits."""

_CONDITION = re.compile(
    r"\s*(?P<quantity>[\w.]+)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<number>[+\-−]?\d+(?:\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s|/s)?\s*(?:@\s*(?P<level>\S.*?))?\s*"
)
_FACTORS = {"%": 0.01, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "/s": 1.0, "": 1.0}
_EXAMPLES = "'p99 > +5 %', 'throughput < -3 %', 'p99 > 50 ms' or 'p99 > +5 % @ 30'"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Effects of B against A. `obstacles` forbid the comparison, `warnings` question it."""

    effects: tuple[Effect, ...]
    obstacles: tuple[Note, ...]
    warnings: tuple[Note, ...]


def compare_runs(a: Certificate, b: Certificate, quantities: Iterable[str] = ()) -> Comparison:
    """Compare two runs level by level, in the quantities of the table and those named."""
    wanted = {*quantities, *(quantity.name for quantity in QUANTITIES.values() if quantity.shown)}
    levels_a, levels_b = _by_level(a.measurements), _by_level(b.measurements)
    effects = [
        effect
        for level, of_a in levels_a.items()
        for name, quantity in QUANTITIES.items()
        if level in levels_b and name in wanted
        for effect in [_effect(quantity, level[1], of_a, levels_b[level])]
        if effect is not None
    ]
    errors = {effect.level for effect in effects if effect.quantity == "error_ratio"}
    for level, of_a in levels_a.items():  # errors show even where no condition names them
        effect = _effect(QUANTITIES["error_ratio"], level[1], of_a, levels_b.get(level, []))
        if effect is not None and level[1] not in errors and (effect.a.value or effect.b.value):
            effects.append(effect)
    return Comparison(tuple(effects), tuple(_obstacles(a, b, bool(effects))), tuple(_warnings(a, b)))


def compare_interleaved(certificate: Certificate) -> Comparison:
    """Return the comparison within a run that measured two servers in turn. Raises ValueError for other runs."""
    if certificate.ab is None:
        raise ValueError("the certificate is of one server; name two certificates, or measure with --against URL")
    invalid = [note for note in all_notes(certificate) if note.severity == "invalid"]
    return Comparison(certificate.ab.effects, tuple(invalid), ())


def effect_of(quantity: ComparedQuantity, level: str, a: Estimate, b: Estimate) -> Effect | None:
    """Return how B differs from A; None where a ratio needs a value that is not positive."""
    change = _change(quantity, a, b)
    if change is None:
        return None
    return Effect(quantity.name, level, a, b, change, verdict_of(change, quantity))


def _effect(
    quantity: ComparedQuantity, level: str, a: Sequence[Measurement], b: Sequence[Measurement]
) -> Effect | None:
    of_a, of_b = (pooled([value for level in side if (value := quantity.read(level)) is not None]) for side in (a, b))
    return effect_of(quantity, level, of_a, of_b) if of_a is not None and of_b is not None else None


def pooled(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the mean of repeated measurements, with an interval from how they differ; of one, itself."""
    if len(estimates) < 2:
        return estimates[0] if estimates else None
    values = [estimate.value for estimate in estimates]
    count = len(values)
    half = t_quantile((1 + DEFAULT_LEVEL) / 2, count - 1) * stdev(values) / math.sqrt(count)
    return Estimate(mean(values), mean(values) - half, mean(values) + half)


def _change(quantity: ComparedQuantity, a: Estimate, b: Estimate) -> Estimate | None:
    if quantity.is_ratio:
        return change_of(quantity.name, [(a, b)], DEFAULT_LEVEL)
    if not (a.value > 0 and b.value > 0):
        return None
    if any(estimate.low is not None and estimate.low <= 0 for estimate in (a, b)):
        return Estimate(b.value / a.value - 1)
    return change_of(quantity.name, [(a, b)], DEFAULT_LEVEL)


def _by_level(measurements: Sequence[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    levels: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        levels.setdefault((measurement.level.kind, measurement.level.label), []).append(measurement)
    return levels


def _obstacles(a: Certificate, b: Certificate, has_effects: bool) -> Iterable[Note]:
    if a.target.protocol != b.target.protocol:
        yield _note("protocol", f"A used {a.target.protocol}, B {b.target.protocol}")
    if not has_effects:
        levels = [", ".join(measurement.level.label for measurement in run.measurements) or "none" for run in (a, b)]
        yield _note("levels", f"no level was measured in both: A has {levels[0]}, B has {levels[1]}")
    for name, run in (("A", a), ("B", b)):
        for note in all_notes(run):
            if note.severity == "invalid":
                yield _note(note.code, f"{name} is not valid: {note.message}")


def _warnings(a: Certificate, b: Certificate) -> Iterable[Note]:
    for field, text in (("model", "models"), ("model_version", "versions of the model")):
        values = [getattr(run.target, field) for run in (a, b)]
        if all(values) and values[0] != values[1]:
            yield _note("model", f"different {text}: {values[0]} and {values[1]}", "warning")
    digests = a.target.config_digest, b.target.config_digest
    if all(digests) and digests[0] != digests[1]:
        yield _note("config-digest", "the model's configurations differ", "warning")
    for field in _ENVIRONMENT:
        values = [getattr(run.environment, field) for run in (a, b)]
        if values[0] != values[1]:
            words = field.replace("_", " ")
            yield _note("environment", f"different environment, {words}: {values[0]} and {values[1]}", "warning")
    left, right = _by_level(a.measurements), _by_level(b.measurements)
    only = [level[1] for level in {**left, **right} if (level in left) != (level in right)]
    if only and any(level in right for level in left):
        yield _note("levels", f"levels measured on one side only: {', '.join(only)}", "warning")


def _note(code: str, message: str, severity: str = "invalid") -> Note:
    return Note(code, severity, message)


class ConditionOutcome(Enum):
    """Whether a condition holds."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Condition:
    """`relative`: on the change from A to B; otherwise on the value of B."""

    text: str
    quantity: str
    above: bool
    limit: float
    relative: bool
    level: str = ""  # label; "": all


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition at one level."""

    condition: Condition
    level: str
    outcome: ConditionOutcome
    estimate: Estimate
    reason: str = ""


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ValueError with what would be right."""
    match = _CONDITION.fullmatch(text)
    if not match:
        raise ValueError(f"'{text}' is not a condition such as {_EXAMPLES}")
    quantity, number, unit = match["quantity"].lower(), match["number"].replace("−", "-"), match["unit"] or ""
    if quantity not in QUANTITIES:
        raise ValueError(f"'{text}': unknown quantity '{quantity}'; known are {', '.join(QUANTITIES)}")
    is_ratio = QUANTITIES[quantity].is_ratio
    relative = number[0] in "+-" if is_ratio else unit == "%"
    if relative and unit != "%":
        raise ValueError(f"'{text}': a change needs '%', such as {_EXAMPLES}")
    is_time = QUANTITIES[quantity].is_time
    if not relative and unit not in (("%",) if is_ratio else ("ns", "us", "µs", "ms", "s") if is_time else ("/s", "")):
        wanted = "%" if is_ratio else "ns, us, ms or s" if is_time else "/s"
        raise ValueError(f"'{text}': {quantity} needs the unit {wanted}")
    limit = float(number) * _FACTORS[unit]
    return Condition(text.strip(), quantity, match["sign"][0] == ">", limit, relative, match["level"] or "")


def decide(conditions: Sequence[Condition], effects: Sequence[Effect]) -> tuple[Decision, ...]:
    """Decide all conditions at all levels that they name. Raises ValueError where a condition fits no level."""
    pairs = [(condition, effect) for condition in conditions for effect in _matching(condition, effects)]
    return tuple(_decide(condition, effect, len(pairs)) for condition, effect in pairs)


def _matching(condition: Condition, effects: Sequence[Effect]) -> list[Effect]:
    matching = [
        effect for effect in effects if effect.quantity == condition.quantity and condition.level in ("", effect.level)
    ]
    if not matching:
        levels = ", ".join(dict.fromkeys(effect.level for effect in effects)) or "none"
        where = f" at level {condition.level}" if condition.level else ""
        raise ValueError(
            f"'{condition.text}': {condition.quantity} was not measured on both sides{where}; levels of both: {levels}"
        )
    return matching


def _decide(condition: Condition, effect: Effect, decisions: int) -> Decision:
    estimate = effect.change if condition.relative else effect.b
    logarithmic = condition.relative and not QUANTITIES[condition.quantity].is_ratio
    low, high = _widened(estimate, decisions, logarithmic=logarithmic)
    if low is None or high is None:
        reason = "too few requests for an interval"
        return Decision(condition, effect.level, ConditionOutcome.UNDECIDED, estimate, reason)
    widened = Estimate(estimate.value, low, high)
    holds, fails = (
        (low > condition.limit, high <= condition.limit)
        if condition.above
        else (
            high < condition.limit,
            low >= condition.limit,
        )
    )
    outcome = (
        ConditionOutcome.HOLDS if holds else ConditionOutcome.DOES_NOT_HOLD if fails else ConditionOutcome.UNDECIDED
    )
    reason = "the interval contains the limit; measure longer" if outcome is ConditionOutcome.UNDECIDED else ""
    return Decision(condition, effect.level, outcome, widened, reason)


def _widened(estimate: Estimate, decisions: int, *, logarithmic: bool) -> tuple[float | None, float | None]:
    """Return the interval for one of a number of decisions."""
    if estimate.low is None or estimate.high is None:
        return None, None
    normal = NormalDist()
    factor = normal.inv_cdf(1 - FALSE_ALARM_RATE / decisions) / normal.inv_cdf(0.975)  # of intervals of 95 %
    if logarithmic:
        low, value, high = (math.log1p(change) for change in (estimate.low, estimate.value, estimate.high))
        return math.expm1(value - factor * (value - low)), math.expm1(value + factor * (high - value))
    return estimate.value - factor * (estimate.value - estimate.low), estimate.value + factor * (
        estimate.high - estimate.value
    )
