"""The collector of NVIDIA GPUs: NVIDIA's bindings above a fake NVML library, or above the driver of a real GPU."""

from pathlib import Path

import pytest

from conch.domain.metrics.catalog import dcgm_fields
from conch.machine.accelerators.collectors import READINGS, DeviceSample, has_nvidia_driver
from tests.machine.accelerators.nvml import A100, GPM, H100, K80, SLICES, VALUES, gpu, machine_with, write_trace
from tests.machine.accelerators.sampling import Samples, native, sampling

MIB = 1 << 20
# What DCGM 4.7 would say of `VALUES`, written by hand.
EXPECTED = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1_410_000_000,
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": 1_593_000_000,
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": 51,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 43,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 245.678,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 987654.321,
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": 3,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.29,
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.12,
    "DCGM_FI_DEV_ENC_UTIL_RATIO": 0.07,
    "DCGM_FI_DEV_DEC_UTIL_RATIO": 0.58,
    "DCGM_FI_DEV_XID_ERROR": 0,
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": 40960 * MIB,
    "DCGM_FI_DEV_FB_FREE_BYTES": (40960 - 9216 - 512) * MIB,
    "DCGM_FI_DEV_FB_USED_BYTES": 9216 * MIB,
    "DCGM_FI_DEV_FB_RESERVED_BYTES": 512 * MIB,
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": 0,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 1,
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": 1,
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": 2,
    "DCGM_FI_DEV_ROW_REMAP_FAILED": 1,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1_500_000,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 2_500_000,
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS": 400,
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": 350,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4,
    "DCGM_FI_DEV_POWER_VIOLATION": 1_000_000,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 2_000_000,
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": 3_000_000,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": 4_000_000,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": 5_000_000,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": 6_000_000,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 11,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 12,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 13,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 14,
    "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL": 5,
    "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL": 6,
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": 1,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL": 21,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL": 22,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL": 23,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL": 24,
}
# Of Hopper and later, by GPM; PCIe is then measured by it, too.
EXPECTED_ACTIVITY = {
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": 0.815,
    "DCGM_FI_PROF_SM_UTIL_RATIO": 0.7,
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": 0.4,
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 0.33,
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": 0.25,
    "DCGM_FI_PROF_FP64_UTIL_RATIO": 0.01,
    "DCGM_FI_PROF_FP32_UTIL_RATIO": 0.02,
    "DCGM_FI_PROF_FP16_UTIL_RATIO": 0.03,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 100 * MIB,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 200 * MIB,
}


def second_sample(samples: Samples) -> tuple[DeviceSample, ...]:
    """The devices of the second sample: rates and activity need two."""
    samples.next()
    return samples.next().devices


def test_all_values_have_dcgms_names_and_base_units(library: Path, tmp_path: Path) -> None:
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES), gpu(H100, **VALUES, **GPM))
    with sampling(machine) as samples:
        ampere, hopper = second_sample(samples)
    assert native(ampere) == pytest.approx(EXPECTED)
    total = 81920 * MIB
    of_hopper = EXPECTED | EXPECTED_ACTIVITY | {"DCGM_FI_DEV_FB_CAPACITY_BYTES": total}
    of_hopper["DCGM_FI_DEV_FB_FREE_BYTES"] = total - (9216 + 512) * MIB
    assert native(hopper) == pytest.approx(of_hopper)
    assert hopper.unsupported == ()


def test_the_table_of_fields_is_complete() -> None:
    names = {field.current.name for field in dcgm_fields()}
    assert names - {"DCGM_EXP_XID_ERRORS_TOTAL"} == {*EXPECTED, *EXPECTED_ACTIVITY}


def test_the_normal_form_has_base_units(library: Path, tmp_path: Path) -> None:
    with sampling(machine_with(library, tmp_path, gpu(A100, **VALUES))) as samples:
        [device] = samples.next().devices
    assert device.readings == pytest.approx(
        {
            "utilization_ratio": 0.29,
            "memory_used_bytes": 9216 * MIB,
            "memory_total_bytes": 40960 * MIB,
            "power_watts": 245.678,
            "energy_joules_total": 987654.321,
            "temperature_celsius": 43,
            "clock_hertz": 1_410_000_000,
        }
    )
    assert device.device.uuid.startswith("GPU-aaaaaaaa")
    assert device.device.pci_bus_id == "00000000:17:00.0"
    assert device.device.name == "NVIDIA A100"
    assert device.attributes == {"minor_number": "0", "driver_version": "580.95.05"}


