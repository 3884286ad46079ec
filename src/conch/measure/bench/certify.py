"""Make the certificate of a run from its measurements; several rounds of a level become one measurement."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import sqrt
from typing import Any, cast

import orjson

from conch.base.build_info import build_line
from conch.machine.environment import read_environment
from conch.measure.bench.levels import FindMax
from conch.measure.bench.measurement import ClientHealth, Effect, Estimate, Level, Measurement, Note, TokenFigures
from conch.measure.bench.prepared_run import PreparedRun
from conch.measure.bench.report.certificate import (
    AbComparison,
    Certificate,
    CertifiedTarget,
    comparability,
    public_command,
    public_url,
)
from conch.measure.bench.report.scaling import find_saturation
from conch.measure.bench.statistics.comparison import compare_rounds, verdict_text
from conch.measure.bench.statistics.quantile_functions import t_quantile
from conch.measure.bench.targets.target import BenchTarget

Rounds = Mapping[str, Sequence[Measurement]]
"""Measurements by label of their level."""
_MAX_ERRORS = 10


def certify(run: PreparedRun, created_at: str, rounds: Rounds, baseline: Rounds, notes: Sequence[Note]) -> Certificate:
    """Return the certificate. `baseline` are the rounds of the server that was measured in turn, if there was one."""
    effects = [effect for label, taken in baseline.items() for effect in compare_rounds(taken, rounds[label])]
    verdict = verdict_text(effects) if effects else ""
    measurements = tuple(merge_rounds(taken) for taken in rounds.values() if taken)
    if isinstance(run.load, FindMax):  # in the order of the load, not of the search
        measurements = tuple(sorted(measurements, key=lambda measurement: measurement.level.value))
    certificate = Certificate(
        created_at=created_at,
        tool_version=build_line(),
        command=public_command(run.plan.command),
        target=certified(run.side.target),
        environment=read_environment(),
        measurements=measurements,
        settings=run.plan.described(run.side.inputs),
        saturation=find_saturation(measurements),
        ab=_ab(run, baseline, effects, verdict),
        notes=(*notes, *(Note("target", "info", text) for text in run.side.target.notes)),
    )
    return replace(certificate, verdict=comparability(certificate))


def _ab(run: PreparedRun, baseline: Rounds, effects: Sequence[Effect], verdict: str) -> AbComparison | None:
    if run.against is None:
        return None
    measurements = tuple(merge_rounds(taken) for taken in baseline.values())
    return AbComparison(certified(run.against.target), measurements, tuple(effects), verdict)


def certified(target: BenchTarget) -> CertifiedTarget:
    """Return what identifies a target in a certificate."""
    model = target.model
    config = orjson.dumps(dict(model.config), option=orjson.OPT_SORT_KEYS) if model.config else b""
    return CertifiedTarget(
        url=public_url(target.url),
        protocol=target.protocol.value,
        model=model.name,
        model_version=model.version,
        server_name=target.server_name,
        server_version=target.server_version,
        config_digest=hashlib.sha256(config).hexdigest()[:16] if config else "",
    )


def exit_status(certificate: Certificate) -> int:
    """Return 0, 1 if nothing succeeded or the server was lost, 3 if a note makes a measurement invalid.

    A run that a signal ended has the signal's status instead of 0 and 3, see the command.
    """
    measurements: Sequence[Measurement] = certificate.measurements
    if not measurements or any(
        not measurement.outcomes.get("ok") or measurement.server_lost for measurement in measurements
    ):
        return 1
    return 3 if any(note.severity == "invalid" for measurement in measurements for note in measurement.notes) else 0


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
        return kind(**{item.name: _field(values, item.name, worst=worst) for item in fields(first)})
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
    known = [value for item in values if (value := getattr(item, name)) is not None]
    return merge(known) if known else None


def _estimate(values: Sequence[Estimate]) -> Estimate:
    """Return the mean and Student's interval."""
    count = len(values)
    mean = sum(value.value for value in values) / count
    if count == 1:
        return values[0]
    variance = sum((value.value - mean) ** 2 for value in values) / (count - 1)
    reach = t_quantile(0.975, count - 1) * sqrt(variance / count)
    return Estimate(mean, max(mean - reach, 0.0) if mean >= 0 else mean - reach, mean + reach)


def _tuple(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Merge tuples of dataclasses position by position, others one after the other."""
    longest = max(values, key=len)
    if longest and is_dataclass(longest[0]):
        return tuple(_merged([value[index] for value in values if index < len(value)]) for index in range(len(longest)))
    return tuple(item for value in values for item in value)


def _distinct_prompts(values: Sequence[TokenFigures]) -> int | None:
    """Add up what never repeats; prompts that repeat within a round also do between rounds."""
    known = [value.distinct_prompts for value in values if value.distinct_prompts is not None]
    repeat = any(
        value.output_length is not None and value.output_length.count > (value.distinct_prompts or 0)
        for value in values
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
    return tuple(dict.fromkeys(item for value in values for item in value))


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
