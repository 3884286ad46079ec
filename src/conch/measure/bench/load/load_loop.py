# Compiled by mypyc in wheels.
"""The loop of one process of the load generator."""

import select
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from time import monotonic_ns
from typing import Final

from conch.base.pacing import backoff_s
from conch.measure.bench.generator import Answer, Cancel, ScriptSource
from conch.measure.bench.load.connection import (
    CLOSED,
    OPEN,
    EncodedRequest,
    LoadConnection,
    LoadOwner,
    LoadRequest,
    LoadUser,
    describe,
)
from conch.measure.bench.load.connection_factory import ConnectionFactory
from conch.measure.bench.load.controller_link import ControllerLink
from conch.measure.bench.load.delays import CpuWaits, LagHistogram
from conch.measure.bench.records import RequestOutcome

UNLIMITED: Final = -1
# The fields of RECORD and of CHUNK, without gaps; a test compares them with the numpy types.
RECORD_ROW: Final = struct.Struct("=qqqqBHHIIqqIiiiiq")
CHUNK_ROW: Final = struct.Struct("=qHI")

_ROWS: Final = 4_096
_OK: Final = int(RequestOutcome.OK)
_REJECTED: Final = int(RequestOutcome.REJECTED)
_CONNECTION_ERROR: Final = int(RequestOutcome.CONNECTION_ERROR)
_TIMEOUT: Final = int(RequestOutcome.TIMEOUT)
_WRONG_ANSWER: Final = int(RequestOutcome.WRONG_ANSWER)
_CANCELLED: Final = int(RequestOutcome.CANCELLED)
_UNFINISHED: Final = int(RequestOutcome.UNFINISHED)
_AFTER_TIME: Final = int(Cancel.AFTER_TIME)
_AFTER_RESPONSES: Final = int(Cancel.AFTER_RESPONSES)

_MS: Final = 1_000_000
_S: Final = 1_000_000_000
# Events taken at once: few enough that requests which become due meanwhile are not late.
_MAX_EVENTS: Final = 64
_REPORT_NS: Final = 100 * _MS
# Reading how long the process waited takes a microsecond: not after each round of a busy loop.
_WAITS_NS: Final = 200_000
_MAX_REPORT_ROWS: Final = 16_384
_MAX_ERRORS_PER_REPORT: Final = 100
# Connections that are being opened at once: a server's backlog is limited.
_MAX_CONNECTING: Final = 256
_FIRST_BACK_OFF_S: Final = 0.01
_MAX_BACK_OFF_S: Final = 1.0
# epoll waits in whole milliseconds, select in microseconds.
_COARSE_NS: Final = 2 * _MS
_MAX_SELECT_FD: Final = 1_024
_MAX_EMPTY_SCRIPTS: Final = 1_000
# How often a request is sent again that servers refuse to process.
_MAX_RETRIES: Final = 3
_FOREVER: Final = 1 << 62


@dataclass(frozen=True)
class LoadShare:
    """The share of process number `process` of `processes`. Times are nanoseconds.

    `users` and `think_ns` are of a closed loop, `times_ns` from its start and indexes of an open one.
    """

    process: int
    processes: int
    source: ScriptSource
    users: int
    think_ns: int
    open_loop: bool
    times_ns: Sequence[int]
    request_indexes: Sequence[int] | None
    connections: int  # at most
    initial_connections: int
    requests: int  # UNLIMITED, or the number after which it ends
    timeout_ns: int
    connect_timeout_ns: int


