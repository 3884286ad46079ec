"""Conditions on a comparison, such as `p99 > +5 %`, and whether they hold.

A condition holds where the whole interval fulfils it. The intervals are widened for the number of decisions
(Bonferroni), so that of comparisons without a real change beyond the limits at most 1 % fail.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

from conch.measure.bench.measurement import Effect, Estimate
from conch.measure.bench.statistics.quantities import QUANTITIES

FALSE_ALARM_RATE = 0.01
"""Bound of the share of comparisons that fail without a real change beyond the limits."""

_CONDITION = re.compile(
    r"\s*(?P<quantity>[\w.]+)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<number>[+\-−]?\d+(?:\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s|/s)?\s*(?:@\s*(?P<level>\S.*?))?\s*"
)
_FACTORS = {"%": 0.01, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "/s": 1.0, "": 1.0}
_EXAMPLES = "'p99 > +5 %', 'throughput < -3 %', 'p99 > 50 ms' or 'p99 > +5 % @ 30'"


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
    found: Estimate
    reason: str = ""


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ValueError with what would be right."""
    found = _CONDITION.fullmatch(text)
    if not found:
        raise ValueError(f"'{text}' is not a condition such as {_EXAMPLES}")
    quantity, number, unit = found["quantity"].lower(), found["number"].replace("−", "-"), found["unit"] or ""
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
    return Condition(text.strip(), quantity, found["sign"][0] == ">", limit, relative, found["level"] or "")


def decide(conditions: Sequence[Condition], effects: Sequence[Effect]) -> tuple[Decision, ...]:
    """Decide all conditions at all levels that they name. Raises ValueError where a condition fits no level."""
    pairs = [(condition, effect) for condition in conditions for effect in _matching(condition, effects)]
    return tuple(_decide(condition, effect, len(pairs)) for condition, effect in pairs)


def _matching(condition: Condition, effects: Sequence[Effect]) -> list[Effect]:
    found = [
        effect for effect in effects if effect.quantity == condition.quantity and condition.level in ("", effect.level)
    ]
    if not found:
        levels = ", ".join(dict.fromkeys(effect.level for effect in effects)) or "none"
        where = f" at level {condition.level}" if condition.level else ""
        raise ValueError(
            f"'{condition.text}': {condition.quantity} was not measured on both sides{where}; levels of both: {levels}"
        )
    return found


def _decide(condition: Condition, effect: Effect, decisions: int) -> Decision:
    estimate = effect.change if condition.relative else effect.b
    logarithmic = condition.relative and not QUANTITIES[condition.quantity].is_ratio
    low, high = _widened(estimate, decisions, logarithmic=logarithmic)
    if low is None or high is None:
        reason = "too few requests for an interval"
        return Decision(condition, effect.level, ConditionOutcome.UNDECIDED, estimate, reason)
    found = Estimate(estimate.value, low, high)
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
    return Decision(condition, effect.level, outcome, found, reason)


def _widened(estimate: Estimate, decisions: int, *, logarithmic: bool) -> tuple[float | None, float | None]:
    """Return the interval for one of a number of decisions."""
    if estimate.low is None or estimate.high is None:
        return None, None
    normal = NormalDist()
    factor = normal.inv_cdf(1 - FALSE_ALARM_RATE / decisions) / normal.inv_cdf(0.975)  # of intervals of 95 %
    if logarithmic:
        low, value, high = (math.log1p(each) for each in (estimate.low, estimate.value, estimate.high))
        return math.expm1(value - factor * (value - low)), math.expm1(value + factor * (high - value))
    return estimate.value - factor * (estimate.value - estimate.low), estimate.value + factor * (
        estimate.high - estimate.value
    )
