"""Accelerators in the exporter and in the server: real processes, fake tools, and a real kubelet's protocol."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.machine.accelerators.exporter import GpuExporter, Series, series_of
from tests.machine.accelerators.kubelet import Kubelet
from tests.machine.accelerators.nvml import H100, VALUES, gpu, machine_with, write_trace
from tests.machine.accelerators.test_tools import WORKING
from tests.machine.accelerators.tools import ToolFolder
from tests.support.models import ECHO, tensor, write_identity, write_python
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

UP = "conch_accelerator_collector_up"
MEMORY = "conch_accelerator_model_memory_bytes"


def values(series: Series, name: str, **labels: str) -> list[float]:
    """Return the values of the series of this name that have these labels."""
    return [value for have, value in series.get(name, ()) if labels.items() <= have.items()]


def scrape_until(conch: ConchProcess, condition: Callable[[Series], object]) -> Series:
    """Scrape a server until the condition holds."""
    deadline = monotonic() + 60
    while not condition(series := series_of(conch.metrics())):
        assert monotonic() < deadline, series
        sleep(0.05)
    return series


def write_models(root: Path, pids: Path, *names: str) -> None:
    """Write Python models whose processes write their ids to files, and one that runs in the server's process."""
    pids.mkdir()
    io = f"input [{tensor('INPUT0', 'FP32', -1)}] output [{tensor('OUTPUT0', 'FP32', -1)}]"
    for name in names:
        more = f"def initialize(self, args):\n    open({str(pids / name)!r}, 'w').write(str(os.getpid()))"
        write_python(root, name, io, ECHO, more=more)
    write_identity(root, "copy")


def test_the_exporter_exposes_every_vendor_with_a_tool(tools: ToolFolder, tmp_path: Path) -> None:
    vendors = ("amd", "ascend", "cambricon", "intel")
    for vendor in vendors:
        tools.write(*WORKING[vendor])
    tools.write("neuron-monitor", "print('panic')\n")
    with GpuExporter({}, log=tmp_path / "log", vendors=()) as exporter:
        exporter.until(lambda series: all(values(series, UP, vendor=vendor) == [1] for vendor in vendors))
        series = exporter.until(lambda series: values(series, UP, vendor="neuron") == [0])
    assert len(values(series, "conch_accelerator_memory_total_bytes")) == 5
    assert values(series, "conch_accelerator_power_watts", vendor="ascend") == [99.6]
    assert values(series, "npu_chip_info_hbm_used_memory", model_name="910B2") == [59891]
    unsupported = values(
        series, "conch_accelerator_unsupported_fields_total", vendor="amd", field="energy_joules_total"
    )
    assert unsupported[0] >= 1


def test_a_hanging_tool_costs_only_its_vendor(tools: ToolFolder, tmp_path: Path) -> None:
    tools.write(*WORKING["cambricon"])
    tools.write("npu-smi", "time.sleep(600)\n")
    with GpuExporter({}, "--sample-timeout=500", log=tmp_path / "log", vendors=()) as exporter:
        exporter.until(lambda series: values(series, UP, vendor="ascend") == [0])
        exporter.until(lambda series: values(series, UP, vendor="cambricon") == [1])


def test_the_exporter_has_pod_labels_while_the_kubelet_comes_and_goes(
    tools: ToolFolder, tmp_path: Path, kubelet: Kubelet
) -> None:
    tools.write("amd-smi", WORKING["amd"][1].replace('"u0"', '"GPU-0"'))
    name = "conch_accelerator_utilization_ratio"
    flags = ["--kubernetes", f"--pod-resources-kubelet-socket={kubelet.path}"]
    with kubelet.serve(), GpuExporter({}, *flags, log=tmp_path / "log", vendors=("amd",)) as exporter:
        pod = {"namespace": "ml", "pod": "triton-0", "container": "server"}
        series = exporter.until(lambda series: values(series, name, **pod))
        assert values(series, "gpu_gfx_activity", gpu_uuid="GPU-0", **pod) == [100]
        assert values(series, UP, vendor="kubelet") == [1]
    with GpuExporter({}, *flags, log=tmp_path / "log2", vendors=("amd",)) as exporter:
        series = exporter.until(lambda series: values(series, name))
        assert values(series, UP, vendor="kubelet") == [0]
        assert not values(series, name, pod="triton-0")


def test_dcgm_names_have_pod_labels(library: Path, tmp_path: Path, kubelet: Kubelet) -> None:
    kubelet.device = H100.split()[0][:-1]  # its UUID ends with 0, as the pod's name
    flags = ["--kubernetes", f"--pod-resources-kubelet-socket={kubelet.path}"]
    machine = machine_with(library, tmp_path, gpu(H100, **VALUES))
    with kubelet.serve(), GpuExporter(machine, *flags, log=tmp_path / "log") as exporter:
        pod = {"namespace": "ml", "pod": "triton-0", "container": "server"}
        series = exporter.until(lambda series: values(series, "DCGM_FI_DEV_GPU_UTIL", **pod))
    assert values(series, "DCGM_FI_DEV_GPU_UTIL", **pod) == [29]
    assert values(series, "conch_accelerator_utilization_ratio", **pod) == [0.29]


def test_the_server_attributes_memory_to_models(tools: ToolFolder, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    write_models(tmp_path / "models", pids, "one", "two")
    # Model "one" uses 1 MiB, "two" 2 MiB, the server 4 MiB, another process 8 MiB.
    process = f"""
def row(pid, size):
    size = {{"value": size << 20, "unit": "B"}}
    return {{"process_info": {{"pid": pid, "memory_usage": {{"vram_mem": size}}}}}}
pids = Path({str(pids)!r})
sizes = {{"one": 1, "two": 2, "server": 4}}
rows = [row(int((pids / name).read_text()), size) for name, size in sizes.items() if (pids / name).exists()]
if arguments[0] == "process":
    print(json.dumps([{{"gpu": 0, "process_list": [*rows, row(os.getpid(), 8)]}}]))
    sys.exit()
"""
    tools.write("amd-smi", process + WORKING["amd"][1])
    flags = ["--metrics-interval-ms=100", "--host-proc=/proc"]
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as conch:
        (pids / "server").write_text(str(conch.process.pid))
        series = scrape_until(conch, lambda series: len(values(series, MEMORY, uuid="u0")) == 3)
    assert values(series, MEMORY, model="one", version="1") == [1 << 20]
    assert values(series, MEMORY, model="two", version="1") == [2 << 20]
    # The only model in the server's process has its memory.
    assert values(series, MEMORY, model="copy", version="1", instance="server") == [4 << 20]
    assert "conch_accelerator_model_utilization_ratio" not in series


def test_the_server_attributes_nvidia_memory_and_time_to_models(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    write_models(tmp_path / "models", pids, "one")
    for name, value in machine_with(library, tmp_path, gpu(H100, **VALUES)).items():
        monkeypatch.setenv(name, value)
    flags = ["--metrics-interval-ms=100", "--host-proc=/proc"]
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as conch:
        pid = int((pids / "one").read_text())
        write_trace(tmp_path, gpu(H100, f"process {pid} {3 << 30} 25", **VALUES))
        series = scrape_until(conch, lambda series: values(series, MEMORY, model="one"))
        assert values(series, MEMORY, model="one", version="1", uuid=H100.split()[0]) == [3 << 30]
        name = "conch_accelerator_model_utilization_ratio"
        scrape_until(conch, lambda series: values(series, name, model="one", uuid=H100.split()[0]) == [0.25])
