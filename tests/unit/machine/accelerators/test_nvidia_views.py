"""Samples of NVIDIA GPUs under DCGM's names, and counter files of dcgm-exporter."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.domain.metrics.catalog import dcgm_fields
from conch.machine.accelerators.collectors import DeviceIdentity, DeviceSample, NativeValue, VendorSample
from conch.machine.accelerators.families import Containers, PodContainer
from conch.machine.accelerators.nvidia_views import DcgmNames, DcgmView, TritonView, parse_counters, read_counter_file

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
GPU = DeviceIdentity("nvidia", "3", "GPU-a", "NVIDIA A800", "00000000:1A:00.0")
SLICE = DeviceIdentity("nvidia", "3/7", "MIG-b", "NVIDIA A800", "00000000:1A:00.0", "GPU-a")
# Legacy name and value, name and value since 4.7. The values are in the units that DCGM documents for each.
PAIRS = [
    ("DCGM_FI_DEV_SM_CLOCK", 1410, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1_410_000_000),
    ("DCGM_FI_DEV_MEM_CLOCK", 1593, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 1_593_000_000),
    ("DCGM_FI_DEV_MEMORY_TEMP", 51, "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", 51),
    ("DCGM_FI_DEV_GPU_TEMP", 43, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 43),
    ("DCGM_FI_DEV_POWER_USAGE", 245.678, "DCGM_FI_DEV_BOARD_POWER_WATTS", 245.678),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 987654321, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 987654.321),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 3, "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", 3),
    ("DCGM_FI_DEV_GPU_UTIL", 29, "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.29),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", 57, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 0.57),
    ("DCGM_FI_DEV_ENC_UTIL", 7, "DCGM_FI_DEV_ENC_UTIL_RATIO", 0.07),
    ("DCGM_FI_DEV_DEC_UTIL", 58, "DCGM_FI_DEV_DEC_UTIL_RATIO", 0.58),
    ("DCGM_FI_DEV_XID_ERRORS", 79, "DCGM_FI_DEV_XID_ERROR", 79),
    ("DCGM_FI_DEV_FB_FREE", 31232, "DCGM_FI_DEV_FB_FREE_BYTES", 31232 << 20),
    ("DCGM_FI_DEV_FB_USED", 9216, "DCGM_FI_DEV_FB_USED_BYTES", 9216 << 20),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 2, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 2_048_000),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", 1, "DCGM_FI_DEV_VGPU_LICENSE_STATUS", 1),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1, "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", 1),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 2, "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", 2),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "DCGM_FI_DEV_ROW_REMAP_FAILED", 1),
    ("DCGM_FI_DEV_FB_RESERVED", 512, "DCGM_FI_DEV_FB_RESERVED_BYTES", 512 << 20),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.815, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.815),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.33, "DCGM_FI_PROF_TENSOR_UTIL_RATIO", 0.33),
    ("DCGM_FI_PROF_DRAM_ACTIVE", 0.25, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 0.25),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", 1500, "DCGM_FI_PROF_PCIE_TX_BYTES", 1500),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", 2500, "DCGM_FI_PROF_PCIE_RX_BYTES", 2500),
]
# Exposed since 4.9 of dcgm-exporter, not before.
ADDED = ("DCGM_FI_DEV_FB_CAPACITY_BYTES", 40960 << 20)
# Exposed only if a counter file says so.
OPTIONAL = ("DCGM_FI_DEV_POWER_VIOLATION", 1_000_000)


def sample(device: DeviceIdentity, values: Mapping[str, float], **attributes: str) -> VendorSample:
    native = tuple(NativeValue(name, value) for name, value in values.items())
    attributes = {"minor_number": "1", "driver_version": "580.95.05", **attributes}
    return VendorSample("nvidia", (DeviceSample(device, native=native, attributes=attributes),))


ALL = sample(GPU, {**{name: value for _, _, name, value in PAIRS}, **dict([ADDED, OPTIONAL])})


def exposed(
    names: DcgmNames | None,
    samples: list[VendorSample],
    counters: str = "",
    hostname: str = "node-1",
    containers: Containers | None = None,
) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What a scrape shows: labels and values by name."""
    view = DcgmView(names, hostname, parse_counters(counters, "file") if counters else None)
    return {
        family.name: [(dict(point.labels), point.value) for point in family.points]
        for family in view.families(samples, containers or {})
        if family.points
    }


