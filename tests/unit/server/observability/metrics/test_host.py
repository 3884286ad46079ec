"""Processor and memory from files as Linux writes them."""

from pathlib import Path

import pytest

from conch.server.observability.metrics.host import CpuTimes, HostMeter, HostUsage, parse_meminfo, parse_stat

STAT = "cpu  100 10 50 800 40 0 0 0 7 0\ncpu0 1 2 3 4\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


class Machine:
    """A separate `/proc` and a clock that is set by the test."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now = 0.0
        self.set(STAT)
        (proc / "meminfo").write_text(MEMINFO)
        self.meter = HostMeter(2.0, proc, lambda: self.now)

    def set(self, stat: str) -> None:
        (self.proc / "stat").write_text(stat)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_idle_is_idle_and_waiting_for_the_disk() -> None:
    assert parse_stat(STAT) == CpuTimes(total=1000, idle=840)


def test_memory_is_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == (1024000, 409600)


def test_the_first_measurement_is_since_boot(machine: Machine) -> None:
    assert machine.meter.usage() == HostUsage(0.16, 1024000, 614400)


def test_a_later_one_is_since_the_one_before(machine: Machine) -> None:
    machine.meter.usage()
    machine.now = 2.0
    machine.set("cpu  150 10 50 850 40 0 0 0 0 0\n")
    usage = machine.meter.usage()
    assert usage is not None
    assert usage.cpu_utilization == 0.5


def test_within_the_interval_the_last_one_is_repeated(machine: Machine) -> None:
    first = machine.meter.usage()
    machine.now = 1.9
    machine.set("cpu  150 10 50 850 40 0 0 0 0 0\n")
    assert machine.meter.usage() is first


@pytest.mark.parametrize("stat", [STAT, "cpu  100 10 50 800 30 0 0 0 0 0\n", "cpu  100 10 60 790 40 0 0 0 0 0\n"])
def test_utilization_stays_in_its_bounds_when_ticks_are_taken_back(machine: Machine, stat: str) -> None:
    machine.meter.usage()
    machine.now = 5.0
    machine.set(stat)
    usage = machine.meter.usage()
    assert usage is not None
    assert 0.0 <= usage.cpu_utilization <= 1.0


@pytest.mark.parametrize("stat", ["", "cpu", "processor 1 2 3 4", "cpu a b c d e f g h"])
def test_a_malformed_proc_is_not_an_error(machine: Machine, stat: str) -> None:
    machine.set(stat)
    assert machine.meter.usage() is None


def test_a_missing_proc_is_not_an_error(tmp_path: Path) -> None:
    assert HostMeter(2.0, tmp_path / "none").usage() is None


def test_this_machine_has_plausible_values() -> None:
    usage = HostMeter(2.0).usage()
    assert usage is not None
    assert 0.0 <= usage.cpu_utilization <= 1.0
    assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
