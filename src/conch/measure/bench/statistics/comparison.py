"""How two servers differ: effects with intervals from single runs, repeated runs or interleaved rounds.

Quantities are compared as ratios, on the logarithmic scale. The interval of a ratio of two runs follows from those of
both by squares and adds (MOVER: Zou and Donner, Statistics in Medicine 27, 2008). With `MIN_ROUNDS` or more rounds, it
comes from the differences between rounds (Student's t), which includes what varies from run to run.
"""

import math
from collections.abc import Sequence

from conch.measure.bench.measurement import Effect, Estimate, Measurement
from conch.measure.bench.statistics.quantile_functions import DEFAULT_LEVEL, t_quantile
from conch.measure.bench.statistics.quantities import ERROR_RATIO, QUANTITIES, ComparedQuantity
from conch.measure.bench.statistics.time_slices import MAX_SLICES

MIN_ROUNDS = 4
_HEADLINES = (*(name for name, quantity in QUANTITIES.items() if quantity.shown), ERROR_RATIO)
VERDICT_LEVEL = 0.99
"""Measurements in turn are "better" or "worse" if an interval of this confidence is without 0: 1 % of A/A comparisons.

Reports of two runs, which conditions may divide, are compared at `DEFAULT_LEVEL`.
"""


def compare_rounds(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[Effect, ...]:
    """Return the effects of B against A, of measurements at one level that were taken in turn."""
    if not a or len(a) != len(b):
        raise ValueError(f"A and B need the same number of rounds, got {len(a)} and {len(b)}")
    return tuple(compared for name in _HEADLINES if (compared := effect(name, a, b)) is not None)


def effect(name: str, a: Sequence[Measurement], b: Sequence[Measurement]) -> Effect | None:
    """Return how B differs from A in a quantity; None where one has no value."""
    pairs = _paired(name, a, b)
    if not pairs:
        return None
    change = change_of(name, pairs, DEFAULT_LEVEL)
    verdict = verdict_of(change_of(name, pairs, VERDICT_LEVEL), QUANTITIES[name])
    middle = [_combined([pair[side] for pair in pairs], name) for side in (0, 1)]
    return Effect(name, b[0].level.label, middle[0], middle[1], change, verdict)


def change_of(name: str, pairs: Sequence[tuple[Estimate, Estimate]], level: float) -> Estimate:
    """Return the change of a quantity over pairs of A and B, with an interval of a two-sided confidence.

    The error ratio changes by its difference; other values, all above 0, by their ratio.
    """
    if name == ERROR_RATIO:
        return _difference(pairs, level)
    difference = _difference([(_log(x), _log(y)) for x, y in pairs], level)
    if difference.low is None or difference.high is None:
        return Estimate(math.expm1(difference.value))
    return Estimate(
        math.expm1(difference.value), math.expm1(min(difference.low, 700.0)), math.expm1(min(difference.high, 700.0))
    )


def verdict_of(change: Estimate, quantity: ComparedQuantity) -> str:
    """Return "better" or "worse" for a change whose interval excludes 0, else "undecided"."""
    if change.low is None or change.high is None or change.low <= 0 <= change.high:
        return "undecided"
    return "better" if (change.low > 0) == quantity.higher_is_better else "worse"


def describe(effect: Effect) -> str:
    """Return an effect in words, such as "p99: +7.1 % (+5 % to +9.2 %): B is worse"."""
    change, points = effect.change, " points" if effect.quantity == ERROR_RATIO else " %"
    if change.low is None or change.high is None:
        return f"{effect.quantity}: {_signed(change.value, points)}, without an interval: too few requests"
    text = f"{effect.quantity}: {_signed(change.value, points)} ({_signed(change.low, points)} to "
    text += f"{_signed(change.high, points)})"
    if effect.verdict == "undecided":
        return f"{text}: no difference is shown"
    return f"{text}: B is {effect.verdict}"


def verdict_text(effects: Sequence[Effect]) -> str:
    """Return the effects that are certain in one sentence, or that there are none, with the interval of P99."""
    certain = [effect for effect in effects if effect.verdict != "undecided"]
    if certain:
        return "; ".join(describe(effect) for effect in certain)
    headline = [effect for effect in effects if effect.quantity == "p99"] or list(effects[:1])
    return describe(headline[0]) if headline else "no quantity was measured on both sides"


def _paired(name: str, a: Sequence[Measurement], b: Sequence[Measurement]) -> list[tuple[Estimate, Estimate]]:
    """Return the values of both, round by round; of ratios only those above 0."""
    read = QUANTITIES[name].read
    values = [(read(first), read(second)) for first, second in zip(a, b, strict=True)]
    least = -1.0 if name == ERROR_RATIO else 0.0
    return [(x, y) for x, y in values if x is not None and y is not None and min(x.value, y.value) > least]


def _log(estimate: Estimate) -> Estimate:
    low = None if estimate.low is None else math.log(max(estimate.low, estimate.value * 1e-9))
    return Estimate(math.log(estimate.value), low, None if estimate.high is None else math.log(estimate.high))


def _difference(pairs: Sequence[tuple[Estimate, Estimate]], level: float) -> Estimate:
    rounds = len(pairs)
    differences = [y.value - x.value for x, y in pairs]
    mean = sum(differences) / rounds
    if rounds >= MIN_ROUNDS:
        variance = sum((difference - mean) ** 2 for difference in differences) / (rounds - 1)
        reach = t_quantile((1 + level) / 2, rounds - 1) * math.sqrt(variance / rounds)
        return Estimate(mean, mean - reach, mean + reach)
    below = above = 0.0
    for x, y in pairs:
        if x.low is None or x.high is None or y.low is None or y.high is None:
            return Estimate(mean)
        below += (y.value - y.low) ** 2 + (x.high - x.value) ** 2
        above += (y.high - y.value) ** 2 + (x.value - x.low) ** 2
    degrees = MAX_SLICES - 1  # of the intervals of each run
    scale = t_quantile((1 + level) / 2, degrees) / t_quantile((1 + DEFAULT_LEVEL) / 2, degrees) / rounds
    return Estimate(mean, mean - scale * math.sqrt(below), mean + scale * math.sqrt(above))


def _combined(values: Sequence[Estimate], name: str) -> Estimate:
    """Return the value of several rounds: their mean, of ratios their geometric mean."""
    if len(values) == 1:
        return values[0]
    if name == ERROR_RATIO:
        return Estimate(sum(estimate.value for estimate in values) / len(values))
    return Estimate(math.exp(sum(math.log(estimate.value) for estimate in values) / len(values)))


def _signed(value: float, unit: str) -> str:
    return f"{100 * value:+.3g}{unit}"
