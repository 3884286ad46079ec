"""CPU time and memory of processes, from real processes and from a `/proc` of the test."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from conch.server.observability.metrics.processes import ProcessMeter, server_families

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


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
