"""Parsers of vendors' tools, on output that users and documentation published (see recorded/SOURCES.md)."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from conch.domain.metrics.catalog import all_metrics
from conch.machine.accelerators.collectors import READINGS, CollectorError, ProcessUsage, VendorSample, sample_from_json
from conch.machine.accelerators.families import native_families, sample_families
from conch.machine.accelerators.vendors.amd import AmdOutput, parse_amd
from conch.machine.accelerators.vendors.ascend import ascend_sample, parse_clocks, parse_info, sections
from conch.machine.accelerators.vendors.cambricon import parse_cards, parse_cnmon
from conch.machine.accelerators.vendors.intel import parse_discovery, parse_intel
from conch.machine.accelerators.vendors.neuron import ExecutionCounts, neuron_sample, parse_report

RECORDED = Path(__file__).parent / "recorded"
MIB = 1 << 20


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def ascend(name: str) -> VendorSample:
    return ascend_sample(parse_info(recorded(name)), {}, {})


def amd(metric: bytes, process: bytes = b"") -> VendorSample:
    listing = b'[{"gpu": 0, "bdf": "0000:03:00.0", "uuid": "abff74a1-0000-1000-80d1-3c23a9580558"}]'
    return parse_amd(AmdOutput(listing, b'[{"gpu": 0, "asic": {"market_name": "Radeon"}}]', metric, process))


def intel(name: str) -> VendorSample:
    return parse_intel(parse_discovery(recorded("intel_discovery.json")), recorded(name))


def neuron(report: bytes) -> VendorSample:
    return neuron_sample(parse_report(report), ExecutionCounts())


SAMPLES: dict[str, Callable[[], VendorSample]] = {
    "amd": lambda: amd(recorded("amd_metric.json"), recorded("amd_process.json")),
    "amd without values": lambda: amd(recorded("amd_metric_na.json")),
    "ascend 910B2": lambda: ascend("ascend_910b2.txt"),
    "ascend A3": lambda: ascend("ascend_a3.txt"),
    "ascend 310P": lambda: ascend("ascend_310p.txt"),
    "cambricon MLU370": lambda: parse_cnmon(recorded("cambricon_370.txt")),
    "cambricon MLU220": lambda: parse_cnmon(recorded("cambricon_220.txt")),
    "intel": lambda: intel("intel_dump.txt"),
    "intel without root": lambda: intel("intel_dump_blank.txt"),
    "intel N/A": lambda: intel("intel_dump_na.txt"),
    "neuron": lambda: neuron(recorded("neuron_report.json")),
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_every_reading_is_a_base_unit_or_unsupported(make: Callable[[], VendorSample]) -> None:
    sample = make()
    assert sample.devices
    assert sample_from_json(sample.to_json()) == sample
    for device in sample.devices:
        assert set(device.readings).isdisjoint(device.unsupported)
        assert set(READINGS) <= set(device.readings) | set(device.unsupported)
        assert 0 <= device.readings.get("utilization_ratio", 0) <= 1
        assert device.readings.get("memory_used_bytes", 0) <= device.readings.get("memory_total_bytes", 1 << 50)
        assert -50 < device.readings.get("temperature_celsius", 20) < 150
        assert device.device.uuid


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_series_have_the_labels_of_the_catalog(make: Callable[[], VendorSample]) -> None:
    sample = make()
    for family in [*sample_families([sample], {}), *native_families([sample], {}, all_metrics())]:
        definition = all_metrics()[family.name]
        assert all(set(point.labels) == set(definition.labels) for point in family.points), family.name
        labels = [tuple(sorted(point.labels.items())) for point in family.points]
        assert len(labels) == len(set(labels)), f"{family.name} has one series twice"


def test_amd() -> None:
    (gpu,) = SAMPLES["amd"]().devices
    assert gpu.readings == {
        "utilization_ratio": 1.0,
        "memory_used_bytes": 29777 * MIB,
        "memory_total_bytes": 32624 * MIB,
        "power_watts": 103,
        "temperature_celsius": 63,
        "clock_hertz": 14e6,
    }
    assert gpu.unsupported == ("energy_joules_total",)  # 0.0 J: this GPU has no accumulator
    assert gpu.processes == (ProcessUsage(213952, 21008920000.0),)
    assert gpu.errors == {"ecc_uncorrectable": 0}
    assert gpu.device.pci_bus_id == "0000:03:00.0"
    native = {value.name: value.value for value in gpu.native}
    assert (native["gpu_gfx_activity"], native["gpu_used_vram"]) == (100, 29777)
    (nothing,) = SAMPLES["amd without values"]().devices
    assert (nothing.readings, nothing.native) == ({}, ())
    assert set(nothing.unsupported) == {*READINGS, "process"}


def test_ascend() -> None:
    (npu,) = ascend("ascend_910b2.txt").devices
    assert npu.readings == {
        "utilization_ratio": 0.0,
        "memory_used_bytes": 59891 * MIB,
        "memory_total_bytes": 65536 * MIB,
        "power_watts": 99.6,
        "temperature_celsius": 37,
    }
    assert npu.unsupported == ("energy_joules_total", "clock_hertz")
    assert "Ascend910-0" in npu.device.aliases


def test_an_ascend_card_of_two_chips() -> None:
    first, second = ascend("ascend_a3.txt").devices
    assert (first.device.index, second.device.index) == ("14", "15")
    assert first.readings["power_watts"] == 172.0
    assert "power_watts" in second.unsupported  # the first chip reports the power of both
    assert first.processes == (ProcessUsage(692318, 12417 * MIB),)


def test_ascend_with_ddr_memory() -> None:
    first, _ = ascend("ascend_310p.txt").devices
    assert first.readings["memory_total_bytes"] == 44280 * MIB
    assert "power_watts" in first.unsupported


def test_ascend_clock_and_die() -> None:
    assert parse_clocks(recorded("ascend_common.txt")) == {0: 100e6}
    (board, *_) = [section for section in sections(recorded("ascend_board.txt")) if "VDie ID" in section]
    assert board["VDie ID"].startswith("14036E64 00E04F1D")
    chips = parse_info(recorded("ascend_910b2.txt"))
    (npu,) = ascend_sample(chips, {(0, 0): 100e6}, {(0, 0): "14036E64-00E04F1D"}).devices
    assert (npu.readings["clock_hertz"], npu.device.uuid) == (100e6, "14036E64-00E04F1D")


def test_cambricon() -> None:
    first, second = parse_cnmon(recorded("cambricon_370.txt")).devices
    assert first.readings == {
        "utilization_ratio": 0.0,
        "memory_used_bytes": 0,
        "memory_total_bytes": 23308 * MIB,
        "power_watts": 27,
        "temperature_celsius": 41,
    }
    assert second.device.pci_bus_id == "0000:36:00.0"
    assert "ecc" in first.unsupported
    (old,) = parse_cnmon(recorded("cambricon_220.txt")).devices
    assert (old.readings["power_watts"], old.readings["memory_used_bytes"]) == (3.7, 967 * MIB)
    assert (old.device.pci_bus_id, old.device.uuid) == ("", "cambricon-0")


def test_cambricon_uuids_and_processes() -> None:
    cards = parse_cards(b'{"CnmonInfo": [{"CardNum": 0, "UUID": "81310000-0000-0000-0000-00002e1b0000"}]}')
    text = recorded("cambricon_370.txt").replace(
        b"|  No running processes found                                                  |",
        b"|  0     /   4711    python serve.py --model x                        1024 MiB |",
    )
    first, second = parse_cnmon(text, cards).devices
    assert first.device.uuid == "81310000-0000-0000-0000-00002e1b0000"
    assert first.processes == (ProcessUsage(4711, 1024 * MIB),)
    assert second.processes == ()


def test_intel() -> None:
    (gpu,) = intel("intel_dump.txt").devices
    assert gpu.readings == {"memory_used_bytes": 82.44 * MIB, "power_watts": 15.97, "clock_hertz": 2450e6}
    assert (gpu.device.uuid, gpu.device.aliases[0]) == ("00000000-0000-0029-0000-002f0bda8086", "card1")
    (blank,) = intel("intel_dump_blank.txt").devices
    assert blank.readings == {"power_watts": 43.72, "clock_hertz": 2050e6}
    assert {"utilization_ratio", "temperature_celsius"} <= set(blank.unsupported)
    assert [device.readings for device in intel("intel_dump_na.txt").devices] == [{}, {}]
    (engines,) = intel("intel_dump_engines.txt").devices
    assert engines.readings["utilization_ratio"] == 0.0


def test_intel_processes() -> None:
    processes = b"""{"device_util_by_proc_list": [
        {"device_id": 0, "process_id": 7, "process_name": "/usr/bin/xpu-smi", "mem_size": 0, "shared_mem_size": 0},
        {"device_id": 0, "process_id": 4711, "process_name": "python3", "mem_size": 2048, "shared_mem_size": 0}]}"""
    (gpu,) = parse_intel({}, recorded("intel_dump.txt"), processes).devices
    assert gpu.processes == (ProcessUsage(4711, 2048 * 1024),)
    assert "process" not in gpu.unsupported


def test_neuron() -> None:
    sample = neuron(recorded("neuron_report.json"))
    assert len(sample.devices) == 32  # 16 chips of 4 cores, 2 of which are one logical core
    first, second, third = sample.devices[:3]
    assert first.readings == {
        "utilization_ratio": pytest.approx(0.4201),
        "memory_used_bytes": 193986816 + 176285056 + 20971520,
        "memory_total_bytes": 103079215104 / 2,
    }
    assert first.processes == (ProcessUsage(4711, 391243392, pytest.approx(0.4201)),)
    assert (second.device.index, third.device.index) == ("0/1", "1/0")
    assert third.readings["utilization_ratio"] == 0.0  # not in use: idle
    assert first.errors == {"mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0}
    assert second.errors == {}
    assert "aws.amazon.com/neuroncore/1" in second.device.aliases


def test_counts_of_neuron_add_up_over_reports() -> None:
    counts, report = ExecutionCounts(), parse_report(recorded("neuron_report.json"))
    counts.add(report)
    counts.add(report)
    native = neuron_sample(report, counts).native
    (completed,) = [value for value in native if value.labels.get("status_type") == "completed"]
    assert (completed.value, completed.kind) == (246, "counter")
    counts.add({**report, "neuron_runtime_data": []})
    assert not counts.by_status


def test_a_core_whose_runtime_cannot_be_read_is_unsupported() -> None:
    report = json.loads(recorded("neuron_report.json"))
    report["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["error"] = "no permission"
    sample = neuron_sample(report, ExecutionCounts())
    assert all("utilization_ratio" in device.unsupported for device in sample.devices)


MALFORMED: dict[str, tuple[Callable[[], object], str]] = {
    "amd": (lambda: amd(b"amdsmi is broken\n"), "amd-smi metric: line 1: not JSON"),
    "amd list": (lambda: amd(b'{"gpu_data": 3}'), "amd-smi metric: line 1: not a list of GPUs"),
    "amd value": (lambda: amd(b'[{"gpu": 0, "power": {"socket_power": "hot"}}]'), "amd-smi metric: GPU 0: .*'hot'"),
    "ascend": (lambda: parse_info(b"DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"), "npu-smi info: line 1:"),
    "ascend row": (
        lambda: parse_info(recorded("ascend_910b2.txt").replace(b"99.6", b"warm")),
        "npu-smi info: line 8: malformed",
    ),
    "cambricon": (lambda: parse_cnmon(b"cnmon: no driver\n"), "cnmon: line 1: malformed"),
    "cambricon row": (
        lambda: parse_cnmon(recorded("cambricon_370.txt").replace(b"23308 MiB", b"plenty", 1)),
        "cnmon: line 9: malformed",
    ),
    "cambricon JSON": (lambda: parse_cards(b"{}"), "cnmon info -j: line 1"),
    "intel": (lambda: parse_intel({}, b"Error: Level Zero\n"), "xpu-smi dump: line 1: malformed"),
    "intel row": (
        lambda: parse_intel({}, recorded("intel_dump.txt").replace(b"15.97", b"15.97, 3")),
        "xpu-smi dump: line 2: malformed",
    ),
    "intel devices": (lambda: parse_discovery(b'{"error": "no device"}'), "xpu-smi discovery: line 1"),
    "neuron": (lambda: parse_report(b"panic: no driver"), "neuron-monitor: line 1: not JSON"),
    "neuron hardware": (lambda: parse_report(b"{}"), "neuron-monitor: line 1: no neuron_hardware_info"),
    "neuron value": (
        lambda: neuron(recorded("neuron_report.json").replace(b"42.01", b'"busy"')),
        "neuron-monitor: line 1: could not convert",
    ),
}


@pytest.mark.parametrize(("parse", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_output_is_an_error_with_tool_and_line(parse: Callable[[], object], message: str) -> None:
    with pytest.raises(CollectorError, match=message):
        parse()


@pytest.mark.parametrize("name", [path.name for path in sorted(RECORDED.iterdir()) if path.suffix in {".txt", ".json"}])
def test_cut_output_never_crashes(name: str) -> None:
    output = recorded(name)
    parsers: list[Callable[[bytes], object]] = [
        parse_info,
        parse_clocks,
        parse_cnmon,
        parse_cards,
        parse_discovery,
        lambda text: parse_intel({}, text),
        lambda text: amd(text, text),
        neuron,
    ]
    for end in range(0, len(output), max(len(output) // 40, 1)):
        for parse in parsers:
            with suppress(CollectorError):
                parse(output[:end])
