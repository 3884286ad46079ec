"""Conditions of a gate, such as `p99 > +5 %`, with a bounded rate of false alarms."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conch.bench.durations import duration_text, parse_duration
from conch.bench.measurement import Estimate, Measurement
from conch.bench.statistics.comparison import difference, log_change, paired_values
from conch.bench.statistics.quantities import ERROR_RATIO, is_time, quantity_name

FALSE_ALARM_RATE = 0.01
"""Of a comparison as a whole, however many conditions and levels it has (Bonferroni)."""

_CONDITION = re.compile(r"\s*([\w./ -]+?)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-zµ]+)?\s*")


@dataclass(frozen=True, slots=True)
class GateCondition:
    """Fails if `quantity` is beyond a threshold. Thresholds are shares, seconds or a rate per second.

    `kind` is "ratio" (B / A - 1), "difference" (B - A) or "value" (B).
    """

    text: str
    quantity: str
    is_upper: bool  # fails above, else below
    kind: str
    threshold: float


@dataclass(frozen=True, slots=True)
class GateResult:
    """One condition at one level. `verdict` is "fails", "holds" or "undecided"; only "fails" is an alarm."""

    condition: str
    level: str
    verdict: str
    observed: Estimate | None  # in the kind of the condition; one side of its interval is what decides
    message: str


def parse_condition(text: str) -> GateCondition:
    """Return a condition such as p99 > +5 %, ttft_p99 > 200ms, throughput < -3 %, errors > 1 %. Raises ValueError.

    A percentage is a change, and so is any number with a sign; a number without one is a bound for B. A percentage of
    errors is in points of the share of requests that failed: without a sign a bound, with one a change.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not a valid condition; expected a form such as 'p99 > +5 %' or 'ttft_p99 > 200ms'"
        )
    name = quantity_name(match[1])
    sign, unit = match[3], match[5] or ""
    number = float(match[4]) * (-1 if sign == "-" else 1)
    kind = "difference" if sign else "value"
    if unit == "%":
        number /= 100
        kind = kind if name == ERROR_RATIO else "ratio"
    elif is_time(name):
        if not unit:
            raise ValueError(f"'{text}' is not valid: {name} needs a unit; expected a percentage or a time such as 5ms")
        number = math.copysign(parse_duration(match[4] + unit), number)
    elif unit:
        raise ValueError(f"'{text}' is not valid: {name} has no unit '{unit}'; expected a number or a percentage")
    if kind == "ratio" and number <= -1:
        raise ValueError(f"'{text}' is not valid: nothing falls by 100 % or more")
    return GateCondition(" ".join(text.split()), name, match[2] == ">", kind, number)


def compare(
    a: Sequence[Measurement], b: Sequence[Measurement], conditions: Iterable[GateCondition]
) -> tuple[GateResult, ...]:
    """Check conditions at each level that both documents have; measurements of the same level count as rounds.

    A condition fails only if its threshold is exceeded beyond the one-sided interval whose error is FALSE_ALARM_RATE
    divided by the number of checks. It is undecided if it is exceeded, but not beyond it. Raises ValueError if the
    documents have no level in common.
    """
    first, second = _by_level(a), _by_level(b)
    common = [level for level in first if level in second]
    if not common:
        found = ", ".join(level for _, level in first), ", ".join(level for _, level in second)
        raise ValueError(
            f"the documents have no level in common: A has {found[0] or 'none'}, B has {found[1] or 'none'}"
        )
    checks = [(level, condition) for level in common for condition in conditions]
    if not checks:
        return ()
    rate = FALSE_ALARM_RATE / len(checks)
    return tuple(_check(condition, level[1], first[level], second[level], rate) for level, condition in checks)


def _by_level(measurements: Sequence[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    found = dict[tuple[str, str], list[Measurement]]()
    for each in measurements:
        found.setdefault((each.level.kind, each.level.label), []).append(each)
    return found


def _check(
    condition: GateCondition, label: str, a: Sequence[Measurement], b: Sequence[Measurement], rate: float
) -> GateResult:
    invalid = next((note for each in (*a, *b) for note in each.notes if note.severity == "invalid"), None)
    if invalid is not None:
        return GateResult(condition.text, label, "undecided", None, f"not comparable: {invalid.message}")
    pairs = paired_values(condition.quantity, a, b)
    if condition.kind == "value":
        zero = Estimate(0.0, 0.0, 0.0)
        pairs = [(zero, y) for _, y in paired_values(condition.quantity, b, b)]
    if not pairs:
        missing = "B" if condition.kind == "value" else "A or B"
        return GateResult(condition.text, label, "undecided", None, f"{missing} has no value of {condition.quantity}")
    level = 1 - 2 * rate
    observed = _ratio(log_change(pairs, level)) if condition.kind == "ratio" else difference(pairs, level)
    verdict = _verdict(condition, observed)
    return GateResult(condition.text, label, verdict, observed, _message(condition, observed, verdict))


def _verdict(condition: GateCondition, observed: Estimate) -> str:
    sign = 1 if condition.is_upper else -1
    if sign * (observed.value - condition.threshold) <= 0:
        return "holds"
    bound = observed.low if condition.is_upper else observed.high
    if bound is None and condition.quantity.endswith("max"):
        return "fails"  # a maximum has no interval; its rate of false alarms is unknown
    return "fails" if bound is not None and sign * (bound - condition.threshold) > 0 else "undecided"


def _message(condition: GateCondition, observed: Estimate, verdict: str) -> str:
    name, bound = condition.quantity, observed.low if condition.is_upper else observed.high
    text = f"{name} {'is' if condition.kind == 'value' else 'changes by'} {_shown(condition, observed.value)}"
    if bound is None:
        return f"{text}; it has no interval" + (": too few requests" if verdict == "undecided" else "")
    text += f", certainly {'more' if condition.is_upper else 'less'} than {_shown(condition, bound)}"
    return f"{text}; measure longer to decide" if verdict == "undecided" else text


def _shown(condition: GateCondition, value: float) -> str:
    sign = "" if condition.kind == "value" else "+"
    if condition.kind == "ratio":
        return f"{100 * value:+.3g} %"
    if condition.quantity == ERROR_RATIO:
        return f"{100 * value:{sign}.3g} points" if sign else f"{100 * value:.3g} %"
    if is_time(condition.quantity):
        return ("+" if sign and value >= 0 else "") + duration_text(value)
    return f"{value:{sign}.4g}"


def _ratio(logs: Estimate) -> Estimate:
    if logs.low is None or logs.high is None:
        return Estimate(math.expm1(logs.value))
    return Estimate(math.expm1(logs.value), math.expm1(min(logs.low, 700.0)), math.expm1(min(logs.high, 700.0)))