class RecordBatch:
    """Rows that have not been handed over."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._rows = bytearray(_ROWS * RECORD_ROW.size)
        self._at = 0
        self.count = 0
        self.chunks = bytearray()

    def add(self, request: LoadRequest, done_ns: int, outcome: int) -> None:
        """Append a row, and the request's rows of CHUNK."""
        if self._at == len(self._rows):
            self._rows.extend(bytes(len(self._rows)))
        chunks_from = -1
        if request.chunks is not None:
            chunks_from = len(self.chunks) // CHUNK_ROW.size
            self.chunks += request.chunks
        RECORD_ROW.pack_into(
            self._rows, self._at, request.intended_ns, request.sent_ns, request.first_ns, done_ns, outcome,
            self._process, request.status, request.encoded.index, request.user.session, request.sent_bytes,
            request.received_bytes, request.responses, request.input_tokens, request.output_tokens,
            request.reasoning_tokens, request.cached_tokens, chunks_from,
        )  # fmt: skip
        self._at += RECORD_ROW.size
        self.count += 1

    def take(self) -> tuple[bytes, bytes]:
        """Return the rows of RECORD and of CHUNK, and begin again."""
        records = bytes(memoryview(self._rows)[: self._at])
        chunks = bytes(self.chunks)
        self._at = 0
        self.count = 0
        self.chunks = bytearray()
        return records, chunks


