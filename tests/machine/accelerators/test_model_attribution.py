"""Attribution of device memory and time to model processes: real processes, descendants and namespaces."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conch.base.extras import install_command
from conch.machine.accelerators.collectors import (
    CollectorError,
    DeviceIdentity,
    DeviceSample,
    ProcessUsage,
    VendorSample,
)
from conch.machine.accelerators.families import ModelUsage, PodContainer
from conch.machine.accelerators.model_attribution import (
    OWN_PROC,
    AttributedProcess,
    ModelAttribution,
    ProcessIds,
    model_usage,
    server_process,
)
from conch.machine.accelerators.pod_attribution import MAX_AGE_S, Allocation, PodAttribution

DEVICE = DeviceIdentity("acme", "0", "ACME-0", "Acme")


def sample(*processes: ProcessUsage) -> VendorSample:
    return VendorSample("acme", (DeviceSample(DEVICE, processes=processes),))


@contextmanager
def child_with_worker(*command: str) -> Iterator[tuple[int, int]]:
    """Run a process that has a child; yield both ids."""
    script = (
        "import subprocess, sys, os\nworker = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), worker.pid, flush=True)\nsys.stdin.read()\nworker.kill()\nworker.wait()\n"
    )
    process = subprocess.Popen(
        [*command, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        pid, worker = map(int, process.stdout.readline().split())
        yield pid, worker
    finally:
        process.communicate()


class SameNamespace(ProcessIds):
    """Takes the machine's namespace for this one, as a process outside containers may."""

    def __init__(self) -> None:
        super().__init__()
        self._is_host = True


def test_memory_of_a_worker_is_its_engines() -> None:
    with child_with_worker() as (engine, worker):
        models = [AttributedProcess(engine, "llm", "1", "engine"), AttributedProcess(os.getpid(), "", "", "server")]
        usages = model_usage(
            [sample(ProcessUsage(engine, 100.0, 0.25), ProcessUsage(worker, 50.0), ProcessUsage(os.getpid(), 7.0))],
            models,
            SameNamespace(),
        )
    assert usages == [
        ModelUsage("llm", "1", "engine", "ACME-0", 150.0, 0.25),
        ModelUsage("", "", "server", "ACME-0", 7.0, None),
    ]


def test_processes_of_others_are_not_attributed() -> None:
    with child_with_worker() as (engine, worker):
        models = [AttributedProcess(worker, "llm", "1", "engine")]
        assert (
            model_usage([sample(ProcessUsage(engine, 1.0), ProcessUsage(1 << 22, 1.0))], models, SameNamespace()) == []
        )


def test_equal_numbers_of_another_namespace_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").touch()
    ids = ProcessIds(own_proc=tmp_path)
    assert not ids.usable
    models = [AttributedProcess(os.getpid(), "llm", "1", "engine")]
    assert model_usage([sample(ProcessUsage(os.getpid(), 1.0))], models, ids) == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_a_server_in_a_container_finds_its_processes_with_the_machines_proc() -> None:
    """In a new namespace, ask for the id that the outer namespace has for a child of the server."""
    script = """
import os, subprocess
from pathlib import Path
from conch.machine.accelerators.model_attribution import AttributedProcess, ProcessIds, model_usage
from tests.machine.accelerators.test_model_attribution import ProcessUsage, sample
child = subprocess.Popen(["sleep", "600"])
# /proc is still that of the outer namespace, as a container sees it where the machine's is mounted.
machine = Path("/proc")
namespace = os.stat("/proc/self/ns/pid").st_ino
outer = next(
    int(folder.name)
    for folder in machine.iterdir()
    if folder.name.isdecimal()
    and f"NSpid:\\t{folder.name}\\t{child.pid}\\n" in (folder / "status").read_text()
    and os.stat(folder / "ns" / "pid").st_ino == namespace
)
models = [AttributedProcess(child.pid, "llm", "1", "engine")]
for ids in (ProcessIds(machine), ProcessIds()):
    print([usage.memory_bytes for usage in model_usage([sample(ProcessUsage(outer, 9.0))], models, ids)])
child.kill()
child.wait()
"""
    result = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.stdout.split("\n")[:2] == ["[9.0]", "[]"], result.stderr


def test_one_model_in_the_servers_process_has_its_usage() -> None:
    assert server_process(1, [("m", "1")]) == AttributedProcess(1, "m", "1", "server")
    assert server_process(1, [("m", "1"), ("m", "1")]) == AttributedProcess(1, "m", "1", "server")
    assert server_process(1, [("m", "1"), ("n", "1")]) == AttributedProcess(1, "", "", "server")
    assert server_process(1, []) == AttributedProcess(1, "", "", "server")


def test_own_proc_is_that_of_this_system() -> None:
    assert (OWN_PROC / "self" / "status").exists()


class Source:
    """A kubelet whose answers a test sets."""

    def __init__(self) -> None:
        self.error = ""
        self.pod = PodContainer("ml", "triton-0", "server")

    def allocations(self) -> list[Allocation]:
        if self.error:
            raise CollectorError(self.error)
        return [Allocation("acme.com/card", "ACME-0", self.pod)]

    def allocatable(self) -> list[tuple[str, str]]:
        return [("acme.com/card", "ACME-0"), ("acme.com/card", "ACME-1"), ("example.com/nic", "eth1")]


def test_allocations_outlive_a_restart_of_the_kubelet_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    source = Source()
    pods = PodAttribution(source, 10, lambda: now[0])
    assert pods.containers([DEVICE]) == {}
    assert not pods.status().up
    pods.refresh()
    assert pods.containers([DEVICE]) == {"ACME-0": (source.pod,)}
    source.error = "no socket"
    now[0] += MAX_AGE_S - 1
    for _ in range(3):
        pods.refresh()
    assert pods.containers([DEVICE]) == {"ACME-0": (source.pod,)}
    assert (pods.status().vendor, pods.status().up, pods.status().sample_age_s) == ("kubelet", False, MAX_AGE_S - 1)
    now[0] += 2
    assert pods.containers([DEVICE]) == {}
    source.error = ""
    pods.refresh()
    assert pods.containers([DEVICE])
    messages = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert messages == [
        "the kubelet offers acme.com/card 'ACME-1', which is not among the sampled devices",
        "no socket; GPU metrics have no pod labels until it answers",
    ]


async def test_a_failure_of_attribution_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    answers = [RuntimeError("no models"), [AttributedProcess(os.getpid(), "m", "1", "m_0")]]

    def processes() -> list[AttributedProcess]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    attribution = ModelAttribution(processes, 0.01, OWN_PROC)
    task = asyncio.create_task(attribution.run(lambda: [sample(ProcessUsage(os.getpid(), 7.0))]))
    async with asyncio.timeout(60):
        while not attribution.usage:
            await asyncio.sleep(0.01)
    task.cancel()
    assert attribution.usage == [ModelUsage("m", "1", "m_0", "ACME-0", 7.0, None)]
    assert "could not be attributed" in caplog.text


def test_the_exporter_names_the_extra_that_pod_labels_need() -> None:
    script = (
        "import sys; sys.modules['grpc'] = None\n"
        "from conch.operate.exporter import gpu_exporter; sys.exit(gpu_exporter(['--kubernetes']))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert result.stderr == f"conch gpu-exporter: --kubernetes needs grpcio: {install_command('kubernetes')}\n"
