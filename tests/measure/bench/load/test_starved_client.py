"""A client that waits for a processor, and the processes that take it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conch.measure.bench.load.delays import CpuWaits, percentile_s
from conch.measure.bench.observers.local_processes import LocalProcesses
from tests.measure.bench.cli.bench_command import run_bench
from tests.measure.bench.targets.odd_servers import as_json, scripted

BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
METADATA = {
    "name": "m",
    "platform": "test",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
}
ANSWER = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}]}
ROUTES = {
    "/v2": as_json({"name": "test", "version": "1"}),
    "/v2/repository/index": as_json([{"name": "m", "state": "READY"}]),
    "/v2/models/m": as_json(METADATA),
    "/v2/models/m/infer": as_json(ANSWER),
}


def unrelated(*arguments: str) -> int:
    """Start Python without a relation to this process: its shell ends at once. Return its process."""
    command = ["sh", "-c", '"$0" "$@" >/dev/null & echo $!', sys.executable, "-c", *arguments]
    return int(subprocess.check_output(command))


def used_s(pid: int) -> float:
    """Return the processor time of a process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@contextlib.contextmanager
def hogs(count: int) -> Iterator[list[int]]:
    """Keep one processor busy with processes, and keep this process and its children on it."""
    usable = os.sched_getaffinity(0)
    cpu = min(usable)
    running = [unrelated(BUSY, str(cpu)) for _ in range(count)]
    os.sched_setaffinity(0, {cpu})
    try:
        while any(os.sched_getaffinity(process) != {cpu} for process in running):
            time.sleep(0.01)
        yield running
    finally:
        os.sched_setaffinity(0, usable)
        for process in running:
            os.kill(process, signal.SIGKILL)


def test_waits_for_a_processor_are_counted_by_answer() -> None:
    waits = CpuWaits()
    if waits.total_ns is None:
        pytest.skip("this kernel does not count waits for a processor")
    with hogs(2):
        counts: Counter[int] = Counter()
        while not counts or percentile_s(counts, 0.99) <= 1e-3:
            time.sleep(0.005)
            waits.read(3)
            counts.update(dict(waits.histogram.take()))
    assert sum(counts.values()) % 3 == 0


@pytest.mark.slow
def test_a_starved_client_in_a_closed_loop_is_named_the_bottleneck(tmp_path: Path) -> None:
    with scripted(ROUTES) as address, hogs(2):
        done = run_bench(tmp_path, address, "m", "--concurrency=1", "--warm-up=200ms", "--duration=3s")
    notes = {note["code"]: note for note in done.measurement["notes"]}
    assert done.status == 3
    assert "since it waited for a processor" in notes["client-bottleneck"]["message"]
    assert notes["client-bottleneck"]["severity"] == "invalid"
    assert notes["foreign-load"]["severity"] == "warning"


@pytest.mark.parametrize("port", [None, 1], ids=["remote", "unknown"])
def test_foreign_processes_are_named_with_their_share(port: int | None) -> None:
    pid = unrelated("while True: pass")
    try:
        while used_s(pid) < 0.2:  # it takes that to start
            time.sleep(0.01)
        processes = LocalProcesses(port)
        start = time.monotonic_ns()
        processes.sample()
        used = used_s(pid)
        time.sleep(2)
        used = used_s(pid) - used
        processes.sample()
        end = time.monotonic_ns()
        (note,) = processes.observed(start, end).notes
    finally:
        os.kill(pid, signal.SIGKILL)
    named = {pid: float(cpus) for pid, cpus in re.findall(r"\((\d+)\) ([\d.]+)", note.message)}
    (total,) = re.findall(r"used ([\d.]+) of", note.message)
    share = used / ((end - start) / 1e9)
    # On a busy machine others are named in its place.
    least = min(named.values()) if len(named) == 5 else float(total) / 10
    assert str(pid) in named or share < least + 0.05
    assert ("the server, whose process is unknown, may be among them" in note.message) == (port is not None)


def test_the_run_itself_is_not_foreign_load() -> None:
    """A child of this process stands for a process of the load generator."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        processes = LocalProcesses(None)
        start = time.monotonic_ns()
        processes.sample()
        time.sleep(0.5)
        processes.sample()
        notes = processes.observed(start, time.monotonic_ns()).notes
    finally:
        child.kill()
        child.wait()
    assert not any(f"({child.pid})" in note.message for note in notes)
