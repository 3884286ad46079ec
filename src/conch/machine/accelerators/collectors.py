"""Collectors of accelerators' metrics: their interface, the normal form that they produce, and one for each vendor.

A collector reads the accelerators of one vendor. It blocks, so it runs in a separate process and its samples cross a
pipe as JSON. Readings have base units: one threshold means the same for every vendor. A value that the hardware, the
driver or the tool does not provide is missing from the sample and named in `unsupported`; it is never 0.

A package provides a collector by an entry point of the group `conch.accelerators`: `acme = "package.module:Acme"`,
where `Acme()` returns a `Collector`. The module is imported in the sampling process only.
"""

import ctypes
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from shutil import which
from typing import Any, ClassVar, Protocol

import orjson

from conch.base.suggestion import did_you_mean
from conch.domain.metrics.metric import Kind

# Readings of a device by their names in a sample; the metrics are these names after `conch_accelerator_`.
READINGS = (
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "energy_joules_total",
    "temperature_celsius",
    "clock_hertz",
)
# Names of metrics that a collector may not use; DCGM's are NVIDIA's.
_RESERVED = ("conch_", "nv_", "process_", "vllm:")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class CollectorError(Exception):
    """A collector failed. The message names the tool or library, and the line of its output where there is one."""


class AcceleratorAbsent(CollectorError):
    """The machine has no accelerator of the vendor, or lacks the driver or tool that reads it."""


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """One device, or one part of a device that is allocated separately (a MIG slice, a NeuronCore).

    `index` is the vendor's number, as text because parts have several ("0/1"). `uuid` is unique on the machine and
    stays the same across restarts. `aliases` are further ids that the kubelet may report for the device.
    """

    vendor: str
    index: str
    uuid: str
    name: str
    pci_bus_id: str = ""
    parent_uuid: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NativeValue:
    """A value under the vendor's name and in the vendor's unit. `name` is a metric of the catalog."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "gauge"


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Usage of a device by one process. `pid` is the process id in the namespace of the driver: the host's."""

    pid: int
    memory_bytes: float | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The values of one device at one time.

    `readings` are normal-form values by name, one of `READINGS`. `errors` are cumulative counts by the vendor's code.
    `unsupported` are fields without a value, by the name of the reading or the vendor's name.
    """

    device: DeviceIdentity
    readings: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    native: tuple[NativeValue, ...] = ()
    processes: tuple[ProcessUsage, ...] = ()
    unsupported: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(
        default_factory=dict
    )  # the vendor's own labels, such as driver version and minor number


@dataclass(frozen=True, slots=True)
class VendorSample:
    """One sample of all devices of a vendor."""

    vendor: str
    devices: tuple[DeviceSample, ...]
    native: tuple[NativeValue, ...] = ()  # values of the machine, not of a device

    def to_json(self) -> bytes:
        """Return the sample as one line of JSON."""
        return orjson.dumps(self, default=dict)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """State of a collector. `unsupported` counts, by field, how often a sample had no value for it."""

    vendor: str
    up: bool
    sample_duration_s: float | None = None
    sample_age_s: float | None = None
    unsupported: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


class Collector(Protocol):
    """Reads the accelerators of one vendor. All methods block; one thread of a separate process calls them.

    `start` raises AcceleratorAbsent if there is nothing to read. `start` and `sample` raise CollectorError if the tool
    or driver fails; a later `sample` may succeed. `close` releases what `start` acquired and must not raise.
    """

    vendor: ClassVar[str]

    def start(self) -> None:
        """Find the devices and start what reads them."""

    def sample(self) -> VendorSample:
        """Return the present values."""

    def close(self) -> None:
        """Stop processes and close libraries."""


def device_sample(device: DeviceIdentity, readings: Mapping[str, float | None], **values: Any) -> DeviceSample:
    """Return a sample in which readings without a value are unsupported. `values` are other fields of the sample."""
    missing = tuple(name for name in READINGS if readings.get(name) is None)
    supported = {name: value for name, value in readings.items() if value is not None}
    return DeviceSample(device, supported, unsupported=(*missing, *values.pop("unsupported", ())), **values)


def native_values(values: Mapping[str, float | None], labels: Mapping[str, str]) -> tuple[NativeValue, ...]:
    """Return the values that are known under their native names."""
    return tuple(NativeValue(name, value, labels) for name, value in values.items() if value is not None)


def sample_from_json(line: bytes) -> VendorSample:
    """Return the sample of `VendorSample.to_json`. Raises CollectorError for anything that cannot be exposed."""
    try:
        document = orjson.loads(line)
        vendor = _text(document["vendor"])
        devices = tuple(_device_from(device, vendor) for device in document["devices"])
        return VendorSample(vendor, devices, _natives(document["native"], vendor))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CollectorError(f"malformed sample {line[:80]!r}: {error!r}") from error


def _device_from(document: Mapping[str, Any], vendor: str) -> DeviceSample:
    identity: dict[str, Any] = dict(document["device"])
    aliases = _texts(identity.pop("aliases"))
    for value in identity.values():
        _text(value)
    readings = _numbers(document["readings"])
    if unknown := readings.keys() - set(READINGS):
        raise ValueError(f"unknown reading '{unknown.pop()}'; readings are {', '.join(READINGS)}")
    return DeviceSample(
        DeviceIdentity(**identity, aliases=aliases),
        readings,
        _numbers(document["errors"]),
        _natives(document["native"], vendor),
        tuple(_process(**process) for process in document["processes"]),
        _texts(document["unsupported"]),
        {name: _text(value) for name, value in document["attributes"].items()},
    )


def _natives(documents: list[dict[str, Any]], vendor: str) -> tuple[NativeValue, ...]:
    return tuple(_native(vendor, **document) for document in documents)


def _native(vendor: str, name: str, value: float, labels: Mapping[str, str], kind: Kind) -> NativeValue:
    if not _METRIC_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not a valid name of a metric")
    if name.startswith(_RESERVED) or (name.startswith("DCGM_") and vendor != "nvidia"):
        raise ValueError(f"the metric name '{name}' is reserved")
    if kind not in ("counter", "gauge"):
        raise ValueError(f"the metric '{name}' is a {kind}; a native value is a counter or a gauge")
    for label in labels:
        if not _LABEL_NAME.fullmatch(label):
            raise ValueError(f"'{label}' is not a valid name of a label")
    return NativeValue(name, _number(value), {label: _text(text) for label, text in labels.items()}, kind)


def _process(pid: int, memory_bytes: float | None, utilization_ratio: float | None) -> ProcessUsage:
    values = [None if value is None else _number(value) for value in (memory_bytes, utilization_ratio)]
    return ProcessUsage(int(_number(pid)), *values)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: object) -> float:
    # JSON has no NaN and no infinity: they arrive as null.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return value


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


ENTRY_POINTS = "conch.accelerators"

# Vendor → the module and class of its collector, and the program that it runs.
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "amd": ("conch.machine.accelerators.vendors.amd:AmdCollector", "amd-smi"),
    "ascend": ("conch.machine.accelerators.vendors.ascend:AscendCollector", "npu-smi"),
    "cambricon": ("conch.machine.accelerators.vendors.cambricon:CambriconCollector", "cnmon"),
    "intel": ("conch.machine.accelerators.vendors.intel:IntelCollector", "xpu-smi"),
    "neuron": ("conch.machine.accelerators.vendors.neuron:NeuronCollector", "neuron-monitor"),
    "nvidia": ("conch.machine.accelerators.vendors.nvidia:NvidiaCollector", ""),
}


def present_vendors() -> Sequence[str]:
    """Return the vendors whose driver or tool is installed, and those of installed packages. Nothing is started."""
    return [vendor for vendor in vendors() if not missing_driver(vendor)]


def missing_driver(vendor: str) -> str:
    """Return which driver or tool of the vendor is not installed, and the remedy; "" if it is. Nothing is started."""
    if vendor == "nvidia" and not has_nvidia_driver():
        return f"the driver library {NVIDIA_LIBRARY} was not found; install the driver, or give the container a GPU"
    _, program = BUILT_IN.get(vendor, ("", ""))
    return f"the program '{program}' is not on PATH; install it" if program and which(program) is None else ""


def vendors() -> Sequence[str]:
    """Return the vendors that have a collector, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def create_collector(vendor: str) -> Collector:
    """Return the vendor's collector, not started. Raises CollectorError if it is unknown or cannot be imported."""
    places = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    places |= {known: place for known, (place, _) in BUILT_IN.items()}
    place = places.get(vendor)
    if place is None:
        hint = did_you_mean(vendor, vendors(), f"; known vendors: {', '.join(vendors())}")
        raise CollectorError(f"there is no collector for the accelerator vendor '{vendor}'{hint}")
    module, _, name = place.partition(":")
    try:
        collector: Collector = getattr(import_module(module), name)()
    except Exception as error:
        raise CollectorError(f"the collector '{vendor}' ({place}) cannot be created: {error!r}") from error
    return collector


NVIDIA_LIBRARY = "libnvidia-ml.so.1"


def has_nvidia_driver() -> bool:
    """Return whether the driver's library is installed. Loading it starts nothing."""
    try:
        ctypes.CDLL(NVIDIA_LIBRARY)
    except OSError:
        return False
    return True
