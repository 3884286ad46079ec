"""`conch gpu-exporter` and the GPU metrics of a server, above a fake NVML library."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.machine.accelerators.exporter import GpuExporter, Series, series_of
from tests.machine.accelerators.nvml import A100, GPM, H100, SLICES, VALUES, gpu, machine_with, write_trace
from tests.support.debian import debian_environment, debian_tool
from tests.support.server_process import ConchProcess

UP = "conch_accelerator_collector_up"
# The 19 default metrics of dcgm-exporter 3.3, and those added since.
LEGACY = {
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_MEM_CLOCK": 1593,
    "DCGM_FI_DEV_MEMORY_TEMP": 51,
    "DCGM_FI_DEV_GPU_TEMP": 43,
    "DCGM_FI_DEV_POWER_USAGE": 245.678,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 987654321,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
    "DCGM_FI_DEV_GPU_UTIL": 29,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 12,
    "DCGM_FI_DEV_ENC_UTIL": 7,
    "DCGM_FI_DEV_DEC_UTIL": 58,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_FB_FREE": 81920 - 9216 - 512,
    "DCGM_FI_DEV_FB_USED": 9216,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 1,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 2,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1,
    "DCGM_FI_DEV_FB_RESERVED": 512,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.815,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.33,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.25,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 100 << 20,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 200 << 20,
}


def value(series: Series, name: str, **labels: str) -> float | None:
    """The value of the one series with these labels, None if there is none."""
    values = [value for have, value in series.get(name, ()) if labels.items() <= have.items()]
    assert len(values) <= 1
    return values[0] if values else None


def complete(series: Series) -> bool:
    """Whether two samples were taken: rates and activity need them."""
    return "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in series or "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO" in series


def test_legacy_names_are_the_default(library: Path, tmp_path: Path) -> None:
    machine = machine_with(library, tmp_path, gpu(H100, **VALUES, **GPM))
    with GpuExporter({**machine, "NODE_NAME": "node-7"}, log=tmp_path / "log") as exporter:
        series = exporter.until(complete)
        status, text = exporter.get("/health")
        assert (status, text) == (200, "OK\n")
        assert exporter.get("/nothing")[0] == 404
    shown = {name: [value for _, value in values] for name, values in series.items() if name.startswith("DCGM_")}
    assert shown == {name: [pytest.approx(number)] for name, number in LEGACY.items()}
    [(labels, _)] = series["DCGM_FI_DEV_GPU_UTIL"]
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-bbbbbbbb-0000-0000-0000-000000000000",
        "pci_bus_id": "00000000:17:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H100",
        "Hostname": "node-7",
        "DCGM_FI_DRIVER_VERSION": "580.95.05",
    }
    assert value(series, "conch_accelerator_power_watts", vendor="nvidia", device="0") == pytest.approx(245.678)
    assert value(series, UP, vendor="nvidia") == 1


def test_prometheus_reads_the_exposition(library: Path, tmp_path: Path) -> None:
    machine = machine_with(library, tmp_path, gpu(A100, "xid 79", **VALUES), gpu(f"{H100} {SLICES}", **VALUES))
    with GpuExporter(machine, "--dcgm-names=both", log=tmp_path / "log") as exporter:
        exporter.until(lambda series: value(series, UP) == 1)
        text = exporter.get("/metrics")[1]
    command = [debian_tool("promtool"), "check", "metrics"]
    checked = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False, env=debian_environment()
    )
    # 3: advice on names, which are not ours to change; 1 is text that cannot be read.
    assert checked.returncode in (0, 3), checked.stderr
    assert not [line for line in checked.stderr.splitlines() if line.startswith("conch_")]


def test_flags_choose_names_fields_and_labels(library: Path, tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, Mine.\nDCGM_FI_DEV_POWER_VIOLATION, counter, Mine.\n")
    machine = machine_with(library, tmp_path, gpu(H100, **VALUES, **GPM))
    flags = ("--dcgm-names=both", f"--collectors={counters}", "--no-hostname")
    with GpuExporter(machine, *flags, log=tmp_path / "log") as exporter:
        series = exporter.until(lambda series: value(series, UP) == 1)
    assert {name for name in series if name.startswith("DCGM_")} == {
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "DCGM_FI_DEV_POWER_VIOLATION",
    }
    assert value(series, "DCGM_FI_DEV_GPU_UTIL_RATIO") == 0.29
    assert "Hostname" not in series["DCGM_FI_DEV_GPU_UTIL"][0][0]


def test_environment_variables_of_dcgm_exporter_are_read(library: Path, tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, Mine.\nDCGM_FI_DEV_SERIAL, label, Mine.\n")
    variables = {"DCGM_EXPORTER_COLLECTORS": str(counters), "DCGM_EXPORTER_INTERVAL": "100"}
    machine = machine_with(library, tmp_path, gpu(H100, **VALUES))
    with GpuExporter({**machine, **variables}, log=tmp_path / "log") as exporter:
        series = exporter.until(lambda series: value(series, UP) == 1)
        assert "# HELP DCGM_FI_DEV_GPU_TEMP Mine." in exporter.get("/metrics")[1]
        assert "NVML has no value for DCGM_FI_DEV_SERIAL" in exporter.text
    assert [name for name in series if name.startswith("DCGM_")] == ["DCGM_FI_DEV_GPU_TEMP"]


def test_a_gpu_that_falls_off_the_bus_disappears_alone(library: Path, tmp_path: Path) -> None:
    up = "conch_accelerator_device_up"
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES), gpu(H100, **VALUES))
    with GpuExporter(machine, log=tmp_path / "log") as exporter:
        series = exporter.until(lambda series: value(series, up, device="1") == 1)
        assert value(series, "DCGM_FI_DEV_GPU_TEMP", gpu="1") == 43
        write_trace(tmp_path, gpu(A100, **VALUES), gpu(H100, "xid 79", "lost", **VALUES))
        series = exporter.until(lambda series: value(series, up, device="1") == 0)
        assert value(series, up, device="0") == 1
        assert value(series, "DCGM_FI_DEV_GPU_TEMP", gpu="0") == 43
        assert value(series, "conch_accelerator_power_watts", device="0") == pytest.approx(245.678)
        left = [
            name
            for name, values in series.items()
            for labels, _ in values
            if labels.get("gpu") == "1" or (labels.get("device") == "1" and name.startswith("conch_accelerator"))
        ]
        assert set(left) <= {up, "conch_accelerator_errors_total"}
        assert value(series, UP) == 1
        exporter.until(lambda series: value(series, "conch_accelerator_errors_total", code="79") == 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang nvmlDeviceGetPowerUsage", "crash nvmlDeviceGetPowerUsage"])
def test_a_driver_that_hangs_or_crashes_shows_and_recovers(library: Path, tmp_path: Path, fault: str) -> None:
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES))
    with GpuExporter(machine, "--sample-timeout=2000", log=tmp_path / "log") as exporter:
        exporter.until(lambda series: value(series, UP) == 1)
        write_trace(tmp_path, gpu(A100, fault, **VALUES))
        series = exporter.until(lambda series: value(series, UP) == 0)
        assert exporter.get("/health")[0] == 503
        assert not [name for name in series if name.startswith("DCGM_")]
        assert (value(series, "conch_accelerator_sample_age_seconds") or 0) > 0
        write_trace(tmp_path, gpu(A100, **VALUES))
        series = exporter.until(lambda series: value(series, UP) == 1)
        assert value(series, "DCGM_FI_DEV_GPU_TEMP") == 43
        assert "the collector of nvidia accelerators failed" in exporter.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vendors", "shown", "warning"),
    [
        (("nvidia",), "nvidia", "no accelerator of vendor nvidia: the driver library libnvidia-ml.so.1 was not found"),
        ((), "none", "no accelerator was found on this machine"),
    ],
)
def test_a_missing_driver_shows_until_it_is_installed(
    library: Path, tmp_path: Path, vendors: tuple[str, ...], shown: str, warning: str
) -> None:
    folder = tmp_path / "installed"
    folder.mkdir()
    machine = {**machine_with(library, tmp_path, gpu(A100, **VALUES)), "LD_LIBRARY_PATH": str(folder)}
    with GpuExporter(machine, log=tmp_path / "log", vendors=vendors) as exporter:
        series = exporter.until(lambda series: UP in series)
        assert series[UP] == [({"vendor": shown}, 0)]
        assert exporter.get("/health")[0] == 503
        assert exporter.text.count(warning) == 1
        assert "libnvidia-ml.so.1 was not found; install the driver" in exporter.text
        for file in library.iterdir():
            (folder / file.name).symlink_to(file)
        exporter.until(lambda series: series.get(UP) == [({"vendor": "nvidia"}, 1)])
        assert exporter.get("/health")[0] == 200


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--address=host:99999"], "'host:99999' is not a valid address"),
        (["--collect-interval=1s"], "'1s' is not a valid number of milliseconds"),
        (["--collectors=/none.csv"], "cannot read the counter file /none.csv"),
        (["--dcgm-names=old"], "unknown value 'old'"),
    ],
)
def test_usage_errors(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "conch", "gpu-exporter", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("DCGM_EXPORTER_LISTEN", "localhost:http", "'localhost:http' is not a valid address"),
        ("DCGM_EXPORTER_INTERVAL", "30s", "'30s' is not a valid number of milliseconds"),
    ],
)
def test_invalid_variables_are_usage_errors(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable, text)
    command = [sys.executable, "-m", "conch", "gpu-exporter"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr


# ---- in the server ---------------------------------------------------------------------------------------------------


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def serve(models: Path, *flags: str) -> ConchProcess:
    return ConchProcess(
        models, "--grpc-port=0", "--metrics-interval-ms=100", *flags, log=models.parent / "server.log", wait="live"
    )


def scraped_until(server: ConchProcess, name: str) -> Series:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        series = series_of(server.metrics())
        if name in series:
            return series
        time.sleep(0.05)
    raise AssertionError(server.text)


def set_machine(monkeypatch: pytest.MonkeyPatch, machine: dict[str, str]) -> None:
    for name, text in machine.items():
        monkeypatch.setenv(name, text)


@pytest.mark.slow
def test_a_server_exposes_tritons_names(
    library: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, machine_with(library, tmp_path, gpu(A100, **VALUES)))
    with serve(models) as server:
        series = scraped_until(server, "nv_gpu_utilization")
        write_trace(tmp_path, gpu(A100, **{**VALUES, "energy": VALUES["energy"] + 5000}))
        energy = scraped_until(server, "nv_energy_consumption")
        while value(energy, "nv_energy_consumption") != 5:
            energy = scraped_until(server, "nv_energy_consumption")
    label = {"gpu_uuid": "GPU-aaaaaaaa-0000-0000-0000-000000000000"}
    expected = {
        "nv_gpu_utilization": 0.29,
        "nv_gpu_memory_total_bytes": 40960 << 20,
        "nv_gpu_memory_used_bytes": 9216 << 20,
        "nv_gpu_power_usage": 245.678,
        "nv_gpu_power_limit": 400,
    }
    assert {name: values for name, values in series.items() if name.startswith("nv_gpu")} == {
        name: [(label, pytest.approx(number))] for name, number in expected.items()
    }
    assert value(series, "conch_accelerator_temperature_celsius", vendor="nvidia") == 43
    assert not [name for name in series if name.startswith("DCGM_")]


@pytest.mark.slow
def test_a_server_exposes_dcgms_names_if_asked(
    library: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, machine_with(library, tmp_path, gpu(A100, **VALUES)))
    with serve(models, "--dcgm-names=4.7") as server:
        series = scraped_until(server, "DCGM_FI_DEV_GPU_UTIL_RATIO")
    assert value(series, "DCGM_FI_DEV_GPU_UTIL_RATIO", gpu="0") == 0.29


@pytest.mark.slow
def test_gpu_metrics_of_a_server_can_be_disabled(
    library: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, machine_with(library, tmp_path, gpu(A100, **VALUES)))
    with serve(models, "--allow-gpu-metrics=false") as server:
        assert not [name for name in series_of(server.metrics()) if "gpu" in name or "accelerator" in name]


@pytest.mark.slow
def test_a_driver_that_hangs_does_not_affect_a_server(
    library: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, machine_with(library, tmp_path, gpu(A100, **VALUES)))
    with serve(models) as server:
        scraped_until(server, "nv_gpu_utilization")
        write_trace(tmp_path, gpu(A100, "hang nvmlDeviceGetPowerUsage", **VALUES))
        series = scraped_until(server, UP)
        while value(series, UP) != 0:
            server.until("/v2/health/live")
            series = scraped_until(server, UP)
        assert "nv_gpu_utilization" not in series
