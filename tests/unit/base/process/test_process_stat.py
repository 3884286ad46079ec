"""Readings of real processes."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conch.base.process.process_stat import TICKS_PER_S, ProcessStat, cpu_pressure


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


SOME, FULL = "some avg10=56.75 avg60=62.24 avg300=77.35 total=4255224974\n", "full avg10=0.00 avg60=0.00 total=0\n"


@pytest.mark.parametrize(("text", "part"), [(SOME + FULL, 0.5675), (SOME, 0.5675), ("", 0.0), ("some avg10", 0.0)])
def test_the_pressure_on_processors(tmp_path: Path, text: str, part: float) -> None:
    assert cpu_pressure(tmp_path) == 0.0  # without such a file
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(text)
    assert cpu_pressure(tmp_path) == pytest.approx(part)
    assert 0.0 <= cpu_pressure() <= 1.0
