"""The report as JSON: the fields of `TuneOutcome`, with a format number."""

import json
from dataclasses import asdict

from conch.measure.tune.outcome import TuneOutcome

FORMAT = 1


def to_json(outcome: TuneOutcome) -> str:
    """Return the report as JSON text. Times are seconds."""
    return json.dumps({"format": FORMAT, **asdict(outcome)}, indent=2) + "\n"