@pytest.mark.parametrize(
    ("missing", "absent"),
    [
        ("sm_clock", {"DCGM_FI_DEV_SM_CLOCK_HERTZ", "clock_hertz"}),
        ("memory_clock", {"DCGM_FI_DEV_MEMORY_CLOCK_HERTZ"}),
        ("temperature", {"DCGM_FI_DEV_GPU_TEMP_CELSIUS", "temperature_celsius"}),
        ("field_82", {"DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"}),
        ("power", {"DCGM_FI_DEV_BOARD_POWER_WATTS", "power_watts"}),
        ("energy", {"DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "energy_joules_total"}),
        ("pcie_replay", {"DCGM_FI_DEV_PCIE_REPLAY_TOTAL"}),
        ("utilization", {"DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"}),
        ("encoder", {"DCGM_FI_DEV_ENC_UTIL_RATIO"}),
        ("decoder", {"DCGM_FI_DEV_DEC_UTIL_RATIO"}),
        ("vgpu_licensed", {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}),
        ("field_138", {"DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"}),
        ("retired_sbe", {"DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL"}),
        ("violation_3", {"DCGM_FI_DEV_BOARD_LIMIT_VIOLATION"}),
        ("gpm_5", {"DCGM_FI_PROF_TENSOR_UTIL_RATIO"}),
    ],
)
def test_a_value_that_is_not_supported_is_absent_and_named(
    library: Path, tmp_path: Path, missing: str, absent: set[str]
) -> None:
    values = {name: value for name, value in (VALUES | GPM).items() if name != missing}
    with sampling(machine_with(library, tmp_path, gpu(H100, **values))) as samples:
        [device] = second_sample(samples)
    assert not absent & {*native(device), *device.readings}
    assert absent == set(device.unsupported)


def test_a_call_that_fails_costs_its_own_values_only(library: Path, tmp_path: Path) -> None:
    fault = "error nvmlDeviceGetPowerUsage 999"  # NVML_ERROR_UNKNOWN
    with sampling(machine_with(library, tmp_path, gpu(A100, fault, **VALUES))) as samples:
        [device] = second_sample(samples)
    expected = {name: value for name, value in EXPECTED.items() if name != "DCGM_FI_DEV_BOARD_POWER_WATTS"}
    assert native(device) == pytest.approx(expected)
    assert {"DCGM_FI_DEV_BOARD_POWER_WATTS", "power_watts"} < set(device.unsupported)


def test_a_gpu_without_gpm_has_no_activity(library: Path, tmp_path: Path) -> None:
    """Not guessed from the utilization: the two mean different things."""
    with sampling(machine_with(library, tmp_path, gpu(A100, **VALUES))) as samples:
        [device] = second_sample(samples)
    assert not [name for name in native(device) if name.startswith("DCGM_FI_PROF") and "PCIE" not in name]
    assert set(device.unsupported) == set(EXPECTED_ACTIVITY) - {
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "DCGM_FI_PROF_PCIE_RX_BYTES",
    }


def test_an_old_driver_counts_reserved_memory_as_used(library: Path, tmp_path: Path) -> None:
    missing_function = "error nvmlDeviceGetMemoryInfo_v2 13"
    with sampling(machine_with(library, tmp_path, gpu(A100, missing_function, **VALUES))) as samples:
        [device] = samples.next().devices
    assert device.readings["memory_used_bytes"] == (9216 + 512) * MIB
    assert "DCGM_FI_DEV_FB_RESERVED_BYTES" in device.unsupported


def test_counters_become_rates(library: Path, tmp_path: Path) -> None:
    values = {**VALUES, "field_197": 0, "field_198": 0}  # bytes over PCIe
    machine = machine_with(library, tmp_path, gpu(A100, **values))
    with sampling(machine, interval_s=0.1) as samples:
        samples.next()
        write_trace(tmp_path, gpu(A100, **{**values, "field_138": 1001000, "field_139": 1002000, "field_197": 10**9}))
        rates: dict[str, float] = {}
        while not rates.get("DCGM_FI_PROF_PCIE_TX_BYTES"):
            rates = native(samples.next().devices[0])
    links, sent = rates["DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"], rates["DCGM_FI_PROF_PCIE_TX_BYTES"]
    assert links / sent == pytest.approx(2_000_000 * 1024 / 10**9)  # the same interval
    assert rates["DCGM_FI_PROF_PCIE_RX_BYTES"] == 0
    assert sent > 0  # no bound above: a late sample makes the next interval short


def test_xid_errors_are_counted_by_code(library: Path, tmp_path: Path) -> None:
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES), gpu(H100, "xid 79", **VALUES))
    with sampling(machine) as samples:
        good, bad = samples.next().devices
        assert native(good)["DCGM_FI_DEV_XID_ERROR"] == 0
        assert good.errors == {}
        assert native(bad)["DCGM_FI_DEV_XID_ERROR"] == 79
        write_trace(tmp_path, gpu(A100, **VALUES), gpu(H100, "xid 79", "xid 13", "xid 79", "xid 63", **VALUES))
        while sum(bad.errors.values()) < 4:
            good, bad = samples.next().devices
    assert bad.errors == {"79": 2, "13": 1, "63": 1}
    assert native(bad)["DCGM_FI_DEV_XID_ERROR"] == 63
    totals = {value.labels["xid"]: value.value for value in bad.native if value.name == "DCGM_EXP_XID_ERRORS_TOTAL"}
    assert totals == bad.errors
    assert good.errors == {}


