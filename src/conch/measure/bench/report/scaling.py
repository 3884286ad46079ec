"""How throughput follows the load over the levels of a run, and where it stops to grow. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from conch.measure.bench.measurement import Measurement
from conch.measure.bench.report.certificate import Saturation
from conch.measure.bench.report.number_text import PLAIN, format_value

# Levels with at least this share of the highest throughput count as saturated.
_NEARLY = 0.95


@dataclass(frozen=True, slots=True)
class LevelScaling:
    """One level, compared with the lowest one; of rates, with the rate that was offered."""

    speedup: float | None  # throughput by that of the lowest level
    efficiency: float | None
    """Of concurrency the speed-up by that of the load, of rates the achieved share of the offered rate."""


def work_rate(measurement: Measurement) -> float:
    """Return output tokens per second of language models, else requests per second."""
    tokens = measurement.tokens
    return tokens.output_rate.value if tokens is not None else measurement.throughput.value


def work_unit(measurements: Sequence[Measurement]) -> str:
    """Return the unit of `work_rate`."""
    return "output tok/s" if measurements and measurements[0].tokens is not None else "req/s"


def scaling(measurements: Sequence[Measurement]) -> tuple[LevelScaling, ...]:
    """Return the scaling of each level, in the order of the measurements."""
    concurrent = [
        measurement
        for measurement in measurements
        if measurement.level.kind == "concurrency" and measurement.level.value > 0
    ]
    base = min(concurrent, key=lambda measurement: measurement.level.value, default=None)
    return tuple(_level_scaling(measurement, base) for measurement in measurements)


def _level_scaling(measurement: Measurement, base: Measurement | None) -> LevelScaling:
    level = measurement.level
    if level.kind == "rate" and level.value > 0:
        return LevelScaling(None, measurement.throughput.value / level.value)
    if base is None or level.kind != "concurrency" or not work_rate(base):
        return LevelScaling(None, None)
    speedup = work_rate(measurement) / work_rate(base)
    return LevelScaling(speedup, speedup / (level.value / base.level.value))


def find_saturation(measurements: Sequence[Measurement]) -> Saturation | None:
    """Return where throughput stops to grow with the load; None with fewer than two levels of one kind."""
    for kind, find in (("concurrency", _saturation_of_concurrency), ("rate", _saturation_of_rate)):
        levels = sorted(
            (measurement for measurement in measurements if measurement.level.kind == kind),
            key=lambda measurement: measurement.level.value,
        )
        if len(levels) > 1 and len(levels) == len(measurements) and work_rate(max(levels, key=work_rate)):
            return find(levels)
    return None


def _saturation_of_concurrency(levels: Sequence[Measurement]) -> Saturation:
    unit = work_unit(levels)
    highest = max(work_rate(level) for level in levels)
    saturated = next(level for level in levels if work_rate(level) >= _NEARLY * highest)
    reached = saturated is not levels[-1]
    knee = _knee(levels)
    rate = f"{format_value(work_rate(saturated), PLAIN)} {unit}"
    if reached:
        message = f"Throughput saturates at concurrency {saturated.level.label}: {rate}; more adds latency only."
    else:
        message = f"Saturation is not reached: throughput still grows at concurrency {saturated.level.label} ({rate})."
    if knee is not None and reached:
        message += f" Requests wait for each other from a concurrency of about {max(knee, 1.0):.2g}."
    return Saturation(reached, saturated.level.label, work_rate(saturated), unit, knee, message)


def _knee(levels: Sequence[Measurement]) -> float | None:
    """Return where the bounds of low and of high load meet: Little's law with the lowest level's mean latency."""
    lowest = levels[0].latency
    if lowest is None:
        return None
    return max(level.throughput.value for level in levels) * lowest.mean.value


def _saturation_of_rate(levels: Sequence[Measurement]) -> Saturation:
    kept = [level for level in levels if _most(level) >= _NEARLY * level.level.value]
    missed = [level for level in levels if level not in kept]
    highest = max(levels, key=lambda measurement: measurement.throughput.value)
    if not missed:
        message = f"Saturation is not reached: the server keeps up with {levels[-1].level.label}."
        return Saturation(False, levels[-1].level.label, levels[-1].throughput.value, "req/s", None, message)
    last = kept[-1] if kept else levels[0]
    peak = format_value(highest.throughput.value, PLAIN)
    keeps_up = f"keeps up with {last.level.label}" if kept else f"does not keep up with {last.level.label}"
    message = f"The server {keeps_up}; the highest throughput measured is {peak} req/s."
    return Saturation(True, last.level.label, last.throughput.value, "req/s", None, message)


def _most(measurement: Measurement) -> float:
    """Return the upper bound of the throughput: random arrivals are fewer than the nominal rate half of the time."""
    throughput = measurement.throughput
    return throughput.value if throughput.high is None else throughput.high
