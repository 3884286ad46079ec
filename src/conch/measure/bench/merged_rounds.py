"""Several measurements of one level as one: means whose intervals include what varies from run to run."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from math import sqrt
from typing import Any, cast

from conch.measure.bench.measurement import ClientHealth, Estimate, Level, Measurement, TokenFigures
from conch.measure.bench.statistics.quantile_functions import t_quantile

_MAX_ERRORS = 10


def merge_rounds(rounds: Sequence[Measurement]) -> Measurement:
    """Return one measurement. Counts and times are sums, estimates means with an interval of 95 % between rounds."""
    if not rounds:
        raise ValueError("there are no rounds to merge")
    return rounds[0] if len(rounds) == 1 else cast("Measurement", _merged(rounds))


def _merged(values: Sequence[Any]) -> Any:
    """Merge values of one type. What is unknown in one round is left out."""
    first = values[0]
    if isinstance(first, Estimate):
        return _estimate(values)
    if isinstance(first, (str, Level)):
        return first
    if is_dataclass(first):
        worst = isinstance(first, ClientHealth)
        kind: Any = type(first)
        return kind(**{each.name: _field(values, each.name, worst=worst) for each in fields(first)})
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merged([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, tuple):
        return _tuple(values)
    return sum(values) if isinstance(first, int) else sum(values) / len(values)


def _field(values: Sequence[Any], name: str, *, worst: bool) -> Any:
    """Merge one field of dataclasses, by its name where its type does not say how."""
    if worst:
        return _known(max, values, name)
    if name == "distinct_prompts":
        return _distinct_prompts(values)
    if name in _BY_NAME:
        return _known(_BY_NAME[name], values, name)
    return _known(_merged, values, name)


def _known(merge: Callable[[list[Any]], Any], values: Sequence[Any], name: str) -> Any:
    known = [value for each in values if (value := getattr(each, name)) is not None]
    return merge(known) if known else None


def _estimate(values: Sequence[Estimate]) -> Estimate:
    """Return the mean and Student's interval."""
    count = len(values)
    mean = sum(each.value for each in values) / count
    if count == 1:
        return values[0]
    variance = sum((each.value - mean) ** 2 for each in values) / (count - 1)
    reach = t_quantile(0.975, count - 1) * sqrt(variance / count)
    return Estimate(mean, max(mean - reach, 0.0) if mean >= 0 else mean - reach, mean + reach)


def _tuple(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Merge tuples of dataclasses position by position, others one after the other."""
    longest = max(values, key=len)
    if longest and is_dataclass(longest[0]):
        return tuple(_merged([each[index] for each in values if index < len(each)]) for index in range(len(longest)))
    return tuple(item for each in values for item in each)


def _distinct_prompts(values: Sequence[TokenFigures]) -> int | None:
    """Add up what never repeats; prompts that repeat within a round also do between rounds."""
    known = [each.distinct_prompts for each in values if each.distinct_prompts is not None]
    repeat = any(
        each.output_length is not None and each.output_length.count > (each.distinct_prompts or 0) for each in values
    )
    return (max(known) if repeat else sum(known)) if known else None


def _counted(values: Sequence[tuple[tuple[Any, int], ...]]) -> tuple[tuple[Any, int], ...]:
    """Add up pairs of key and count."""
    counts: dict[Any, int] = {}
    for pairs in values:
        for key, count in pairs:
            counts[key] = counts.get(key, 0) + count
    return tuple(counts.items())


def _histogram(values: Sequence[tuple[tuple[float, int], ...]]) -> tuple[tuple[float, int], ...]:
    return tuple(sorted(_counted(values)))


def _errors(values: Sequence[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(_counted(values), key=lambda item: -item[1])[:_MAX_ERRORS])


def _union(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for each in values for item in each))


_BY_NAME: dict[str, Callable[[list[Any]], Any]] = {
    "max": max,
    "memory_bytes": max,
    "memory_used_bytes": max,
    "window_s": sum,
    "warm_up_s": sum,
    "histogram": _histogram,
    "errors": _errors,
    "notes": _union,
    "slo": lambda values: values[0],
}
