"""What a real server says that others took of a model's processor, against what the kernel says."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conch.domain.causes.explain import Explainer
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
    inside = (
        part for part in request.leaves() if batch["input_done"] <= part.start and part.end <= batch["infer_done"]
    )
    return sum(part.ns for part in inside if part.cause == "cpu")


def test_others_took_what_the_kernel_says(server: ConchProcess, pid: int) -> None:
    kernel, found = [], []
    for number in range(8):
        before = waited_ns(pid)
        ask(server, f"n{number}")
        kernel.append(waited_ns(pid) - before)
        found.append(taken_ns(fetch_log(server.http, 600), f"n{number}"))
    assert (np.array(found) <= np.array(kernel) + READ_NS).all(), (kernel, found)
    assert sum(found) >= sum(kernel) / 2 > 0, (kernel, found)
