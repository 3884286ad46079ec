"""What forecasts from an event log say to measure first."""

from collections.abc import Mapping
from random import Random

import pytest

from conch.measure.tune.hints import ranked
from conch.measure.tune.knobs import LOAD, Document, with_settings
from conch.measure.tune.objective import Goal
from conch.measure.tune.search import STRATEGIES
from conch.measure.tune.space import Dimension, Space, Value
from conch.measure.tune.tune_settings import TuneSettings
from tests.unit.measure.twin.recorded import MS, batching, document, log_of, run, traffic, work

SPACE = Space(
    (
        Dimension(LOAD, (4,), reloads=False),
        Dimension("instances", (1, 2, 3)),
        Dimension("queue_delay_us", (0, 20_000)),
        Dimension("backend", ("onnxruntime", "openvino"), ordered=False),
    )
)
MODEL = document(**batching())
CURRENT: dict[str, Value] = {LOAD: 4, "instances": 1, "queue_delay_us": 0, "backend": "onnxruntime"}


def documents(settings: Mapping[str, Value]) -> dict[str, Document]:
    return {"m": with_settings(MODEL, {name: value for name, value in settings.items() if name != LOAD})}


@pytest.mark.parametrize("metric", ["throughput", "p99"])
def test_more_instances_without_a_delay_go_first(metric: str) -> None:
    log = log_of(run(MODEL, traffic([0] * 600), work(lambda size: MS * (4 + size)), clients=4), MODEL, cpu_ns=1000)
    settings = TuneSettings("m", goal=Goal((metric,)))
    order = [SPACE.settings(point) for point in ranked(log, settings, SPACE, CURRENT, documents)]
    assert len(order) == 6  # not of the other backend, which the log does not know
    assert order[0]["instances"] != 1
    assert order[0]["queue_delay_us"] == 0
    assert order[-1]["queue_delay_us"] == 20_000


def test_the_default_search_begins_with_hints_and_points_far_from_them() -> None:
    start, hints = (0, 0, 0, 0), [(0, 2, 0, 0), (0, 1, 0, 0)]
    search = STRATEGIES["bayesian"](SPACE, start, 8.0, Random(1))
    search.hints = [start, *hints]
    proposed = []
    for _ in range(4):
        proposal = search.propose()
        assert proposal is not None
        proposed.append(proposal.point)
        search.tell(proposal, 1.0)
    assert (proposed[0], proposed[1], proposed[3]) == (start, *hints)
