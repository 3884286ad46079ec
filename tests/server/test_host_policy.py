"""--host-policy: processes and threads of instances run on the cores of the policy of their group."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client

from tests.server.backends.onnxruntime.onnx_models import FP32
from tests.server.backends.onnxruntime.onnx_models import write_identity as write_onnx
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

CORES = sorted(os.sched_getaffinity(0))
EXECUTE = """
threads = {os.sched_getaffinity(int(thread)).__repr__() for thread in os.listdir("/proc/self/task")}
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(sorted(threads), np.object_))])
"""
SIGNATURE = f"input {tensor('IN', 'INT32', 1)} output {tensor('OUT', 'STRING', -1)}"


def group(policy: str) -> str:
    return f'instance_group {{ count: 1 kind: KIND_CPU host_policy: "{policy}" }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("policies")
    models = folder / "models"
    for name, policy in (("first", "first"), ("last", "last"), ("any", ""), ("unknown", "unknown")):
        write_python(models, name, f"{SIGNATURE} {group(policy) if policy else ''}", EXECUTE)
    write_scripted(models, "engine", {"reply": "a"}, extra=group("last"))
    write_onnx(models / "onnx", FP32, [4], config=group("last"))
    flags = (f"--host-policy=first,cpu-cores={CORES[0]}", f"--host-policy=last,cpu-cores={CORES[-1]}-{CORES[-1]}")
    with ConchProcess(models, *flags, log=folder / "log") as running:
        yield running


def allowed(pid: int, thread: int = 0) -> str:
    """The cores that the kernel lets a thread of a process run on, as a list."""
    text = Path(f"/proc/{pid}/task/{thread or pid}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("Cpus_allowed_list:")]
    return line.partition(":")[2].strip()


def threads_of_models(server: ConchProcess, name: str) -> list[str]:
    """What the model says of the threads of its process."""
    with http_client.InferenceServerClient(server.http) as client:
        taken = http_client.InferInput("IN", [1], "INT32")
        taken.set_data_from_numpy(np.zeros(1, np.int32))
        return [text.decode() for text in client.infer(name, [taken]).as_numpy("OUT")]


@pytest.mark.parametrize(("name", "cores"), [("first", CORES[:1]), ("last", CORES[-1:]), ("any", CORES)])
def test_processes_of_python_models_are_pinned(server: ConchProcess, name: str, cores: list[int]) -> None:
    assert threads_of_models(server, name) == [repr(set(cores))]


def test_threads_of_frameworks_are_pinned(server: ConchProcess) -> None:
    pid = server.process.pid
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    assert str(CORES[-1]) in {allowed(pid, thread) for thread in threads}  # that of the ONNX model
    assert allowed(pid) == allowed(os.getpid())  # the event loop is not


def test_engines_are_pinned(server: ConchProcess) -> None:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    engines = [int(child) for child in children if "engine" in Path(f"/proc/{child}/cmdline").read_text()]
    assert engines
    assert {allowed(pid) for pid in engines} == {str(CORES[-1])}


def test_an_unknown_policy_is_reported(server: ConchProcess) -> None:
    assert "host_policy 'unknown' of model 'unknown' has no effect without --host-policy" in server.text
