"""Two runs compared: effects with intervals, and whether the runs can be compared at all. Pure.

The interval of an effect combines those of both values (method of variance estimates recovery, on the logarithm). It
covers the noise within runs. What differs from run to run is in it only if levels were measured repeatedly.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from conch.measure.bench.measurement import Effect, Estimate, Measurement, Note
from conch.measure.bench.report.certificate import Certificate, all_notes
from conch.measure.bench.statistics.comparison import change_of, verdict_of
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL, t_quantile
from conch.measure.bench.statistics.quantities import QUANTITIES, ComparedQuantity

# Of the environment, what changes results.
_ENVIRONMENT = ("cpu_model", "cpus", "cpu_quota", "memory_bytes", "virtualization", "governor")


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
    of_a, of_b = (pooled([found for each in side if (found := quantity.read(each)) is not None]) for side in (a, b))
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
    if any(each.low is not None and each.low <= 0 for each in (a, b)):
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
        values = [getattr(each.target, field) for each in (a, b)]
        if all(values) and values[0] != values[1]:
            yield _note("model", f"different {text}: {values[0]} and {values[1]}", "warning")
    digests = a.target.config_digest, b.target.config_digest
    if all(digests) and digests[0] != digests[1]:
        yield _note("config-digest", "the model's configurations differ", "warning")
    for field in _ENVIRONMENT:
        values = [getattr(each.environment, field) for each in (a, b)]
        if values[0] != values[1]:
            words = field.replace("_", " ")
            yield _note("environment", f"different environment, {words}: {values[0]} and {values[1]}", "warning")
    left, right = _by_level(a.measurements), _by_level(b.measurements)
    only = [level[1] for level in {**left, **right} if (level in left) != (level in right)]
    if only and any(each in right for each in left):
        yield _note("levels", f"levels measured on one side only: {', '.join(only)}", "warning")


def _note(code: str, message: str, severity: str = "invalid") -> Note:
    return Note(code, severity, message)
