"""Blocking the event loop is measured, and what blocks it named; idling is not blocking."""

import asyncio
import ctypes
import gc
import hashlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conch.domain.exposition import Buckets
from conch.server.observability.event_log import EventRecorder
from conch.server.observability.metrics.loop_lag import (
    BUCKETS_S,
    MAX_BLOCKED_S,
    GarbagePauses,
    LoopLag,
    lag_families,
)


def work(seconds: float) -> None:
    """Use the processor for so long."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


async def beats(lag: LoopLag) -> None:
    """Wait until the timer has fired."""
    count = sum(lag.counts)
    while sum(lag.counts) == count:
        await asyncio.sleep(0.01)


async def test_a_blocked_loop_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    lag = LoopLag()
    lag.start()
    await beats(lag)
    with caplog.at_level(logging.WARNING):
        work(3 * MAX_BLOCKED_S)
        await beats(lag)
        work(3 * MAX_BLOCKED_S)
        await beats(lag)
    lag.stop()
    assert lag.stalls == 2
    assert lag.longest_s > MAX_BLOCKED_S
    assert sum(lag.counts[BUCKETS_S.index(MAX_BLOCKED_S) + 1 :]) == 2
    assert (
        len([message for message in caplog.messages if message.startswith("event loop blocked for")]) == 1
    )  # one in 10 s


async def test_time_without_a_processor_does_not_count() -> None:
    lag = LoopLag()
    lag.start()
    await beats(lag)
    time.sleep(3 * MAX_BLOCKED_S)  # noqa: ASYNC251 - as if the system ran something else
    await beats(lag)
    lag.stop()
    assert lag.stalls == 0


@pytest.fixture
def busy_processors() -> Iterator[None]:
    """Two other processes for each processor."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("busy_processors")
async def test_the_lock_in_a_thread_that_waits_for_a_processor_does_not_count() -> None:
    """One thread computes without the interpreter's lock; the other holds it, and gets no processor.

    A call on the loop counts all the same.
    """
    ended = threading.Event()

    def compute() -> None:
        data = bytes(1 << 24)
        while not ended.is_set():
            hashlib.sha256(data)

    computing = threading.Thread(target=compute)
    lag = LoopLag()
    try:
        computing.start()
        lag.start()
        until = time.monotonic() + 1  # other processes have just begun: an average of ten seconds shows little of them
        while time.monotonic() < until:
            await beats(lag)
            before = lag.stalls
        await asyncio.to_thread(ctypes.PyDLL(None).usleep, 900_000)
        await beats(lag)
        assert lag.stalls == before
        work(3 * MAX_BLOCKED_S)
        await beats(lag)
        assert lag.stalls == before + 1
    finally:
        ended.set()
        computing.join()
        lag.stop()


async def test_the_alarm_finds_the_running_code_and_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    from conch.protocols.v2_json.data import pack

    lag = LoopLag(alarm=True)
    lag.start()
    await beats(lag)
    with caplog.at_level(logging.WARNING):
        until = time.process_time() + 4 * MAX_BLOCKED_S
        while time.process_time() < until:
            pack("A", "FP32", [[1.0] * 1000] * 1000, 1_000_000)
        await beats(lag)
    lag.stop()
    assert any("event loop blocked for" in message for message in caplog.messages)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


async def test_the_log_names_garbage_collection(caplog: pytest.LogCaptureFixture) -> None:
    gc.disable()
    for _ in range(1_000_000):
        cycle: list[Any] = []
        cycle.append(cycle)
    pauses = GarbagePauses(EventRecorder())
    pauses.start()
    lag = LoopLag(alarm=True, pauses=pauses)
    lag.start()
    try:
        await beats(lag)
        with caplog.at_level(logging.WARNING):
            gc.collect()
            await beats(lag)
    finally:
        lag.stop()
        pauses.stop()
        gc.enable()
    assert [message for message in caplog.messages if message.endswith(" ms in garbage collection")]


def test_the_families_have_the_measurements() -> None:
    lag = LoopLag()
    lag.stalls, lag.longest_s, lag.total_s = 2, 0.5, 0.75
    lag.counts[0], lag.counts[-1] = 3, 2
    values = {family.name: [point.value for point in family.points] for family in lag_families(lag)}
    assert values["conch_event_loop_stalls_total"] == [2]
    assert values["conch_event_loop_longest_stall_seconds"] == [0.5]
    (histogram,) = values["conch_event_loop_lag_seconds"]
    assert isinstance(histogram, Buckets)
    assert (histogram.bounds[-1], histogram.counts[-1], histogram.total) == (math.inf, 5, 0.75)