def test_a_gpu_without_events_has_no_xid(library: Path, tmp_path: Path) -> None:
    fault = "error nvmlDeviceRegisterEvents 3"
    with sampling(machine_with(library, tmp_path, gpu(K80, fault, **VALUES))) as samples:
        [device] = samples.next().devices
    assert "DCGM_FI_DEV_XID_ERROR" not in native(device)
    assert "DCGM_FI_DEV_XID_ERROR" in device.unsupported


def test_processes_have_memory_and_time(library: Path, tmp_path: Path) -> None:
    lines = ("process 4242 1048576 30", "process 4243 2097152 0")
    with sampling(machine_with(library, tmp_path, gpu(A100, *lines, **VALUES))) as samples:
        [device] = samples.next().devices
    assert [(process.pid, process.memory_bytes, process.utilization_ratio) for process in device.processes] == [
        (4242, 1048576, 0.3),
        (4243, 2097152, 0.0),
    ]
    fault = "error nvmlDeviceGetProcessUtilization 3"
    with sampling(machine_with(library, tmp_path, gpu(A100, fault, *lines, **VALUES))) as samples:
        [device] = samples.next().devices
    assert [process.utilization_ratio for process in device.processes] == [None, None]


def test_slices_have_separate_memory_and_activity(library: Path, tmp_path: Path) -> None:
    of_slices = [
        *(f"slice 0 {name} {value}" for name, value in {"gpu_instance": 7, "memory_used": 3 * MIB, **GPM}.items()),
        *(f"slice 1 {name} {value}" for name, value in {"gpu_instance": 9, "gpm_1": 12}.items()),
        "slice 1 process 77 1048576 40",
    ]
    machine = machine_with(library, tmp_path, gpu(f"{H100} {SLICES}", *of_slices, **VALUES, **GPM))
    with sampling(machine) as samples:
        whole, first, second = second_sample(samples)
    assert whole.device.parent_uuid == ""
    assert "memory_used_bytes" not in whole.readings
    assert whole.readings["power_watts"] == pytest.approx(245.678)
    assert [part.device.uuid[:8] for part in (first, second)] == ["MIG-1111", "MIG-2222"]
    assert {part.device.parent_uuid for part in (first, second)} == {whole.device.uuid}
    assert [part.device.index for part in (first, second)] == ["0/7", "0/9"]
    assert [part.attributes["gpu_profile"] for part in (first, second)] == ["1g.5gb", "1g.5gb"]
    assert first.readings["memory_used_bytes"] == 3 * MIB
    assert first.readings["utilization_ratio"] == 0.815
    assert native(first)["DCGM_FI_PROF_TENSOR_UTIL_RATIO"] == 0.33
    assert second.readings["utilization_ratio"] == 0.12
    assert [process.pid for process in second.processes] == [77]


