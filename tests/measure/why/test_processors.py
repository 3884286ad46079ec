"""What a real server says that others took of a model's processor, against what the kernel and `perf` say."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import clipped
from conch.domain.events.layout import INSTANCE_CHANGES
from conch.domain.events.log import EventLog
from conch.measure.why.source import fetch_log
from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

BURN = """
end = time.thread_time() + 0.03
while time.thread_time() < end:
    pass
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
"""
READ_NS = 5_000_000  # between the readings of the test and those of the process, of which the test's are outside


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConchProcess]:
    tensors = f"input {tensor('IN', 'UINT8', 1)} output {tensor('OUT', 'UINT8', 1)}"
    write_python(tmp_path / "models", "burner", tensors, BURN)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as process:
        yield process


@pytest.fixture
def pid(server: ConchProcess) -> Iterator[int]:
    """The model's process, on one processor, which busy processes share."""
    rows = fetch_log(server.http, 600).instances
    pid = int(rows[rows["change"] == INSTANCE_CHANGES.index("up")][-1]["pid"])
    core = max(os.sched_getaffinity(pid))
    os.sched_setaffinity(pid, {core})
    hog = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", hog], stdout=subprocess.PIPE) for _ in range(4)]
    try:
        for process in hogs:
            assert process.stdout is not None
            process.stdout.readline()  # it is busy
        yield pid
    finally:
        for process in hogs:
            process.kill()
            process.communicate()


def waited_ns(pid: int) -> int:
    """How long a process was ready to run without a processor, by the kernel."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def ask(server: ConchProcess, id_: str) -> None:
    document = {"id": id_, "inputs": [{"name": "IN", "datatype": "UINT8", "shape": [1], "data": [1]}]}
    url = f"http://{server.http}/v2/models/burner/infer"
    with urllib.request.urlopen(url, json.dumps(document).encode(), timeout=60) as answer:
        answer.read()


def taken_ns(log: EventLog, id_: str) -> int:
    """How long others took the processor while the model computed for a request, by the event log."""
    request = Explainer(log).explain(log.find(id_))
    assert request is not None
    (batch,) = log.batches[log.batches["number"] == request.row["batch"]]
    inside = clipped(request.leaves(), int(batch["input_done"]), int(batch["infer_done"]))
    return sum(part.ns for part in inside if part.cause == "cpu")


def test_others_took_what_the_kernel_says(server: ConchProcess, pid: int) -> None:
    kernel, explained = [], []
    for number in range(8):
        before = waited_ns(pid)
        ask(server, f"n{number}")
        kernel.append(waited_ns(pid) - before)
        explained.append(taken_ns(fetch_log(server.http, 600), f"n{number}"))
    assert (np.array(explained) <= np.array(kernel) + READ_NS).all(), (kernel, explained)
    assert sum(explained) >= sum(kernel) / 2 > 0, (kernel, explained)


SWITCH = re.compile(r"([\d.]+): sched:sched_switch: .*prev_pid=(\d+) .*prev_state=(\S+) .*next_pid=(\d+)")
WAKEUP = re.compile(r"([\d.]+): sched:sched_wak\w+: .*pid=(\d+)")


@contextmanager
def scheduler_events(pid: int, file: Path) -> Iterator[None]:
    """`perf` records when the kernel wakes a process up and switches to and from it, until the block ends."""
    perf = shutil.which("perf") or pytest.skip("perf, the second witness, is not here: apt-get install linux-perf")
    command = [perf, "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-o", str(file)]
    command += ["-e", "sched:sched_switch", "--filter", f"prev_pid == {pid} || next_pid == {pid}"]
    command += ["-e", "sched:sched_wakeup", "--filter", f"pid == {pid}"]
    # The program that it starts runs when recording has begun.
    with subprocess.Popen(
        [*command, "--", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                said = process.communicate()[1].decode()[-300:]
                pytest.skip(f"perf may not record the scheduler, which needs root or CAP_PERFMON here: {said}")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def ready_times(pid: int, file: Path) -> list[tuple[int, int]]:
    """When the process was ready to run and did not, by `perf`; monotonic ns."""
    command = ["perf", "script", "--ns", "-F", "time,event,trace", "-i", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    intervals, since = list[tuple[int, int]](), 0
    for line in lines:
        if switch := SWITCH.search(line):
            at = round(float(switch[1]) * 1e9)
            if int(switch[4]) == pid and since:
                intervals.append((since, at))
                since = 0
            elif int(switch[2]) == pid and switch[3].startswith("R"):
                since = at
        elif (wakeup := WAKEUP.search(line)) and int(wakeup[2]) == pid:
            since = since or round(float(wakeup[1]) * 1e9)
    return intervals


def test_others_took_what_perf_says(server: ConchProcess, pid: int, tmp_path: Path) -> None:
    with scheduler_events(pid, tmp_path / "perf"):
        for number in range(8):
            ask(server, f"p{number}")
    waits = ready_times(pid, tmp_path / "perf")
    log = fetch_log(server.http, 600)
    seen, explained = [], []
    for number in range(8):
        (request,) = log.requests[log.requests["number"] == log.find(f"p{number}")]
        (batch,) = log.batches[log.batches["number"] == request["batch"]]
        begin, end = int(batch["input_done"]), int(batch["infer_done"])
        seen.append(sum(max(min(until, end) - max(since, begin), 0) for since, until in waits))
        explained.append(taken_ns(log, f"p{number}"))
    assert sum(seen) > 0
    assert sum(explained) == pytest.approx(sum(seen), rel=0.1), (seen, explained)
