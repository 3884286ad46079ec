"""AWS Inferentia and Trainium, by the JSON stream of `neuron-monitor`. Native names are as in its Prometheus script.

A device of the normal form is a NeuronCore: utilization and memory are reported for cores, and Kubernetes allocates
them. A core that no application uses is not in a report and is idle; its memory is an equal part of its chip's.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from conch.machine.accelerators.collectors import (
    AcceleratorAbsent,
    Collector,
    CollectorError,
    DeviceIdentity,
    DeviceSample,
    NativeValue,
    ProcessUsage,
    VendorSample,
    device_sample,
)
from conch.machine.accelerators.vendors.tool import PERCENT, ToolStream, item, number, parse_json, scaled

_TOOL = "neuron-monitor"
_PERIOD_S = 1
# The first report follows the discovery of devices.
_TIMEOUT_S = 15.0
_CONFIGURATION = {
    "period": f"{_PERIOD_S}s",
    "neuron_runtimes": [
        {
            "tag_filter": ".*",
            "metrics": [{"type": group} for group in ("neuroncore_counters", "memory_used", "execution_stats")],
        }
    ],
    "system_metrics": [{"type": "neuron_hw_counters"}],
}
_INSTANCE_LABELS = {
    "instance_id": "instance_id",
    "instance_name": "instance_name",
    "instance_type": "instance_type",
    "availability_zone": "instance_availability_zone",
    "region": "instance_region",
    "subnet_id": "subnet_id",
}
_ECC_EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")


class NeuronCollector(Collector):
    """Reads the reports of one `neuron-monitor` that runs as long as the collector."""

    vendor: ClassVar[str] = "neuron"

    def __init__(self) -> None:
        self._stream: ToolStream | None = None
        self._configuration = -1
        self._counts = ExecutionCounts()

    def start(self) -> None:
        # Anonymous, so that nothing is left if this process is killed.
        self._configuration = os.memfd_create(_TOOL)
        os.write(self._configuration, json.dumps(_CONFIGURATION).encode())
        self._stream = ToolStream(_TOOL, "-c", f"/proc/{os.getpid()}/fd/{self._configuration}")
        try:
            self._stream.start()
            if not self.sample().devices:
                raise AcceleratorAbsent("neuron-monitor reports no NeuronCore")
        except CollectorError:
            self.close()
            raise

    def sample(self) -> VendorSample:
        assert self._stream is not None
        reports = [parse_report(line) for line in self._stream.lines(_TIMEOUT_S)]
        for report in reports:
            self._counts.add(report)
        return neuron_sample(reports[-1], self._counts)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._configuration >= 0:
            os.close(self._configuration)
            self._configuration = -1


class ExecutionCounts:
    """Sums of the counts that each report has for its own period, by runtime."""

    def __init__(self) -> None:
        self.by_error = Counter[tuple[str, str]]()
        self.by_status = Counter[tuple[str, str]]()

    def add(self, report: Mapping[str, Any]) -> None:
        """Add the counts of one report; runtimes that are not in it have ended and are dropped."""
        present = {_tag(runtime) for runtime in _runtimes(report)}
        for counter in (self.by_error, self.by_status):
            for key in [key for key in counter if key[0] not in present]:
                del counter[key]
        for runtime in _runtimes(report):
            stats = item(runtime, "report", "execution_stats")
            for counter, summary in ((self.by_error, "error_summary"), (self.by_status, "execution_summary")):
                for kind, count in (item(stats, summary) or {}).items():
                    counter[_tag(runtime), kind] += int(number(count) or 0)


def parse_report(line: bytes) -> Mapping[str, Any]:
    """Return one report. Raises CollectorError."""
    report = parse_json(_TOOL, line)
    if not isinstance(item(report, "neuron_hardware_info"), dict):
        raise CollectorError(f"{_TOOL}: line 1: no neuron_hardware_info: {line[:80]!r}")
    if not isinstance(report.get("neuron_runtime_data") or [], list):
        raise CollectorError(f"{_TOOL}: line 1: neuron_runtime_data is not a list: {line[:80]!r}")
    fields: Mapping[str, Any] = report
    return fields


def neuron_sample(report: Mapping[str, Any], counts: ExecutionCounts) -> VendorSample:
    """Return the sample of a report. Raises CollectorError for values that are not numbers."""
    try:
        runtimes = list(_runtimes(report))
        instance = {label: str(item(report, "instance_info", key) or "") for label, key in _INSTANCE_LABELS.items()}
        cores = _cores(report, runtimes, instance)
        return VendorSample("neuron", tuple(cores), tuple(_machine(report, runtimes, counts, instance)))
    except (ValueError, TypeError, AttributeError) as error:
        raise CollectorError(f"{_TOOL}: line 1: {error}") from error


def _runtimes(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (runtime for runtime in report.get("neuron_runtime_data") or () if isinstance(runtime, dict))


def _tag(runtime: Mapping[str, Any]) -> str:
    return str(runtime.get("neuron_runtime_tag") or runtime.get("pid", ""))


def _cores(
    report: Mapping[str, Any], runtimes: Iterable[Mapping[str, Any]], instance: Mapping[str, str]
) -> Iterator[DeviceSample]:
    hardware = report["neuron_hardware_info"]
    chips = int(number(hardware.get("neuron_device_count")) or 0)
    logical = int(number(hardware.get("logical_neuroncore_config")) or 1)
    per_chip = int(number(hardware.get("neuroncore_per_device_count")) or 0) // logical
    size = number(hardware.get("neuron_device_memory_size"))
    name = str(hardware.get("neuron_device_type") or instance["instance_type"].partition(".")[0] or "neuron")
    usage, native, faults = _usage(runtimes, instance)
    for core in range(chips * per_chip):
        chip, of_core = core // per_chip, usage.get(core, [])
        memory, busy = [usage.memory_bytes for usage in of_core], [usage.utilization_ratio for usage in of_core]
        identity = DeviceIdentity(
            "neuron",
            f"{chip}/{core % per_chip}",
            f"{instance['instance_id'] or 'neuron'}-nc{core}",
            name,
            parent_uuid=f"{instance['instance_id'] or 'neuron'}-nd{chip}",
            aliases=(
                f"aws.amazon.com/neuroncore/{core}",
                f"aws.amazon.com/neurondevice/{chip}",
                f"aws.amazon.com/neuron/{chip}",
            ),
        )
        yield device_sample(
            identity,
            {
                "utilization_ratio": None if faults or None in busy else min(sum(map(float, filter(None, busy))), 1.0),
                "memory_used_bytes": None if faults or None in memory else sum(map(float, filter(None, memory))),
                "memory_total_bytes": scaled(size or None, 1 / per_chip),
            },
            native=tuple(native.get(core, ())),
            processes=tuple(usage for usage in of_core if usage.pid),
            # The chip's errors are counted at its first core, so that a sum over cores counts them once.
            errors=_ecc(report, chip) if core % per_chip == 0 else {},
        )


def _usage(
    runtimes: Iterable[Mapping[str, Any]], instance: Mapping[str, str]
) -> tuple[dict[int, list[ProcessUsage]], dict[int, list[NativeValue]], bool]:
    """Return usage and native values by core, and whether a runtime's data could not be collected."""
    usage, native = defaultdict[int, list[ProcessUsage]](list), defaultdict[int, list[NativeValue]](list)
    faults = False
    for runtime in runtimes:
        counters, memory = (item(runtime, "report", group) for group in ("neuroncore_counters", "memory_used"))
        faults |= bool(runtime.get("error") or item(counters, "error") or item(memory, "error"))
        busy = item(counters, "neuroncores_in_use") or {}
        used = item(memory, "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage") or {}
        for core in sorted({*busy, *used}):
            labels = {**instance, "neuroncore": core, "runtime_tag": _tag(runtime)}
            ratio = scaled(number(item(busy, core, "neuroncore_utilization")), PERCENT)
            parts = {kind: number(size) for kind, size in (item(used, core) or {}).items()}
            held = [size for size in parts.values() if size is not None]
            usage[int(core)].append(
                ProcessUsage(int(runtime.get("pid") or 0), sum(held) if core in used else None, ratio)
                if core in busy
                else ProcessUsage(int(runtime.get("pid") or 0), sum(held), 0.0)
            )
            if ratio is not None:
                native[int(core)].append(NativeValue("neuroncore_utilization_ratio", ratio, labels))
            native[int(core)] += [
                NativeValue(f"neuroncore_memory_usage_{kind}", size, {**labels, "memory_location": "None"})
                for kind, size in parts.items()
                if size is not None
            ]
    return usage, native, faults


