"""Intel GPUs, by `xpu-smi dump`. Native names are as in XPU Manager's Prometheus exporter.

The header of the CSV states the units, so that columns are found by name. A field that is blank or N/A is not
available, which is usual for users other than root.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from conch.machine.accelerators.collectors import (
    AcceleratorAbsent,
    Collector,
    CollectorError,
    DeviceIdentity,
    NativeValue,
    ProcessUsage,
    VendorSample,
    device_sample,
)
from conch.machine.accelerators.vendors.tool import (
    MEBIBYTE,
    MEGAHERTZ,
    PERCENT,
    ToolStream,
    item,
    malformed,
    number,
    parse_json,
    run_tool,
    scaled,
)

_TOOL = "xpu-smi"
_DUMP = "xpu-smi dump"
_TIMEOUT_S = 15.0  # for the first row
_PROCESSES_TIMEOUT_S = 5.0
# Utilization, power, frequency, core temperature, memory utilization, energy, memory used.
_METRICS = "0,1,2,3,5,8,18"
# Reading, the beginnings of its column's name in versions of the tool, factor to the base unit.
_COLUMNS = (
    ("utilization_ratio", ("GPU Utilization (%)", "Average % utilization of all GPU Engines"), PERCENT),
    ("power_watts", ("GPU Power (W)",), 1.0),
    ("clock_hertz", ("GPU Frequency (MHz)",), MEGAHERTZ),
    ("temperature_celsius", ("GPU Core Temperature",), 1.0),
    ("energy_joules_total", ("GPU Energy Consumed (J)",), 1.0),
    ("memory_used_bytes", ("GPU Memory Used (MiB)",), MEBIBYTE),
    ("memory_ratio", ("GPU Memory Utilization (%)",), PERCENT),
)
# Native name, reading, factor from the base unit, further labels.
_NATIVE: tuple[tuple[str, str, float, Mapping[str, str]], ...] = (
    ("xpum_engine_ratio", "utilization_ratio", 1.0, {}),
    ("xpum_power_watts", "power_watts", 1.0, {}),
    ("xpum_energy_joules", "energy_joules_total", 1.0, {}),
    ("xpum_temperature_celsius", "temperature_celsius", 1.0, {"location": "gpu"}),
    ("xpum_frequency_mhz", "clock_hertz", 1 / MEGAHERTZ, {"location": "gpu", "type": "actual"}),
    ("xpum_memory_used_bytes", "memory_used_bytes", 1.0, {}),
    ("xpum_memory_ratio", "memory_ratio", 1.0, {}),
)


class IntelCollector(Collector):
    """Reads the rows of one `xpu-smi dump` that runs as long as the collector; starting one takes seconds."""

    vendor: ClassVar[str] = "intel"

    def __init__(self) -> None:
        self._devices: Mapping[int, Mapping[str, Any]] = {}
        # Its interval is a second. Versions 1 and 2 have different names for it, and for the number of rows.
        self._stream = ToolStream(_TOOL, "dump", "-d", "-1", "--metrics", _METRICS)
        self._header = b""

    def start(self) -> None:
        listed = parse_discovery(run_tool(_TOOL, "discovery", "-j"))
        if not listed:
            raise AcceleratorAbsent("xpu-smi lists no GPU")
        # The details have the size of the memory.
        details = {index: run_tool(_TOOL, "discovery", "-d", str(index), "-j") for index in listed}
        self._devices = {
            index: {**row, **parse_json("xpu-smi discovery", details[index])} for index, row in listed.items()
        }

    def sample(self) -> VendorSample:
        rows: dict[bytes, bytes] = {}  # the last of each GPU
        while not rows:
            for line in self._stream.lines(_TIMEOUT_S):
                if line.startswith(b"Timestamp"):
                    self._header = line
                else:
                    rows[line.partition(b",")[2].partition(b",")[0].strip()] = line
        try:
            processes = run_tool(_TOOL, "ps", "-j", timeout_s=_PROCESSES_TIMEOUT_S)
        except CollectorError:
            processes = b""
        return parse_intel(self._devices, b"\n".join((self._header, *rows.values())), processes)

    def close(self) -> None:
        self._stream.close()


def parse_discovery(output: bytes) -> dict[int, Mapping[str, Any]]:
    """Return the physical GPUs of `xpu-smi discovery -j` by id."""
    rows = item(parse_json("xpu-smi discovery", output), "device_list")
    if not isinstance(rows, list) or not all(isinstance(item(row, "device_id"), int) for row in rows):
        raise CollectorError(f"xpu-smi discovery: line 1: no device_list: {output[:80]!r}")
    return {row["device_id"]: row for row in rows if row.get("device_function_type") != "virtual"}


def parse_intel(devices: Mapping[int, Mapping[str, Any]], dump: bytes, processes: bytes = b"") -> VendorSample:
    """Return the sample of `xpu-smi dump` and, unless empty, `xpu-smi ps -j`. Raises CollectorError."""
    usage = _usage(processes) if processes else {}
    samples = []
    for index, values in _rows(dump):
        row = devices.get(index, {})
        name, bus = str(row.get("device_name", "Intel GPU")), str(row.get("pci_bdf_address", ""))
        card = str(row.get("drm_device", "")).rpartition("/")[2]
        identity = DeviceIdentity(
            "intel", str(index), str(row.get("uuid") or f"intel-{bus or index}"), name, bus, aliases=(card, bus)
        )
        total = number(row.get("memory_physical_size_byte"))
        readings = {reading: value for reading, value in values.items() if reading != "memory_ratio"}
        labels = {
            "uuid": identity.uuid,
            "dev_name": name,
            "pci_dev": str(row.get("pci_device_id", "")),
            "vendor": str(row.get("vendor_name", "")),
            "pci_bdf": bus,
        }
        native = tuple(
            NativeValue(native, value * factor, {**labels, **extra})
            for native, reading, factor, extra in _NATIVE
            if (value := values.get(reading)) is not None
        )
        samples.append(
            device_sample(
                identity,
                readings | {"memory_total_bytes": total or None},
                native=native,
                processes=usage.get(index, ()),
                unsupported=() if processes else ("process",),
            )
        )
    return VendorSample("intel", tuple(samples))


def _rows(output: bytes) -> Iterator[tuple[int, dict[str, float | None]]]:
    """Yield the GPU and its values in base units of each row."""
    lines = [(n, line) for n, line in enumerate(output.decode(errors="replace").splitlines(), 1) if line.strip()]
    heads = [position for position, (_, line) in enumerate(lines) if line.startswith("Timestamp")]
    if not heads:
        n, line = lines[0] if lines else (1, "")
        raise malformed(_DUMP, n, line)
    columns = [column.strip() for column in lines[heads[0]][1].split(",")]
    for n, line in lines[heads[0] + 1 :]:
        cells = line.split(",")
        try:
            row = dict(zip(columns, cells, strict=True))
            yield (
                int(row["DeviceId"]),
                {reading: scaled(_cell(row, names), factor) for reading, names, factor in _COLUMNS},
            )
        except (ValueError, KeyError) as error:
            raise malformed(_DUMP, n, line) from error


def _cell(cells: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    return next((number(cell) for column, cell in cells.items() if column.startswith(names)), None)


def _usage(output: bytes) -> dict[int, tuple[ProcessUsage, ...]]:
    """Return the processes of each GPU, without `xpu-smi` itself. `mem_size` is in KiB."""
    rows = item(parse_json("xpu-smi ps", output), "device_util_by_proc_list") or []
    usage: dict[int, tuple[ProcessUsage, ...]] = {}
    for row in rows:
        pid, device = item(row, "process_id"), item(row, "device_id")
        if isinstance(pid, int) and isinstance(device, int) and "xpu-smi" not in str(row.get("process_name")):
            process = ProcessUsage(pid, scaled(number(row.get("mem_size")), 1024.0))
            usage[device] = (*usage.get(device, ()), process)
    return usage
