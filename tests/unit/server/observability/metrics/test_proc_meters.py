"""CPU time and memory of processes, from real processes and from a `/proc` of the test."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from conch.machine.memory import of_machine
from conch.server.observability.metrics.proc_meters import (
    CpuTimes,
    HostMeter,
    HostUsage,
    ProcessMeter,
    parse_stat,
    server_families,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


STAT = "cpu  100 10 50 800 40 0 0 0 7 0\ncpu0 1 2 3 4\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


def write_process(
    proc: Path, pid: int, name: str, ticks: tuple[int, int, int, int], pages: int, *children: int
) -> None:
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    fields = ["S", *["0"] * 10, *map(str, ticks), *["0"] * 4, "50", "4096", str(pages), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (task / "children").write_text(" ".join(map(str, children)))


def test_descendants_count(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "a) S (b", (1, 2, 3, 4), 10, 8, 9)
    write_process(tmp_path, 8, "child", (100, 0, 0, 0), 20)
    meter = ProcessMeter(list, 1, tmp_path)
    meter.sample([7, 12])  # 9 and 12 have ended
    assert set(meter.usage) == {7}
    assert meter.usage[7].cpu_s == (1 + 2 + 3 + 4 + 100) / TICKS
    assert meter.usage[7].resident_bytes == 30 * PAGE


def test_without_proc_there_are_no_samples(tmp_path: Path) -> None:
    meter = ProcessMeter(list, 1, tmp_path / "none")
    meter.sample([os.getpid()])
    assert meter.usage == {}
    assert list(server_families(meter)) == []


def test_memory_of_a_real_child_of_a_child() -> None:
    grandchild = "import time; x = bytearray(60_000_000); print('ready', flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            meter = ProcessMeter(list, 1)
            until(lambda: meter.sample([process.pid]) or meter.usage[process.pid].resident_bytes > 60_000_000)
            assert meter.usage[process.pid].cpu_s > 0
        finally:
            os.killpg(process.pid, 9)


async def test_it_samples_while_it_runs() -> None:
    meter = ProcessMeter(lambda: [os.getpid()], 0.01)
    running = asyncio.create_task(meter.run())
    while meter.server is None:
        await asyncio.sleep(0.01)
    running.cancel()
    assert meter.usage[os.getpid()].resident_bytes > 0
    values = {family.name: next(iter(family.points)).value for family in server_families(meter)}
    assert values["process_open_fds"] > 2
    assert values["process_start_time_seconds"] > 1.6e9
    assert values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline
        sleep(0.02)


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


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert [of_machine(field, tmp_path) for field in ("MemTotal", "MemAvailable")] == [1024000, 409600]


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
