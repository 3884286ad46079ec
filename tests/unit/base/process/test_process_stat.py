"""Readings of real processes."""

import hashlib
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conch.base.process.process_stat import TICKS_PER_S, CpuPressure, CpuWait, ProcessStat


def test_this_process() -> None:
    stat = ProcessStat.read("self")
    assert stat is not None
    assert stat.parent == os.getppid()
    assert stat.state == "R"
    times = os.times()
    assert stat.cpu_s == pytest.approx(times.user + times.system + times.children_user + times.children_system, abs=1)
    assert 1 << 20 < stat.resident_bytes < stat.virtual_bytes


def test_a_stopped_process_with_a_name_that_looks_like_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) T 1 (b"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            while (stat := ProcessStat.read(process.pid)) is None or stat.state != "S":
                time.sleep(0.01)
            assert (stat.name, stat.parent) == (program.name, os.getpid())
            assert stat.started >= int(float(Path("/proc/uptime").read_text().split()[0]) - 60) * TICKS_PER_S
        finally:
            process.kill()
    assert ProcessStat.read(process.pid) is None


@pytest.mark.parametrize("text", ["", "1 (a", "1 (a) S", "1 (a) S x" + " 0" * 40])
def test_a_malformed_reading_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stat").write_text(text)
    assert ProcessStat.read(1, tmp_path) is None


SOME, FULL = "some avg10=56.75 avg60=62.24 avg300=77.35 total=4255224974\n", "full avg10=0.00 avg60=0.00 total=7\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [(SOME + FULL, 4255.224974), (FULL, 0.0), ("", 0.0), ("some total=", 0.0)]
)
def test_the_pressure_on_processors(tmp_path: Path, text: str, seconds: float) -> None:
    assert CpuPressure(tmp_path).total_s() == 0.0  # without such a file
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(text)
    pressure = CpuPressure(tmp_path)
    assert pressure.total_s() == pytest.approx(seconds)
    pressure.close()
    assert pressure.total_s() == 0.0


def test_the_pressure_grows_while_threads_wait() -> None:
    pressure, wait = CpuPressure(), CpuWait()
    before, waited_ns = pressure.total_s(), wait.total_ns()
    with ThreadPoolExecutor() as pool:
        list(pool.map(hashlib.sha256, [bytes(1 << 24)] * 8 * len(os.sched_getaffinity(0))))
    if before == 0.0:
        pytest.skip("the kernel has no pressure stall information: CONFIG_PSI")
    assert pressure.total_s() > before
    assert waited_ns is not None
    assert (wait.total_ns() or 0) >= waited_ns
