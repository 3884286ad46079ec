"""Verdicts are right on servers with known laws; `verdict_table` prints the shares of more runs."""

import pytest

from tests.unit.measure.bench.statistics.verdict_table import Trial, share_right, trials

ALL = list(trials())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "least"), [(trial, least) for _, trial, least in ALL], ids=[name for name, *_ in ALL]
)
def test_verdicts_are_right(trial: Trial, least: float) -> None:
    # Of 40 runs, so that chance does not fail it: 100 and 1000 are for the table.
    assert share_right(trial, 40) >= least - 0.08