def _chip_counters(report: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield chip, event and count of the hardware's counters."""
    for chip in item(report, "system_data", "neuron_hw_counters", "neuron_devices") or ():
        for event in _ECC_EVENTS:
            count = number(item(chip, event))
            if count is not None:
                yield str(item(chip, "neuron_device_index")), event, count


def _ecc(report: Mapping[str, Any], chip: int) -> dict[str, float]:
    """Return the uncorrected errors of a chip. Corrected ones are routine, and under their native name only."""
    counters = _chip_counters(report)
    return {event: count for index, event, count in counters if index == str(chip) and event.endswith("uncorrected")}


def _machine(
    report: Mapping[str, Any],
    runtimes: Iterable[Mapping[str, Any]],
    counts: ExecutionCounts,
    instance: Mapping[str, str],
) -> Iterator[NativeValue]:
    for runtime in runtimes:
        used = item(runtime, "report", "memory_used", "neuron_runtime_used_bytes")
        for location in ("host", "neuron_device"):
            size = number(item(used, location))
            if size is not None:
                labels = {**instance, "runtime_tag": _tag(runtime), "memory_location": location}
                yield NativeValue("neuron_runtime_memory_used_bytes", size, labels)
    for name, label, counter in (
        ("execution_errors_total", "error_type", counts.by_error),
        ("execution_status_total", "status_type", counts.by_status),
    ):
        for (tag, kind), total in counter.items():
            yield NativeValue(name, total, {**instance, "runtime_tag": tag, label: kind}, "counter")
    for chip, event, count in _chip_counters(report):
        labels = {**instance, "neuron_device_index": chip, "event_type": event}
        yield NativeValue("hardware_ecc_events_total", count, labels, "counter")