def test_attributes_that_are_not_supported_have_defaults(library: Path, tmp_path: Path) -> None:
    """WSL has no minor numbers."""
    faults = ("error nvmlDeviceGetMinorNumber 3", "error nvmlDeviceGetPciInfo_v3 3")
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES), gpu(f"{H100} {SLICES}", *faults, **VALUES))
    with sampling(machine) as samples:
        _, device, first, _ = samples.next().devices
    assert device.attributes["minor_number"] == "1"
    assert device.device.pci_bus_id == ""
    assert first.attributes["gpu_instance"] == "0"


def test_a_gpu_that_falls_off_the_bus_has_no_values(library: Path, tmp_path: Path) -> None:
    machine = machine_with(library, tmp_path, gpu(A100, **VALUES), gpu(H100, **VALUES))
    with sampling(machine) as samples:
        assert all("lost" not in device.attributes for device in samples.next().devices)
        write_trace(tmp_path, gpu(A100, **VALUES), gpu(H100, "xid 79", "lost", **VALUES))
        good, bad = samples.next().devices
        while "lost" not in bad.attributes or not bad.errors:
            good, bad = samples.next().devices
    assert bad.device.uuid.startswith("GPU-bbbbbbbb")
    assert (bad.readings, bad.native, bad.processes) == ({}, (), ())
    assert bad.errors == {"79": 1}  # the error that reports it
    assert good.readings["power_watts"] == pytest.approx(245.678)


def test_a_gpu_that_was_lost_before_the_start_is_reported(library: Path, tmp_path: Path) -> None:
    with sampling(machine_with(library, tmp_path, gpu(A100, "lost", **VALUES), gpu(H100, **VALUES))) as samples:
        devices = samples.next().devices
    assert [(device.device.index, "lost" in device.attributes) for device in devices] == [("1", False), ("0", True)]


@pytest.mark.parametrize(
    ("trace", "kind", "content"),
    [
        ("", "absent", "NVML lists no GPU"),
        ("error 9", "absent", "no driver of NVIDIA: Driver Not Loaded"),
        ("error 18", "error", "NVML: RM has detected an NVML/RM version mismatch"),
    ],
)
def test_a_machine_without_gpus_or_with_a_faulty_driver(
    library: Path, tmp_path: Path, trace: str, kind: str, content: str
) -> None:
    with sampling(machine_with(library, tmp_path, trace)) as samples:
        assert samples.line() == (kind, content.encode())
        assert samples.line() == ("", b"")


@pytest.mark.gpu
@pytest.mark.skipif(not has_nvidia_driver(), reason="needs an NVIDIA GPU")
def test_a_real_gpu_has_plausible_values() -> None:
    with sampling({}, interval_s=0.5) as samples:
        devices = second_sample(samples)
    assert devices
    known = {field.current.name for field in dcgm_fields()}
    for device in devices:
        values = native(device)
        assert set(values) <= known
        assert set(device.readings) <= set(READINGS)
        assert not set(values) & set(device.unsupported)
        assert all(0 <= value <= 1.001 for name, value in values.items() if name.endswith("_RATIO"))
        if device.device.parent_uuid:
            continue
        assert 0 < values["DCGM_FI_DEV_BOARD_POWER_WATTS"] < 3000
        assert 0 < values["DCGM_FI_DEV_GPU_TEMP_CELSIUS"] < 120
        assert 1e8 < values["DCGM_FI_DEV_SM_CLOCK_HERTZ"] < 1e10
        if "memory_total_bytes" in device.readings:
            parts = ("FREE", "USED", "RESERVED")
            assert sum(values[f"DCGM_FI_DEV_FB_{part}_BYTES"] for part in parts) == pytest.approx(
                values["DCGM_FI_DEV_FB_CAPACITY_BYTES"], rel=0.01
            )