def values_of(shown: dict[str, list[tuple[dict[str, str], float]]]) -> dict[str, float]:
    return {name: value for name, [(_, value)] in shown.items()}


def test_legacy_names_have_legacy_units() -> None:
    assert values_of(exposed("legacy", [ALL])) == {name: value for name, value, _, _ in PAIRS}


def test_new_names_have_base_units() -> None:
    assert values_of(exposed("4.7", [ALL])) == {**{name: value for _, _, name, value in PAIRS}, **dict([ADDED])}


def test_both_generations_expose_no_series_twice() -> None:
    old, new = exposed("legacy", [ALL]), exposed("4.7", [ALL])
    assert values_of(exposed("both", [ALL])) == values_of(old) | values_of(new)


COMMON = {
    "gpu": "3",
    "UUID": "GPU-a",
    "pci_bus_id": "00000000:1A:00.0",
    "device": "nvidia1",
    "modelName": "NVIDIA A800",
}
OLD = {"Hostname": "node-1", "DCGM_FI_DRIVER_VERSION": "580.95.05"}
NEW = {"hostname": "node-1", "DCGM_FI_SYSTEM_DRIVER_VERSION": "580.95.05"}


@pytest.mark.parametrize(
    ("names", "name", "own"),
    [
        ("legacy", "DCGM_FI_DEV_GPU_TEMP", OLD),
        ("4.7", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", NEW),
        ("both", "DCGM_FI_DEV_GPU_TEMP", OLD),
        ("both", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", NEW),
        ("both", "DCGM_FI_PROF_PCIE_TX_BYTES", OLD | NEW),  # one name in both
    ],
)
def test_labels_are_those_of_the_generation(names: DcgmNames, name: str, own: dict[str, str]) -> None:
    [(labels, _)] = exposed(names, [ALL])[name]
    assert labels == COMMON | own


def test_the_hostname_can_be_omitted() -> None:
    [(labels, _)] = exposed("legacy", [ALL], hostname="")["DCGM_FI_DEV_GPU_TEMP"]
    assert labels == COMMON | {"DCGM_FI_DRIVER_VERSION": "580.95.05"}


def test_slices_have_their_gpus_labels_and_their_own() -> None:
    part = sample(SLICE, {"DCGM_FI_DEV_FB_USED_BYTES": 1 << 30}, gpu_instance="7", gpu_profile="1g.10gb")
    [(labels, value)] = exposed("legacy", [part])["DCGM_FI_DEV_FB_USED"]
    assert value == 1024
    assert labels == COMMON | OLD | {"GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}


def test_series_have_the_labels_of_containers() -> None:
    containers = {"GPU-a": [PodContainer("team", "triton-0", "server")]}
    [(labels, _)] = exposed("legacy", [ALL], containers=containers)["DCGM_FI_DEV_GPU_UTIL"]
    assert labels == COMMON | OLD | {"namespace": "team", "pod": "triton-0", "container": "server"}


def test_a_counter_file_selects_and_names() -> None:
    text = (
        "DCGM_FI_DEV_GPU_UTIL_RATIO, gauge, x\nDCGM_FI_DEV_SM_CLOCK, gauge, y\nDCGM_FI_DEV_POWER_VIOLATION, counter, z"
    )
    assert values_of(exposed(None, [ALL], text)) == {
        "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.29,
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_POWER_VIOLATION": 1_000_000,
    }
    assert set(exposed("4.7", [ALL], text)) == {
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "DCGM_FI_DEV_SM_CLOCK_HERTZ",
        "DCGM_FI_DEV_POWER_VIOLATION",
    }


@pytest.mark.parametrize("names", [None, "legacy", "4.7", "both"])
def test_types_and_help_of_a_counter_file_stay_with_any_names(names: DcgmNames | None) -> None:
    text = "DCGM_FI_DEV_SM_CLOCK, counter, what the file says\nDCGM_FI_DEV_POWER_VIOLATION, gauge, another text"
    view = DcgmView(names, "", parse_counters(text, "file"))
    families = [family for family in view.families([ALL], {}) if family.points]
    assert len(families) == (3 if names == "both" else 2)
    for family in families:
        is_clock = "CLOCK" in family.name
        assert (family.kind, family.help) == (
            ("counter", "what the file says") if is_clock else ("gauge", "another text")
        )


def test_without_names_legacy_ones_are_exposed() -> None:
    assert exposed(None, [ALL]) == exposed("legacy", [ALL])


def test_other_vendors_are_left_out() -> None:
    assert exposed("both", [VendorSample("amd", ALL.devices)]) == {}


def test_legacy_values_follow_from_the_factor() -> None:
    """The factor is what translations of queries use."""
    factors = {field.legacy.name: (field.current.name, field.legacy_factor) for field in dcgm_fields()}
    for legacy, old, current, new in PAIRS:
        name, factor = factors[legacy]
        assert (name, new * factor) == (current, pytest.approx(old))


def test_triton_names_count_energy_from_the_first_sample() -> None:
    view = TritonView()
    for energy in (1000.0, 1500.5):
        latest = sample(
            GPU,
            {
                "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": energy,
                "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.5,
                "DCGM_FI_DEV_FB_USED_BYTES": 5,
                "DCGM_FI_DEV_FB_CAPACITY_BYTES": 10,
                "DCGM_FI_DEV_BOARD_POWER_WATTS": 200,
                "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS": 400,
            },
        )
        view.observe(latest)
    shown = {
        family.name: [(point.labels, point.value) for point in family.points] for family in view.families([latest])
    }
    label = {"gpu_uuid": "GPU-a"}
    assert shown == {
        "nv_gpu_utilization": [(label, 0.5)],
        "nv_gpu_memory_total_bytes": [(label, 10)],
        "nv_gpu_memory_used_bytes": [(label, 5)],
        "nv_gpu_power_usage": [(label, 200)],
        "nv_gpu_power_limit": [(label, 400)],
        "nv_energy_consumption": [(label, 500.5)],
    }


def test_the_page_lists_numbers_and_names_of_all_default_fields() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| `DCGM_")]
    shown = {}
    for names, _, meaning in rows:
        old, *new = re.findall(r"`(\w+)`", names)
        numbers = re.search(r"\. (\d+)(?:, (\d+))?\.", meaning)
        if not meaning.endswith(" `-f`. ") or "Old name:" in meaning:
            ids = numbers.groups() if numbers else ()
            shown[old] = ((new or [old])[0], {int(id_) for id_ in ids if id_})
    assert shown == {
        field.legacy.name: (field.current.name, {field.legacy_id, field.current_id} - {0})
        for field in dcgm_fields()
        if field.current_default
    }


# In the form of the file that dcgm-exporter ships.
COUNTERS = """\
# Format,,
# If line starts with a '#' it is considered a comment,,

# Clocks,,
DCGM_FI_DEV_SM_CLOCK,  gauge, Clock, of the SMs.
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder.
  # DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock.
DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, counter, Energy.
,,
DCGM_FI_DEV_FABRIC_HEALTH_MASK, gauge, Not in NVML.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_SERIAL, label, Serial number.
"""


def test_fields_keep_type_and_help() -> None:
    read = parse_counters(COUNTERS, "counters.csv")
    assert [(counter.metric.name, counter.metric.kind, counter.metric.help) for counter in read.counters] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", "Clock, of the SMs."),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder."),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "counter", "Energy."),
    ]
    assert [counter.metric.unit for counter in read.counters] == ["megahertz", "percent", "joules"]


def test_fields_that_nvml_lacks_are_named() -> None:
    assert parse_counters(COUNTERS, "x").unavailable == ("DCGM_FI_DEV_FABRIC_HEALTH_MASK", "DCGM_FI_DEV_SERIAL")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DCGM_FI_DEV_SM_CLOCK, gauge", "f, line 2: expected three columns, FIELD, type, help; got"),
        ("DCGM_FI_DEV_SM_CLOCK, timer, Clock.", "f, line 2: 'timer' is not a type of metrics"),
        ("nv_gpu_utilization, gauge, Utilization.", "f, line 2: 'nv_gpu_utilization' is not a field of DCGM"),
        ("DCGM_FI_DEV_SERIAL, label, Serial number.", "f names no field that NVML has a value for"),
    ],
)
def test_errors_name_the_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_counters(f"# comment\n{line}\n", "f")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the counter file .*none\.csv"):
        read_counter_file(tmp_path / "none.csv")
