"""A closed loop over HTTP/1.1: users, answers, records."""

import numpy as np
import pytest

from conch.measure.bench.generator import ClosedLoop, PreparedRequest
from conch.measure.bench.load.load_loop import CHUNK_ROW, RECORD_ROW
from conch.measure.bench.load.process_load import ProcessLoad
from conch.measure.bench.records import CHUNK, RECORD, RequestOutcome
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import ANSWER, HEAD, answering, serving


def test_rows_have_the_layout_of_the_records() -> None:
    assert RECORD_ROW.size == RECORD.itemsize
    assert CHUNK_ROW.size == CHUNK.itemsize
    values = tuple(range(1, 18))
    assert np.frombuffer(RECORD_ROW.pack(*values), RECORD)[0].item() == values
    assert np.frombuffer(CHUNK_ROW.pack(1, 2, 3), CHUNK)[0].item() == (1, 2, 3)


@pytest.mark.parametrize("processes", [1, 2])
def test_each_request_is_sent_and_recorded(processes: int) -> None:
    with serving(answering(ANSWER)) as port:
        requests = [PreparedRequest(index, HEAD, b'{"x": %d}' % index) for index in range(3)]
        ran = run(plan(port, requests, ClosedLoop(4), requests=60), processes)
    rows = ran.records
    assert ran.outcomes == {RequestOutcome.OK: 60}
    assert ran.errors == []
    assert np.bincount(rows["request"]).tolist() == [20, 20, 20]
    assert set(rows["status"]) == {200}
    assert set(rows["received_bytes"]) == {len(ANSWER)}
    assert set(rows["process"]) == set(range(processes))
    assert len(set(rows["session"])) == 4
    assert (rows["intended_ns"] <= rows["sent_ns"]).all()
    assert (rows["sent_ns"] <= rows["first_ns"]).all()
    assert (rows["first_ns"] <= rows["done_ns"]).all()
    assert (rows["chunks_from"] == -1).all()


def test_users_think_between_answer_and_request() -> None:
    with serving(answering(ANSWER)) as port:
        ran = run(plan(port, None, ClosedLoop(1, think_s=0.03), requests=4))
    rows = np.sort(ran.records, order="intended_ns")
    assert (rows["intended_ns"][1:] - rows["done_ns"][:-1] == 30_000_000).all()


def test_a_load_runs_until_it_is_stopped() -> None:
    with serving(answering(ANSWER)) as port:
        ran = run(plan(port, None, ClosedLoop(3)), stop_when=lambda count: count > 50)
    assert ran.outcomes.keys() == {RequestOutcome.OK}
    assert ran.health.processes == 1


def test_a_port_without_a_server_is_reported_at_the_start() -> None:
    with serving(answering(ANSWER)) as port:
        pass
    with pytest.raises(ConnectionError, match=rf"cannot connect to 127\.0\.0\.1:{port}: Connection refused"):
        ProcessLoad(plan(port)).start()
