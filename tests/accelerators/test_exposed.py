"""Accelerators in the exporter and in the server: real processes, fake tools, and a real kubelet's protocol."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.accelerators.kubelet import Kubelet
from tests.accelerators.test_tools import WORKING
from tests.accelerators.tools import ToolFolder
from tests.server.models import ECHO, tensor, write_identity, write_python
from tests.server.process import ConchProcess

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def found(text: str, name: str, **labels: str) -> list[float]:
    """Return the values of the series of this name that have these labels."""
    return [
        value for (each, with_), value in series(text).items() if each == name and labels.items() <= dict(with_).items()
    ]


def until(scrape: Callable[[], str], condition: Callable[[str], object]) -> str:
    """Scrape until the condition holds, and return the text."""
    deadline = monotonic() + TIMEOUT_S
    while not condition(text := scrape()):
        assert monotonic() < deadline, text
        sleep(0.05)
    return text


@contextmanager
def exporter(log: Path, *flags: str) -> Iterator[Callable[[], str]]:
    """Run `conch gpu-exporter` on a free port; yield what scrapes it."""
    with log.open("wb") as output:
        command = [sys.executable, "-m", "conch", "gpu-exporter", "-a", "127.0.0.1:0", "-c", "100", *flags]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = monotonic() + TIMEOUT_S
        while not (port := re.search(r"at 127.0.0.1:(\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert monotonic() < deadline
            sleep(0.02)

        def scrape() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=TIMEOUT_S) as response:
                return str(response.read().decode())

        yield scrape
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0, log.read_text()


def test_the_exporter_exposes_every_vendor_with_a_tool(tools: ToolFolder, tmp_path: Path) -> None:
    vendors = ("amd", "ascend", "cambricon", "intel")
    for vendor in vendors:
        tools.write(*WORKING[vendor])
    tools.write("neuron-monitor", "print('panic')\n")
    up = "conch_accelerator_collector_up"
    with exporter(tmp_path / "log") as scrape:
        text = until(scrape, lambda text: all(found(text, up, vendor=vendor) == [1] for vendor in vendors))
        text = until(scrape, lambda text: found(text, up, vendor="neuron") == [0])
    assert len(found(text, "conch_accelerator_memory_total_bytes")) == 5
    assert found(text, "conch_accelerator_power_watts", vendor="ascend") == [99.6]
    assert found(text, "npu_chip_info_hbm_used_memory", model_name="910B2") == [59891]
    assert found(text, "conch_accelerator_unsupported_fields_total", vendor="amd", field="energy_joules_total")[0] >= 1


def test_a_hanging_tool_costs_only_its_vendor(tools: ToolFolder, tmp_path: Path) -> None:
    tools.write(*WORKING["cambricon"])
    tools.write("npu-smi", "time.sleep(600)\n")
    up = "conch_accelerator_collector_up"
    with exporter(tmp_path / "log", "--sample-timeout", "500") as scrape:
        until(scrape, lambda text: found(text, up, vendor="ascend") == [0])
        until(scrape, lambda text: found(text, up, vendor="cambricon") == [1])


def test_the_exporter_has_pod_labels_while_the_kubelet_comes_and_goes(
    tools: ToolFolder, tmp_path: Path, kubelet: Kubelet
) -> None:
    tools.write("amd-smi", WORKING["amd"][1].replace('"u0"', '"GPU-0"'))
    name = "conch_accelerator_utilization_ratio"
    flags = ["--kubernetes", "--pod-resources-kubelet-socket", str(kubelet.path), "--vendor", "amd"]
    with kubelet.serve(), exporter(tmp_path / "log", *flags) as scrape:
        text = until(scrape, lambda text: found(text, name, namespace="ml", pod="triton-0", container="server"))
        assert found(text, "gpu_gfx_activity", pod="triton-0", gpu_uuid="GPU-0") == [100]
        assert found(text, "conch_accelerator_collector_up", vendor="kubelet") == [1]
    with exporter(tmp_path / "log2", *flags) as scrape:
        text = until(scrape, lambda text: found(text, name))
        assert found(text, "conch_accelerator_collector_up", vendor="kubelet") == [0]
        assert not found(text, name, pod="triton-0")


def test_the_server_attributes_memory_to_models(tools: ToolFolder, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    io = f"input [{tensor('INPUT0', 'FP32', -1)}] output [{tensor('OUTPUT0', 'FP32', -1)}]"
    for model in ("one", "two"):
        more = f"def initialize(self, args):\n    open({str(pids / model)!r}, 'w').write(str(os.getpid()))"
        write_python(tmp_path / "models", model, io, ECHO, more=more)
    write_identity(tmp_path / "models", "copy")
    # Model "one" uses 1 MiB, "two" 2 MiB, the server 4 MiB, another process 8 MiB.
    process = f"""
def row(pid, size):
    size = {{"value": size << 20, "unit": "B"}}
    return {{"process_info": {{"pid": pid, "memory_usage": {{"vram_mem": size}}}}}}
pids = Path({str(pids)!r})
rows = [row(int((pids / name).read_text()), n) for n, name in enumerate(("one", "two"), 1) if (pids / name).exists()]
rows += [row(int((pids / "server").read_text()), 4)] if (pids / "server").exists() else []
if arguments[0] == "process":
    print(json.dumps([{{"gpu": 0, "process_list": [*rows, row(os.getpid(), 8)]}}]))
    sys.exit()
"""
    tools.write("amd-smi", process + WORKING["amd"][1])
    flags = ["--metrics-interval-ms=100", "--host-proc=/proc"]
    name = "conch_accelerator_model_memory_bytes"
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as conch:
        (pids / "server").write_text(str(conch.process.pid))
        text = until(conch.metrics, lambda text: len(found(text, name, uuid="u0")) == 3)
        assert found(text, name, model="one", version="1") == [1 << 20]
        assert found(text, name, model="two", version="1") == [2 << 20]
        # The only model in the server's process has its memory.
        assert found(text, name, model="copy", version="1", instance="server") == [4 << 20]
        assert not found(text, "conch_accelerator_model_utilization_ratio")
