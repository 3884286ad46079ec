"""AMD GPUs, by `amd-smi metric --json`. Native names are as in AMD's device-metrics-exporter.

Formats: ROCm 6 writes a list of GPUs, ROCm 7 an object with `gpu_data`. `MB` are 2^20 bytes. A value that a GPU does
not have is "N/A". The energy of GPUs without an accumulator is 0.0 J, so 0 counts as not available.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from conch.machine.accelerators.vendors.tool import (
    MEBIBYTE,
    MEGAHERTZ,
    PERCENT,
    item,
    number,
    parse_json,
    quantity,
    run_tool,
)

_TOOL = "amd-smi"
# Native name, path in the output of `amd-smi metric`, factor from the base unit to the native one.
_NATIVE = (
    ("gpu_gfx_activity", ("usage", "gfx_activity"), 1 / PERCENT),
    ("gpu_umc_activity", ("usage", "umc_activity"), 1 / PERCENT),
    ("gpu_package_power", ("power", "socket_power"), 1.0),
    ("gpu_edge_temperature", ("temperature", "edge"), 1.0),
    ("gpu_junction_temperature", ("temperature", "hotspot"), 1.0),
    ("gpu_memory_temperature", ("temperature", "mem"), 1.0),
    ("gpu_total_vram", ("mem_usage", "total_vram"), 1 / MEBIBYTE),
    ("gpu_used_vram", ("mem_usage", "used_vram"), 1 / MEBIBYTE),
    ("gpu_ecc_correct_total", ("ecc", "total_correctable_count"), 1.0),
    ("gpu_ecc_uncorrect_total", ("ecc", "total_uncorrectable_count"), 1.0),
)
# Corrected errors are routine; they are under their native name only.
_UNCORRECTED = ("ecc", "total_uncorrectable_count")


@dataclass(frozen=True, slots=True)
class AmdOutput:
    """What `amd-smi` wrote for each of its subcommands. `process` may be empty."""

    listing: bytes
    asic: bytes
    metric: bytes
    process: bytes = b""


class AmdCollector(Collector):
    """Runs `amd-smi` for each sample; its watch mode writes no JSON in some versions."""

    vendor: ClassVar[str] = "amd"

    def __init__(self) -> None:
        self._listing = b""
        self._asic = b""

    def start(self) -> None:
        self._listing = run_tool(_TOOL, "list", "--json")
        self._asic = run_tool(_TOOL, "static", "--asic", "--json")
        if not _gpus("list", self._listing):
            raise AcceleratorAbsent("amd-smi lists no GPU")

    def sample(self) -> VendorSample:
        metric = run_tool(_TOOL, "metric", "--json")
        return parse_amd(AmdOutput(self._listing, self._asic, metric, _processes()))


def _processes() -> bytes:
    """Return the list of processes, empty if this user may not see it."""
    try:
        return run_tool(_TOOL, "process", "--json")
    except CollectorError:
        return b""


def parse_amd(output: AmdOutput) -> VendorSample:
    """Return the sample. Raises CollectorError if the output cannot be read."""
    listed = _gpus("list", output.listing)
    names = {index: item(gpu, "asic", "market_name") for index, gpu in _gpus("static", output.asic).items()}
    processes = _gpus("process", output.process) if output.process else {}
    devices = []
    for index, gpu in _gpus("metric", output.metric).items():
        bus = str(item(listed.get(index), "bdf") or "")
        uuid = str(item(listed.get(index), "uuid") or f"amd-{bus or index}")
        identity = DeviceIdentity("amd", str(index), uuid, str(names.get(index) or "AMD GPU"), bus, aliases=(bus,))
        try:
            usage = tuple(_usage(processes.get(index)))
            devices.append(_device(identity, gpu, usage, () if output.process else ("process",)))
        except (ValueError, TypeError) as error:
            raise CollectorError(f"amd-smi metric: GPU {index}: {error}") from error
    return VendorSample("amd", tuple(devices))


def _gpus(command: str, output: bytes) -> Mapping[int, Any]:
    """Return the GPUs of a subcommand's output by number."""
    document = parse_json(f"amd-smi {command}", output)
    rows = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(item(row, "gpu"), int) for row in rows):
        raise CollectorError(f"amd-smi {command}: line 1: not a list of GPUs: {output[:80]!r}")
    return {row["gpu"]: row for row in rows}


def _device(
    identity: DeviceIdentity, gpu: Mapping[str, Any], usage: tuple[ProcessUsage, ...], unsupported: tuple[str, ...]
) -> DeviceSample:
    clocks = item(gpu, "clock")
    graphics = [name for name in clocks if name.startswith("gfx")] if isinstance(clocks, dict) else []
    running = [clock for name in graphics if (clock := quantity(item(clocks, name, "clk"))) is not None]
    energy = quantity(item(gpu, "energy", "total_energy_consumption")) or None
    hotspot, edge = quantity(item(gpu, "temperature", "hotspot")), quantity(item(gpu, "temperature", "edge"))
    uncorrected = number(item(gpu, *_UNCORRECTED))
    return device_sample(
        identity,
        {
            "utilization_ratio": quantity(item(gpu, "usage", "gfx_activity")),
            "memory_used_bytes": quantity(item(gpu, "mem_usage", "used_vram")),
            "memory_total_bytes": quantity(item(gpu, "mem_usage", "total_vram")),
            "power_watts": quantity(item(gpu, "power", "socket_power")),
            "energy_joules_total": energy,
            "temperature_celsius": edge if hotspot is None else hotspot,
            "clock_hertz": max(running, default=None),
        },
        errors={} if uncorrected is None else {"ecc_uncorrectable": uncorrected},
        native=tuple(_native(identity, gpu, energy, running)),
        processes=usage,
        unsupported=unsupported,
    )


def _native(
    identity: DeviceIdentity, gpu: Mapping[str, Any], energy: float | None, clocks: list[float]
) -> Iterator[NativeValue]:
    labels = {"gpu_id": identity.index, "gpu_uuid": identity.uuid, "card_model": identity.name}
    for name, path, factor in _NATIVE:
        value = quantity(item(gpu, *path))
        if value is not None:
            yield NativeValue(name, value * factor, labels)
    if energy is not None:
        yield NativeValue("gpu_energy_consumed", energy * 1e6, labels)
    for index, clock in enumerate(clocks):
        extra = {"clock_type": "GPU_CLOCK_TYPE_SYSTEM", "clock_index": str(index)}
        yield NativeValue("gpu_clock", clock / MEGAHERTZ, labels | extra)


def _usage(row: object) -> Iterator[ProcessUsage]:
    for process in item(row, "process_list") or ():
        pid = item(process, "process_info", "pid")  # or process_info is "No running processes detected"
        if isinstance(pid, int):
            yield ProcessUsage(pid, quantity(item(process, "process_info", "memory_usage", "vram_mem")))