class LoadLoop(LoadOwner):
    """Sends the share of one process and records it. `run` returns when it has ended."""

    def __init__(self, share: LoadShare, factory: ConnectionFactory, link: ControllerLink, epoll: select.epoll) -> None:
        self._share = share
        self._factory = factory
        self._link = link
        self._epoll = epoll
        self._epoll_fd = epoll.fileno()
        self._batch = RecordBatch(share.process)
        self._errors: list[str] = []
        self._by_fd: list[LoadConnection | None] = []
        self._connections = 0
        self._connecting: dict[int, LoadConnection] = {}
        self._idle: list[LoadConnection] = []  # the last one is taken first
        self._waiting: deque[LoadRequest] = deque()  # due, without a connection
        self._timers: list[tuple[int, int, LoadRequest]] = []  # when to send, or to cancel
        self._sequence = 0
        self._deferred: list[LoadConnection] = []
        self._unsent: list[LoadConnection] = []
        self._unsettled = 0  # requests made, on timers too, and not settled
        self._in_flight = 0
        self._left = share.requests
        self._sessions = 0
        self._turn = share.process
        self._fixed: list[EncodedRequest] = []
        self._users: deque[LoadUser] = deque()  # of an open loop: free ones
        self._next_arrival = 0
        self._started = False
        self._start_ns = 0
        self._stopping = False
        self._stop_ns = _FOREVER
        self._ready_sent = False
        self._failures = 0  # of connecting, in succession
        self._connect_after_ns = 0
        self._cause = ""  # of the last failure to connect
        self._next_expiry_ns = 0
        self._next_report_ns = 0
        self._lag = LagHistogram()
        self._loop_lag_max_ns = 0
        self._waits = CpuWaits()
        self._answers = 0  # since the last look at `_waits`
        self._next_waits_ns = 0

    # What connections call.

    def settle(self, request: LoadRequest, outcome: int, now_ns: int, message: str = "") -> None:
        if request.settled:
            return
        request.settled = True
        self._unsettled -= 1
        self._answers += 1
        via = request.via
        if via is not None:
            via.in_flight -= 1
            self._in_flight -= 1
        encoded = request.encoded
        user = request.user
        if outcome == _OK:
            user.failures = 0
            self._failures = 0
            if encoded.expected is not None:
                message = encoded.expected.difference(_answer(request))
                if message:
                    outcome = _WRONG_ANSWER
        if message:
            self.error(message)
        self._batch.add(request, now_ns, outcome)
        self._continue(request, user, outcome, now_ns)

    def responded(self, request: LoadRequest, now_ns: int, tokens: int, characters: int) -> bool:
        if request.first_ns == 0:
            request.first_ns = now_ns
        if request.chunks is None:
            request.chunks = bytearray()
        request.chunks += CHUNK_ROW.pack(now_ns, min(tokens, 65_535), characters)
        self._answers += 1
        request.responses += 1
        if request.encoded.cancel == _AFTER_RESPONSES and request.responses >= request.encoded.cancel_after:
            self.settle(request, _CANCELLED, now_ns)
            return False
        return True

    def retry(self, request: LoadRequest, now_ns: int, message: str) -> None:
        if request.settled:
            return
        if request.retries >= _MAX_RETRIES or self._stopping:
            self.settle(request, _UNFINISHED if self._stopping else _REJECTED, now_ns, message)
            return
        via = request.via
        if via is not None:
            via.in_flight -= 1
            self._in_flight -= 1
        request.via = None
        request.retries += 1
        request.waited = True
        self._waiting.appendleft(request)

    def retire(self, connection: LoadConnection) -> None:
        if not connection.retired:
            connection.retired = True
            self._connections -= 1

    def available(self, connection: LoadConnection) -> None:
        if self._connecting:
            self._connecting.pop(connection.fd, None)
        if not connection.listed and connection.state == OPEN and connection.in_flight < connection.capacity:
            connection.listed = True
            self._idle.append(connection)

    def lost(self, connection: LoadConnection, message: str) -> None:
        self.retire(connection)
        self._by_fd[connection.fd] = None
        was_connecting = self._connecting.pop(connection.fd, None) is not None
        if message and not connection.answered:
            self._back_off(message)
            if was_connecting:
                self._fail_waiting(message)

    def watch(self, connection: LoadConnection, writable: bool) -> None:
        events = select.EPOLLIN | select.EPOLLOUT if writable else select.EPOLLIN
        self._epoll.modify(connection.fd, events)

    def sent(self, request: LoadRequest, now_ns: int) -> None:
        request.sent_ns = now_ns
        if not request.waited:
            self._lag.add(now_ns - request.intended_ns)

    def defer(self, connection: LoadConnection) -> None:
        self._deferred.append(connection)

    def defer_send(self, connection: LoadConnection) -> None:
        self._unsent.append(connection)

    def error(self, message: str) -> None:
        """Keep a message for the controller, if there are not too many."""
        if len(self._errors) < _MAX_ERRORS_PER_REPORT:
            self._errors.append(message)

    # The loop.

    def run(self) -> None:
        """Connect, wait for the controller's sign, and send until the share is done or the controller stops it."""
        fixed = self._share.source.fixed
        if fixed is not None:
            self._fixed = [self._factory.encode(request, False) for request in fixed]
        self._epoll.register(self._link.fd, select.EPOLLIN)
        woken_ns = monotonic_ns()
        while True:
            self._open_connections(woken_ns)
            now = monotonic_ns()
            if now - woken_ns > self._loop_lag_max_ns and self._started:
                self._loop_lag_max_ns = now - woken_ns
            events = self._wait(now)
            woken_ns = monotonic_ns()
            self._handle(events)
            if self._timers or self._share.open_loop:
                self._run_timers(monotonic_ns())
            if self._waiting:
                self._dispatch()
            if self._unsent:
                self._send_deferred()
            if self._deferred:
                self._run_deferred()
            if self._unsent:
                self._send_deferred()
            if self._answers and woken_ns >= self._next_waits_ns:
                self._waits.read(self._answers)
                self._answers = 0
                self._next_waits_ns = woken_ns + _WAITS_NS
            if woken_ns >= self._next_expiry_ns:
                self._expire(woken_ns)
            if woken_ns >= self._next_report_ns or self._batch.count >= _MAX_REPORT_ROWS:
                self._report(False)
                self._next_report_ns = woken_ns + _REPORT_NS
            if self._ended():
                return

    def finish(self) -> None:
        """Close the connections and hand over what is left."""
        for connection in self._by_fd:
            if connection is not None:
                connection.close()
        self._report(True)
        self._link.flush_blocking()

    def _ended(self) -> bool:
        if self._link.broken:
            return True
        if self._unsettled or not (self._started or self._stopping):
            return False
        if self._stopping or self._left == 0:
            return True
        return self._share.open_loop and self._next_arrival >= len(self._share.times_ns)

    def _wait(self, now_ns: int) -> list[tuple[int, int]]:
        due = min(self._next_expiry_ns, self._next_report_ns)
        precise = self._timers[0][0] if self._timers else _FOREVER
        if self._started and not self._stopping and self._next_arrival < len(self._share.times_ns):
            precise = min(precise, self._start_ns + self._share.times_ns[self._next_arrival])
        if precise <= now_ns or self._waiting_may_go():
            return self._epoll.poll(0, _MAX_EVENTS)
        if precise - _COARSE_NS < due and self._epoll_fd < _MAX_SELECT_FD:
            if precise - now_ns > _COARSE_NS:
                return self._epoll.poll((precise - _COARSE_NS - now_ns) / _S, _MAX_EVENTS)
            select.select((self._epoll_fd,), (), (), (precise - now_ns) / _S)
            return self._epoll.poll(0, _MAX_EVENTS)
        return self._epoll.poll(max(0, min(due, precise) - now_ns) / _S, _MAX_EVENTS)

    def _waiting_may_go(self) -> bool:
        return len(self._waiting) > 0 and len(self._idle) > 0

    def _handle(self, events: list[tuple[int, int]]) -> None:
        by_fd = self._by_fd
        for fd, mask in events:
            connection = by_fd[fd] if fd < len(by_fd) else None
            if connection is not None:
                connection.ready(mask)
                if self._waiting:
                    self._dispatch()
                if self._unsent:  # now, not after the other events: they take milliseconds with many connections
                    self._send_deferred()
            elif fd == self._link.fd:
                self._command(mask)

    def _run_deferred(self) -> None:
        deferred = self._deferred
        self._deferred = []
        for connection in deferred:
            connection.deferred()

    def _send_deferred(self) -> None:
        unsent = self._unsent
        self._unsent = []
        for connection in unsent:
            connection.send_deferred()

    def _run_timers(self, now_ns: int) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            request = heappop(timers)[2]
            if request.via is None and not request.settled:
                self._waiting.append(request)
            else:
                self._cancel(request, _CANCELLED, now_ns, "")
        if self._share.open_loop and self._started and not self._stopping:
            self._arrive(now_ns)

    def _arrive(self, now_ns: int) -> None:
        times = self._share.times_ns
        while self._next_arrival < len(times) and self._left != 0:
            due = self._start_ns + times[self._next_arrival]
            if due > now_ns:
                return
            user = self._users.popleft() if self._users and self._users[0].free_ns <= now_ns else self._new_user()
            indexes = self._share.request_indexes
            encoded = (
                self._indexed(indexes[self._next_arrival])
                if indexes is not None
                else self._next_request(user, user.answer)
            )
            self._next_arrival += 1
            request = self._make(encoded, user, due)
            request.waited = not self._idle
            self._waiting.append(request)
            self._dispatch()

    # Users and their requests.

    def _begin(self, start_ns: int) -> None:
        self._started = True
        self._start_ns = start_ns
        if not self._share.open_loop:
            for _ in range(self._share.users):
                if self._left == 0:
                    return
                user = self._new_user()
                self._at(start_ns, self._make(self._next_request(user, None), user, start_ns))

    def _new_user(self) -> LoadUser:
        user = LoadUser(self._new_session(), None)
        if not self._fixed:
            user.script = self._share.source.script(user.session)
        return user

    def _new_session(self) -> int:
        session = self._sessions * self._share.processes + self._share.process
        self._sessions += 1
        return session

    def _make(self, encoded: EncodedRequest, user: LoadUser, intended_ns: int) -> LoadRequest:
        self._unsettled += 1
        if self._left > 0:
            self._left -= 1
        return LoadRequest(encoded, user, intended_ns, intended_ns + self._share.timeout_ns)

    def _next_request(self, user: LoadUser, answer: Answer | None) -> EncodedRequest:
        if self._fixed:
            encoded = self._fixed[self._turn % len(self._fixed)]
            self._turn += self._share.processes
            return self._changed(encoded) if encoded.changes else encoded
        for _ in range(_MAX_EMPTY_SCRIPTS):
            script = user.script
            assert script is not None
            request = script.next(answer)
            if request is not None:
                return self._factory.encode(request, script.needs_answers)
            answer = None
            user.session = self._new_session()
            user.script = self._share.source.script(user.session)
        raise ValueError(f"{_MAX_EMPTY_SCRIPTS} scripts in succession have no request")

    def _indexed(self, index: int) -> EncodedRequest:
        encoded = self._fixed[index]
        return self._changed(encoded) if encoded.changes else encoded

    def _changed(self, encoded: EncodedRequest) -> EncodedRequest:
        return self._factory.encode(encoded.prepared.changed(), False)

    def _continue(self, request: LoadRequest, user: LoadUser, outcome: int, now_ns: int) -> None:
        if self._share.open_loop:
            self._free(request, user, now_ns)
            return
        if self._stopping or self._left == 0:
            return
        script = user.script
        delay = self._share.think_ns
        answer: Answer | None = None
        if script is not None:
            answer = _answer(request) if script.needs_answers else None
            if script.think_s > 0:
                delay = int(script.think_s * _S)
        if outcome == _CONNECTION_ERROR:
            user.failures += 1
            delay += _back_off_ns(user.failures)
        following = self._make(self._next_request(user, answer), user, now_ns + delay)
        if delay:
            self._at(now_ns + delay, following)
        else:
            self._waiting.append(following)

    def _free(self, request: LoadRequest, user: LoadUser, now_ns: int) -> None:
        script = user.script
        if script is not None:
            user.answer = _answer(request) if script.needs_answers else None
            user.free_ns = now_ns + int(script.think_s * _S)
        self._users.append(user)

    def _at(self, due_ns: int, request: LoadRequest) -> None:
        self._sequence += 1
        heappush(self._timers, (due_ns, self._sequence, request))

    def _dispatch(self) -> None:
        """Send what is due over the connections that are free."""
        waiting = self._waiting
        idle = self._idle
        for _ in range(_MAX_EVENTS):  # then see first what has come
            if not (waiting and idle):
                return
            connection = idle.pop()
            connection.listed = False
            if connection.state != OPEN:
                continue
            request = waiting.popleft()
            if request.settled:
                self._idle.append(connection)
                connection.listed = True
                continue
            connection.in_flight += 1
            self._in_flight += 1
            if connection.in_flight < connection.capacity:
                connection.listed = True
                idle.insert(0, connection)
            request.via = connection
            connection.start(request)
            if request.encoded.cancel == _AFTER_TIME and not request.settled:
                self._at(request.sent_ns + request.encoded.cancel_after * _MS, request)

    def _cancel(self, request: LoadRequest, outcome: int, now_ns: int, message: str) -> None:
        if request.settled:
            return
        self.settle(request, outcome, now_ns, message)
        via = request.via
        if via is not None and via.state != CLOSED:
            via.cancel(request)

    # Connections.

    def _open_connections(self, now_ns: int) -> None:
        if self._started:
            wanted = len(self._waiting)
        elif self._stopping or self._ready_sent:
            return
        else:
            wanted = self._share.initial_connections - self._connections
            if (wanted <= 0 and not self._connecting) or self._failures:
                self._ready_sent = True
                self._link.ready(self._connections - len(self._connecting), self._cause)
                return
        wanted -= len(self._connecting)
        wanted = min(wanted, self._share.connections - self._connections, _MAX_CONNECTING - len(self._connecting))
        if wanted <= 0 or now_ns < self._connect_after_ns:
            return
        for _ in range(wanted):
            try:
                connection = self._factory.open(self, self._connections)
            except OSError as error:
                message = f"connecting failed: {describe(error)}"
                self._back_off(message)
                self._fail_waiting(message)
                return
            while connection.fd >= len(self._by_fd):
                self._by_fd.append(None)
            self._by_fd[connection.fd] = connection
            self._connecting[connection.fd] = connection
            self._connections += 1
            self._epoll.register(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def _back_off(self, message: str) -> None:
        """Open no connection for a while: the last one was of no use."""
        now = monotonic_ns()
        self._cause = message
        if now >= self._connect_after_ns:
            self._failures += 1
            self._connect_after_ns = now + _back_off_ns(self._failures)

    def _fail_waiting(self, message: str) -> None:
        """Fail what waits for a connection: one request, or all of them if no connection is open."""
        now = monotonic_ns()
        none_open = self._connections <= len(self._connecting)
        for _ in range(len(self._waiting) if none_open else min(1, len(self._waiting))):
            self.settle(self._waiting.popleft(), _CONNECTION_ERROR, now, message)

    def _expire(self, now_ns: int) -> None:
        """End what takes too long."""
        self._next_expiry_ns = now_ns + max(5 * _MS, min(self._share.timeout_ns // 20, 500 * _MS))
        timeout_s = self._share.timeout_ns / _S
        while self._waiting and self._waiting[0].deadline_ns <= now_ns:
            self.settle(
                self._waiting.popleft(), _TIMEOUT, now_ns, f"not sent within {timeout_s:g} s: no free connection"
            )
        oldest = now_ns - self._share.connect_timeout_ns
        for connection in list(self._connecting.values()):
            if connection.opened_ns <= oldest:
                connection.fail(f"connecting failed: no connection within {self._share.connect_timeout_ns / _S:g} s")
        for candidate in self._by_fd:
            if candidate is not None and candidate.in_flight:
                for request in candidate.requests():
                    if request.deadline_ns <= now_ns:
                        self._cancel(request, _TIMEOUT, now_ns, f"no complete answer within {timeout_s:g} s")
        if now_ns >= self._stop_ns:
            self._give_up(now_ns)

    # The controller.

    def _command(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._link.flush()
            if not self._link.blocked:
                self._epoll.modify(self._link.fd, select.EPOLLIN)
        if mask & ~select.EPOLLOUT:
            for name, value in self._link.commands():
                if name == "go":
                    self._begin(value)
                elif name == "stop":
                    self._stop(value)

    def _stop(self, grace_ns: int) -> None:
        now = monotonic_ns()
        self._stopping = True
        self._stop_ns = min(self._stop_ns, now + grace_ns)
        self._next_expiry_ns = min(self._next_expiry_ns, self._stop_ns)
        while self._waiting:
            self.settle(self._waiting.popleft(), _UNFINISHED, now)
        kept = [timer for timer in self._timers if timer[2].via is not None]
        self._unsettled -= len(self._timers) - len(kept)
        kept.sort()
        self._timers = kept

    def _give_up(self, now_ns: int) -> None:
        for connection in self._by_fd:
            if connection is not None and connection.in_flight:
                for request in connection.requests():
                    self._cancel(request, _UNFINISHED, now_ns, "")

    def _report(self, ended: bool) -> None:
        records, chunks = self._batch.take()
        lags = self._lag.take()
        in_flight = self._in_flight + len(self._waiting)
        self._waits.read(0)
        self._link.report(records, chunks, in_flight, self._errors, lags, self._loop_lag_max_ns, self._waits, ended)
        self._errors = []
        self._loop_lag_max_ns = 0
        if self._link.blocked:
            self._epoll.modify(self._link.fd, select.EPOLLIN | select.EPOLLOUT)


def _answer(request: LoadRequest) -> Answer:
    return Answer(request.status, request.body, request.text, request.output_tokens)


def _back_off_ns(failures: int) -> int:
    return int(backoff_s(failures, _FIRST_BACK_OFF_S, _MAX_BACK_OFF_S) * _S)
