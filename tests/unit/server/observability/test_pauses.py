"""Collections of garbage are in the event log."""

import gc
from time import monotonic_ns

from conch.server.observability.event_log import EventRecorder
from conch.server.observability.event_reading import EventReader
from conch.server.observability.metrics.loop_lag import GarbagePauses


def test_each_collection_is_a_pause() -> None:
    recorder = EventRecorder(1 << 20)
    pauses = GarbagePauses(recorder)
    before = monotonic_ns()
    pauses.start()
    gc.collect(2)
    pauses.stop()
    pauses.stop()
    gc.collect(2)
    rows = EventReader(recorder).read(1e9).pauses
    full = rows[rows["kind"] == 2]
    assert len(full) == 1
    assert before < full[0]["started"] < full[0]["ended"] < monotonic_ns()
    assert full[0]["cpu_ns"] > 0
