"""How large a bundle is: at 1,000 requests a second ten minutes fit into 20 MB, so one of them into 2 MB."""

import uuid

import numpy as np
import pytest

from conch.domain.events.bundle import Bundle
from conch.domain.events.layout import DTYPES, OUTCOMES, PROTOCOLS, WHY_NOW
from conch.domain.events.log import EventLog
from conch.domain.events.merge import merged, pieces

COUNT = 60_000
MB = 1_000_000


def times(random: np.random.Generator, count: int, mean: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Durations in ns that vary by half of their mean, each independent of the others: what compresses worst."""
    return random.gamma(4.0, mean / 4.0, count).astype(np.int64)


def busy_log(ids: int) -> EventLog:
    """A minute of requests in batches of two over HTTP, with `ids` UUIDs for each."""
    random = np.random.default_rng(1)
    arrived = 10**12 + np.cumsum(random.exponential(1e6, COUNT)).astype(np.int64)
    requests, calls = np.zeros(COUNT, DTYPES["requests"]), np.zeros(COUNT, DTYPES["exchanges"])
    batches = np.zeros(COUNT // 2, DTYPES["batches"])
    pair = np.arange(COUNT) // 2
    requests["number"] = np.arange(COUNT) * 3 + 1
    requests["exchange"], requests["model"], requests["version"], requests["shape"] = requests["number"] + 1, 1, 1, 4
    requests["outcome"], requests["batch_size"] = OUTCOMES.index("ok"), 1
    requests["input_bytes"] = requests["output_bytes"] = 64
    requests["received"], requests["queued"] = arrived, arrived + times(random, COUNT, 60_000)
    batches["number"], batches["model"], batches["version"] = np.arange(COUNT // 2) * 6 + 3, 1, 1
    batches["instance"], batches["why_now"] = random.integers(2, 4, COUNT // 2), WHY_NOW.index("delay over")
    batches["members"] = batches["size"] = 2
    batches["waiting"], batches["switches"] = random.poisson(1, COUNT // 2), random.poisson(0.2, COUNT // 2)
    at = np.maximum.reduceat(requests["queued"], np.arange(0, COUNT, 2))
    for name, mean in (("formed", 3e5), ("started", 5e3), ("input_done", 8e4), ("infer_done", 2e6), ("released", 7e4)):
        batches[name] = at = at + times(random, COUNT // 2, mean)
    batches["cpu_ns"], batches["cpu_wait_ns"] = times(random, COUNT // 2, 1.5e6), times(random, COUNT // 2, 1e5)
    requests["batch"] = batches["number"][pair]
    for name in ("started", "input_done", "infer_done"):
        requests[name] = batches[name][pair]
    requests["done"] = batches["released"][pair] + times(random, COUNT, 20_000)
    calls["number"], calls["request"] = requests["exchange"], requests["number"]
    calls["protocol"], calls["status"] = PROTOCOLS.index("http"), 200
    calls["bytes_in"], calls["bytes_out"] = 300, 250
    calls["first_byte"] = arrived - times(random, COUNT, 40_000)
    calls["received"], calls["body_done"] = calls["first_byte"] + times(random, COUNT, 10_000), arrived
    calls["decoded"], calls["answered"] = requests["queued"], requests["done"]
    calls["encoded"] = requests["done"] + times(random, COUNT, 20_000)
    calls["written"] = calls["encoded"] + times(random, COUNT, 30_000)
    names = ["", "detector", "detector_0_0", "detector_0_1", "IN FP32 [1,16]"]
    texts = np.zeros(COUNT * ids, DTYPES["ids"])
    texts["request"] = np.repeat(requests["number"], ids)
    texts["text"] = len(names) + np.arange(COUNT * ids)
    names += [str(uuid.UUID(bytes=random.bytes(16))) for _ in range(COUNT * ids)]
    tables = {"requests": requests, "batches": batches, "exchanges": calls, "ids": texts}
    return EventLog(int(calls["written"].max()), 10**18, names=names, tables=tables)


@pytest.mark.parametrize(("ids", "most_mb"), [(0, 1.0), (1, 2.0), (2, 3.0)])
def test_a_minute_of_a_thousand_requests_a_second(ids: int, most_mb: float) -> None:
    """A UUID for each request takes its 16 bytes, once."""
    log = busy_log(ids)
    assert len(Bundle({"id": "x"}, tuple(pieces(log))).to_bytes()) < most_mb * MB


def test_each_piece_has_the_names_of_its_rows() -> None:
    log = busy_log(1)
    parts = [*pieces(log)]
    assert len(parts) > 1
    assert sum(len(part.names) for part in parts) < len(log.names) + 10 * len(parts)
    whole = merged(parts)
    assert np.array_equal(whole.requests["done"], log.requests["done"])
    assert [whole.find(text) for text in log.names[-9:]] == [log.find(text) for text in log.names[-9:]]
    assert {whole.names[number] for number in whole.requests["model"]} == {"detector"}
