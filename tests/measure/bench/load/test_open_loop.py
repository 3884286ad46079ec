"""An open loop: arrivals at given times, whatever the server does."""

import socket
import threading
import time
from dataclasses import replace

import numpy as np

from conch.measure.bench.generator import Answer, OpenLoop, PreparedRequest, Script, ScriptSource
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import ANSWER, HEAD, answering, read_request, serving

OK = RequestOutcome.OK


def test_requests_are_sent_at_their_times() -> None:
    times = np.cumsum(np.full(60, 0.01))
    indexes = np.arange(60) % 3
    requests = [PreparedRequest(10 + index, HEAD, b"{}") for index in range(3)]
    with serving(answering(ANSWER)) as port:
        ran = run(plan(port, requests, OpenLoop(times, requests=indexes)), processes=2)
    rows = np.sort(ran.records, order="intended_ns")
    assert ran.outcomes == {OK: 60}
    assert np.abs(np.diff(rows["intended_ns"]) - 10_000_000).max() <= 1
    assert (rows["sent_ns"] >= rows["intended_ns"]).all()
    assert rows["request"].tolist() == (10 + indexes).tolist()


def test_when_it_begins_is_said_before() -> None:
    begun: list[tuple[int, int]] = []
    with serving(answering(ANSWER)) as port:
        load_plan = plan(port, None, OpenLoop(np.zeros(1)))
        ran = run(replace(load_plan, on_start=lambda start_ns: begun.append((start_ns, time.monotonic_ns()))))
    ((start_ns, said_ns),) = begun
    assert ran.records["intended_ns"].tolist() == [start_ns]
    assert said_ns < ran.records["sent_ns"][0]


def test_a_stall_of_the_server_is_in_the_latencies() -> None:
    """A stall of one second delays the arrivals of one second, not only the requests in flight."""
    stalled = threading.Lock()
    answered = 0
    middle_ns = 0

    def handle(peer: socket.socket) -> None:
        nonlocal answered, middle_ns
        while read_request(peer):
            with stalled:  # one at a time, so that all wait for the stalled one
                answered += 1
                if answered == 50:
                    middle_ns = time.monotonic_ns() + 500_000_000
                    time.sleep(1.0)
            peer.sendall(ANSWER)

    times = np.cumsum(np.full(200, 0.01))
    with serving(handle) as port:
        ran = run(plan(port, None, OpenLoop(times, in_flight=4)))
    assert ran.outcomes == {OK: 200}
    assert (ran.latencies_s > 0.5).sum() >= 40  # arrivals of half a second waited longer than that
    assert np.percentile(ran.latencies_s, 99) > 0.9
    in_flight = (ran.records["sent_ns"] < middle_ns) & (ran.records["done_ns"] > middle_ns)
    assert 1 <= in_flight.sum() <= 4  # as a closed loop with four users would see it


def test_requests_that_find_no_connection_time_out_unsent() -> None:
    def silent(peer: socket.socket) -> None:
        while read_request(peer):
            pass

    times = np.zeros(5)
    with serving(silent) as port:
        ran = run(plan(port, None, OpenLoop(times, in_flight=2), timeout_s=2))
    assert ran.outcomes == {RequestOutcome.TIMEOUT: 5}
    assert (ran.records["sent_ns"] == 0).sum() == 3
    assert "not sent within 2 s: no free connection" in ran.errors


def test_arrivals_that_wait_at_the_end_are_unfinished() -> None:
    sent = []

    def silent(peer: socket.socket) -> None:
        while request := read_request(peer):
            sent.append(request)

    times = np.concatenate((np.zeros(5), np.full(5, 1000.0)))
    with serving(silent) as port:
        ran = run(plan(port, None, OpenLoop(times, in_flight=2)), stop_when=lambda _: len(sent) == 2, grace_s=0.1)
    assert ran.outcomes == {RequestOutcome.UNFINISHED: 5}


class Conversation(Script):
    """Two turns, the second of which quotes the first answer."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.turn = 0

    @property
    def needs_answers(self) -> bool:
        return True

    @property
    def think_s(self) -> float:
        return 0.02

    def next(self, previous: Answer | None) -> PreparedRequest | None:
        self.turn += 1
        if self.turn == 1:
            assert previous is None
            return PreparedRequest(1, HEAD, b"%d first" % self.session)
        if self.turn == 2:
            assert previous is not None
            return PreparedRequest(2, HEAD, b"%d second %s" % (self.session, previous.body))
        return None


class Conversations(ScriptSource):
    def script(self, session: int) -> Script:
        return Conversation(session)


def echo(peer: socket.socket) -> None:
    while request := read_request(peer):
        body = request.partition(b"\r\n\r\n")[2]
        seen.append(body)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n<%s>" % (len(body) + 2, body))


seen: list[bytes] = []


def conversations(bodies: list[bytes]) -> dict[int, list[bytes]]:
    turns: dict[int, list[bytes]] = {}
    for body in bodies:
        session, _, text = body.partition(b" ")
        turns.setdefault(int(session), []).append(text)
    return turns


def test_scripts_continue_with_the_answers() -> None:
    seen.clear()
    with serving(echo) as port:
        ran = run(plan(port, Conversations(), requests=12), processes=1)
    assert ran.outcomes == {OK: 12}
    assert conversations(seen) == {n: [b"first", b"second <%d first>" % n] for n in range(6)}
    rows = np.sort(ran.records, order="intended_ns")
    assert rows["session"].tolist() == [n for n in range(6) for _ in range(2)]
    assert (rows["intended_ns"][1:] - rows["done_ns"][:-1] >= 20_000_000).all()


def test_arrivals_continue_sessions_that_are_free() -> None:
    seen.clear()
    with serving(echo) as port:
        ran = run(plan(port, Conversations(), OpenLoop(np.arange(8) * 0.1)))
    assert ran.outcomes == {OK: 8}
    assert set(map(len, conversations(seen).values())) <= {1, 2}
    assert len(seen) == 8
