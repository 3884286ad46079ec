"""Measure how long the event loop is blocked, by the lag of a timer that should fire every 25 ms.

A lag has two causes: a call ran for too long on the loop, or the loop's thread got no CPU time, which is not a fault of
the server. So the lag is without the time in which that thread was ready to run, and at most the CPU time
that the process used meanwhile. Where processors were contended, a long lag counts only if that thread computed:
otherwise it may have waited for another one, which held the interpreter's lock and got no processor. Collections of
garbage are recorded in the event log, too.
"""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from math import inf
from time import monotonic, monotonic_ns, process_time, thread_time, thread_time_ns
from types import FrameType
from typing import Any

from conch.base.process.process_stat import CpuPressure, CpuWait
from conch.domain.exposition import Buckets, Family
from conch.server.observability.event_log import EventRecorder
from conch.server.observability.metrics.reading import Reading, read_one


class GarbagePauses:
    """Records each collection while it is started. All threads that run Python wait for one, whichever begins it."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self.total_s = 0.0
        self._began = 0
        self._cpu_ns = 0

    def start(self) -> None:
        """Begin to record."""
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """End. Safe to call more than once."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, facts: dict[str, Any]) -> None:
        if phase == "start":
            self._began, self._cpu_ns = monotonic_ns(), thread_time_ns()
        elif self._began:
            ended, cpu_ns = monotonic_ns(), thread_time_ns() - self._cpu_ns
            self.total_s += (ended - self._began) / 1e9
            self._recorder.pause(f"gc {facts['generation']}", self._began, ended, cpu_ns)
            self._began = 0


INTERVAL_S = 0.025
MAX_BLOCKED_S = 0.1
# Upper bounds of the histogram, in seconds.
BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
# Processors were contended if threads of the machine waited for one during more than this part of a lag.
_CONTENDED = 0.25
# The part of a lag, without its waits, that is computed by a call on the loop; to wait for the lock takes some, too.
_OWN = 0.8
# Minimum time between log lines; the metrics count every stall.
_LOG_INTERVAL_S = 10.0

_log = logging.getLogger(__name__)


class LoopLag:
    """Measures one event loop. Life cycle: `start` → `stop`. The attributes may be read on the loop at any time.

    Each lag of more than a millisecond is a pause in the event log of `recorder`, its waits for a processor included.
    With `alarm`, a SIGALRM handler records the running code when the timer is overdue, for the log. The process must
    not use that signal or its real-time interval timer for anything else. If `pauses` explain most of a lag, the log
    names garbage collection instead: the handler runs after it, in code that has nothing to do with it.
    """

    def __init__(
        self, *, alarm: bool = False, recorder: EventRecorder | None = None, pauses: GarbagePauses | None = None
    ) -> None:
        self._alarm = alarm
        self._recorder = recorder
        self._pauses = pauses
        self._paused_s = 0.0
        self.stalls = 0  # lags of more than MAX_BLOCKED_S
        self.longest_s = 0.0
        self.total_s = 0.0
        self.counts = [0] * (len(BUCKETS_S) + 1)  # by BUCKETS_S, the last for infinity
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._cpu_s = 0.0
        self._own_s = 0.0
        self._wait: CpuWait | None = None
        self._waited_ns = 0
        self._pressure: CpuPressure | None = None
        self._pressed_s = 0.0
        self._running = ""  # description of the code that the alarm interrupted
        self._logged = -_LOG_INTERVAL_S
        self._armed = False

    def start(self) -> None:
        """Start measuring the running loop."""
        self._loop = asyncio.get_running_loop()
        self._wait, self._pressure = CpuWait(), CpuPressure()
        if self._alarm and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.siginterrupt(signal.SIGALRM, False)
            self._armed = True
        self._schedule()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for counter in (self._wait, self._pressure):
            if counter is not None:
                counter.close()
        self._wait = self._pressure = None
        if self._armed:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            with suppress(ValueError):  # in another thread
                # Ignoring discards a signal that is pending, which would end the process.
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _schedule(self) -> None:
        assert self._loop is not None
        assert self._wait is not None
        assert self._pressure is not None
        self._waited_ns = self._wait.total_ns() or 0
        self._pressed_s = self._pressure.total_s()
        self._due = monotonic() + INTERVAL_S
        self._paused_s = 0.0 if self._pauses is None else self._pauses.total_s
        self._cpu_s = process_time()
        self._own_s = thread_time()
        self._timer = self._loop.call_later(INTERVAL_S, self._fired)
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_S + MAX_BLOCKED_S)

    def _fired(self) -> None:
        lag = monotonic() - self._due
        if lag > BUCKETS_S[0]:
            assert self._wait is not None
            assert self._pressure is not None
            waited_s = ((self._wait.total_ns() or 0) - self._waited_ns) / 1e9
            used_s = process_time() - self._cpu_s
            if self._recorder is not None:
                end = monotonic_ns()
                cpu_s, wait_s = min(used_s, lag), min(waited_s, lag)
                self._recorder.pause("stall", end - int(lag * 1e9), end, int(cpu_s * 1e9), int(wait_s * 1e9))
            is_contended = self._pressure.total_s() - self._pressed_s > _CONTENDED * lag
            lag = min(lag - waited_s, used_s)
            if lag > MAX_BLOCKED_S and is_contended and thread_time() - self._own_s < _OWN * lag:
                lag = 0.0
            if self._pauses is not None and self._pauses.total_s - self._paused_s > lag / 2:
                self._running = " in garbage collection"
        self._add(max(lag, 0.0))
        self._schedule()

    def _add(self, blocked_s: float) -> None:
        self.total_s += blocked_s
        self.longest_s = max(self.longest_s, blocked_s)
        index = 0
        while index < len(BUCKETS_S) and blocked_s > BUCKETS_S[index]:
            index += 1
        self.counts[index] += 1
        if blocked_s > MAX_BLOCKED_S:
            self.stalls += 1
            now = monotonic()
            if now - self._logged >= _LOG_INTERVAL_S:
                self._logged = now
                _log.warning("event loop blocked for %.0f ms%s", blocked_s * 1000, self._running)
        self._running = ""

    def _on_alarm(self, _signal: int, frame: FrameType | None) -> None:
        """Record the running functions, innermost first. The handler runs in the main thread."""
        names: list[str] = []
        while frame is not None and len(names) < 4:
            module = frame.f_globals.get("__name__", "")
            if isinstance(module, str) and module.startswith("conch"):
                names.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        if names:
            self._running = " in " + " < ".join(names)


LAG: tuple[Reading[LoopLag], ...] = (
    Reading(
        "conch_event_loop_lag_seconds",
        lambda lag: Buckets((*BUCKETS_S, inf), list(accumulate(lag.counts)), lag.total_s),
    ),
    Reading("conch_event_loop_stalls_total", lambda lag: lag.stalls),
    Reading("conch_event_loop_longest_stall_seconds", lambda lag: lag.longest_s),
)


def lag_families(lag: LoopLag) -> Iterator[Family]:
    """Yield the families of the event loop."""
    return read_one(LAG, lag)
