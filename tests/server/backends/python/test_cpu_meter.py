"""What an execution used of processors, measured by the thread that executes."""

import time

import pytest

from conch.server.backends.child.conch_child.ipc import cpu_meter
from conch.server.backends.child.conch_child.ipc.cpu_meter import MIN_MEASURED_NS, UNKNOWN, CpuMeter


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_processor_time_counts_from_the_end_of_the_execution_before() -> None:
    meter = CpuMeter()
    work(0.02)
    cpu_ns, wait_ns, switches = meter.used(MIN_MEASURED_NS)
    assert cpu_ns >= 15_000_000
    assert min(wait_ns, switches) >= 0
    time.sleep(0.05)
    assert meter.used(MIN_MEASURED_NS)[0] < cpu_ns
    meter.close()
    meter.close()


def test_a_short_execution_is_not_measured_nor_is_the_one_after_it() -> None:
    meter = CpuMeter()
    assert meter.used(MIN_MEASURED_NS - 1) == UNKNOWN
    assert meter.used(MIN_MEASURED_NS) == UNKNOWN
    work(0.005)
    assert meter.used(MIN_MEASURED_NS)[0] > 0
    meter.close()


def test_without_the_file_waits_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(cpu_meter.os, "open", refuse)
    meter = CpuMeter()
    work(0.005)
    cpu_ns, wait_ns, _ = meter.used(MIN_MEASURED_NS)
    assert cpu_ns > 0
    assert wait_ns == 0
