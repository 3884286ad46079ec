"""What to reach: objectives and constraints, over the figures of a measurement. Pure.

Figures are a mapping from the names below to numbers: seconds, bytes, per second, ratios. Unknown figures are absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

_MS = 1e-3
_MB = 1e6
_INFEASIBLE = -10.0  # the score of a configuration just outside a constraint; exp(10) is beyond any gain


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure. `unit` is the value of 1 in Model Analyzer's unit; `rising`: more is better."""

    name: str
    rising: bool
    unit: float
    printed: str


def _metrics() -> dict[str, Figure]:
    table = [
        Figure("throughput", True, 1, "/s"),
        Figure("goodput", True, 1, "/s"),
        Figure("output_tokens", True, 1, "tok/s"),
        Figure("cpu_memory", False, _MB, "MB"),
        Figure("gpu_memory", False, _MB, "MB"),
        Figure("gpu_utilization", True, 0.01, "%"),
        Figure("gpu_power", False, 1, "W"),
        Figure("energy", False, 1, "J/request"),
        Figure("errors", False, 0.01, "%"),
    ]
    for time in ("latency", "ttft", "itl"):
        for point in ("avg", "p50", "p90", "p95", "p99"):
            name = point if time == "latency" else f"{time}_{point}"
            table.append(Figure(name, False, _MS, "ms"))
    return {metric.name: metric for metric in table}


METRICS = _metrics()


@dataclass(frozen=True, slots=True)
class Constraint:
    """Bounds of a figure in seconds, bytes, per second."""

    metric: str
    minimum: float | None = None
    maximum: float | None = None

    def violation(self, figures: Mapping[str, float]) -> float:
        """Return how far the figure is outside, as a logarithm; 0 inside, and for a figure that is unknown."""
        value = figures.get(self.metric)
        if value is None:
            return 0.0
        if self.maximum is not None and value > self.maximum:
            return log(value / self.maximum) if self.maximum > 0 else 1.0
        if self.minimum is not None and value < self.minimum:
            return log(self.minimum / value) if value > 0 else 1.0
        return 0.0

    def __str__(self) -> str:
        metric = METRICS[self.metric]
        low = "" if self.minimum is None else f"{self.minimum / metric.unit:g} ≤ "
        high = "" if self.maximum is None else f" ≤ {self.maximum / metric.unit:g}"
        return f"{low}{self.metric}{high} {metric.printed.strip()}"


@dataclass(frozen=True, slots=True)
class Goal:
    """One run: the names of the figures to improve, of equal weight, and the constraints."""

    objectives: tuple[str, ...] = ("throughput",)
    constraints: tuple[Constraint, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The figures of objectives and constraints, each once."""
        return tuple(dict.fromkeys((*self.objectives, *(constraint.metric for constraint in self.constraints))))

    def is_feasible(self, figures: Mapping[str, float]) -> bool:
        """Return whether the figures meet all constraints."""
        return not any(constraint.violation(figures) for constraint in self.constraints)

    def score(self, figures: Mapping[str, float]) -> float | None:
        """Return the score, higher is better: the mean logarithm of the objectives.

        A difference of 0.05 is about 5 %. Outside of the constraints it is lower than inside, the lower the farther.
        None if a figure of an objective is unknown.
        """
        violation = sum(constraint.violation(figures) for constraint in self.constraints)
        if violation:
            return _INFEASIBLE - violation
        total = 0.0
        for name in self.objectives:
            value = figures.get(name)
            if value is None or value <= 0:
                return None
            total += log(value) * (1 if METRICS[name].rising else -1)
        return total / len(self.objectives)

    def unknown(self, figures: Mapping[str, float]) -> list[str]:
        """Return the metrics of objectives and constraints that the figures lack."""
        return [name for name in self.metrics if name not in figures]

    def __str__(self) -> str:
        words = [f"{'maximize' if METRICS[name].rising else 'minimize'} {name}" for name in self.objectives]
        return ", ".join([*words, *map(str, self.constraints)])


def shown(metric: str, value: float) -> str:
    """Return a figure with its unit: 12.3 ms."""
    kind = METRICS[metric]
    number = value / kind.unit
    digits = f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    return f"{digits} {kind.printed}".replace(" /s", "/s")
