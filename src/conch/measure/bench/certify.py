"""Make the certificate of a run from its measurements."""

import hashlib
from collections.abc import Mapping, Sequence

import orjson

from conch.base.build_info import build_line
from conch.measure.bench.environment import read_environment
from conch.measure.bench.levels import FindMax
from conch.measure.bench.measurement import Effect, Measurement, Note
from conch.measure.bench.merged_rounds import merge_rounds
from conch.measure.bench.report.certificate import AbComparison, Certificate, CertifiedTarget
from conch.measure.bench.report.public_command import public_url
from conch.measure.bench.report.scaling import find_saturation
from conch.measure.bench.run import PreparedRun, is_lost
from conch.measure.bench.statistics.comparison import compare_rounds, verdict_text
from conch.measure.bench.targets.target import BenchTarget

Rounds = Mapping[str, Sequence[Measurement]]
"""Measurements by label of their level."""


def certify(run: PreparedRun, created_at: str, rounds: Rounds, baseline: Rounds, notes: Sequence[Note]) -> Certificate:
    """Return the certificate. `baseline` are the rounds of the server that was measured in turn, if there was one."""
    effects = [each for label, taken in baseline.items() for each in compare_rounds(taken, rounds[label])]
    verdict = verdict_text(effects) if effects else ""
    measurements = tuple(merge_rounds(taken) for taken in rounds.values() if taken)
    if isinstance(run.load, FindMax):  # in the order of the load, not of the search
        measurements = tuple(sorted(measurements, key=lambda each: each.level.value))
    return Certificate(
        created_at=created_at,
        tool_version=build_line(),
        command=run.plan.command,
        target=certified(run.side.target),
        environment=read_environment(),
        measurements=measurements,
        settings=run.plan.described(run.side.inputs),
        saturation=find_saturation(measurements),
        ab=_ab(run, baseline, effects, verdict),
        notes=(*notes, *(Note("target", "info", text) for text in run.side.target.notes)),
    )


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
    if not measurements or any(not each.outcomes.get("ok") or is_lost(each) for each in measurements):
        return 1
    return 3 if any(note.severity == "invalid" for each in measurements for note in each.notes) else 0
