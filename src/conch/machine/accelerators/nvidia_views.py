"""Samples of the NVIDIA collector under DCGM's names, as a counter file of dcgm-exporter chooses them, and Triton's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from conch.base.errors import ConfigError
from conch.domain.exposition import Family, Point
from conch.domain.metrics.catalog import CURRENT_LABELS, LEGACY_LABELS, DcgmField, dcgm_fields, fields_by_name
from conch.domain.metrics.metric import Kind, MetricDefinition
from conch.machine.accelerators.collectors import DeviceIdentity, DeviceSample, VendorSample
from conch.machine.accelerators.families import Containers, container_labels

_KINDS: Mapping[str, Kind] = {"gauge": "gauge", "counter": "counter"}
_LABEL = "label"
# Fields that are labels here: the version of the driver. dcgm-exporter has further ones.
_LABEL_FIELDS = {LEGACY_LABELS[1], CURRENT_LABELS[1]}


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of the file: a field and the metric as the file describes it."""

    field: DcgmField
    metric: MetricDefinition


@dataclass(frozen=True, slots=True)
class CounterFile:
    """The fields of a file. `unavailable` are names of DCGM that NVML has no value for."""

    counters: Sequence[Counter]
    unavailable: Sequence[str]


def read_counter_file(path: Path) -> CounterFile:
    """Read a file. Raises ConfigError with the line that is not valid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the counter file {path}: {error}") from error
    return parse_counters(text, str(path))


def parse_counters(text: str, source: str) -> CounterFile:
    """Parse the content of a file; `source` is named in errors. Raises ConfigError."""
    counters: dict[str, Counter] = {}
    unavailable: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.split("#", 1)[0].strip(" ,\t"):
            continue
        place = f"{source}, line {number}"
        name, kind, description = _columns(line, place)
        if kind != _LABEL and kind not in _KINDS:
            raise ConfigError(f"{place}: '{kind}' is not a type of metrics; use gauge, counter or label")
        if not name.startswith("DCGM_"):
            raise ConfigError(f"{place}: '{name}' is not a field of DCGM; their names begin with DCGM_")
        if kind == _LABEL:
            if name not in _LABEL_FIELDS:
                unavailable.append(name)
        elif (field := fields_by_name().get(name)) is None:
            unavailable.append(name)
        else:
            counters[name] = Counter(field, _described_by(field, name, _KINDS[kind], description))
    if not counters:
        raise ConfigError(f"{source} names no field that NVML has a value for")
    return CounterFile(tuple(counters.values()), tuple(unavailable))


def _columns(line: str, place: str) -> tuple[str, str, str]:
    columns = [column.strip() for column in line.split(",", 2)]
    if len(columns) != 3:
        raise ConfigError(f"{place}: expected three columns, FIELD, type, help; got {line.strip()!r}")
    return columns[0], columns[1], columns[2]


def _described_by(field: DcgmField, name: str, kind: Kind, description: str) -> MetricDefinition:
    known = field.legacy if name == field.legacy.name else field.current
    return MetricDefinition(name, kind, description or known.help, known.labels, known.unit, known.optional_labels)


# legacy: as dcgm-exporter before 4.9; 4.7: as since, with DCGM 4.7 or newer.
DcgmNames: TypeAlias = Literal["legacy", "4.7", "both"]
DCGM_NAMES: tuple[str, ...] = get_args(DcgmNames)
_DIGITS = 6  # of a converted value: 0.29 × 100 is 29


@dataclass(frozen=True, slots=True)
class _Exposed:
    """A metric, the native value that it shows, the factor between them, and the labels of its generation."""

    metric: MetricDefinition
    source: str
    factor: float
    own_labels: tuple[tuple[str, str], ...]


class DcgmView:
    """Turns samples into families with DCGM's names, units and labels.

    `hostname` is the value of the label, "" for no such label. With `counters`, names, types and help come from the
    file; `names` chooses other names for its fields.
    """

    def __init__(self, names: DcgmNames | None, hostname: str, counters: CounterFile | None = None) -> None:
        self._hostname = hostname
        self._exposed: Sequence[_Exposed] = tuple(_exposed(names, counters))

    def families(self, samples: Iterable[VendorSample], containers: Containers) -> Iterator[Family]:
        """Yield the families in DCGM's order; those without values are empty."""
        devices = [device for sample in samples if sample.vendor == "nvidia" for device in sample.devices]
        points: dict[str, list[Point]] = {exposed.metric.name: [] for exposed in self._exposed}
        by_source: dict[str, list[_Exposed]] = {}
        for exposed in self._exposed:
            by_source.setdefault(exposed.source, []).append(exposed)
        for device in devices:
            for places in container_labels(device.device, containers):
                labels = {**_device_labels(device), **places}
                for value in device.native:
                    for exposed in by_source.get(value.name, ()):
                        of_value = {**labels, **self._own(exposed, device), **value.labels}
                        points[exposed.metric.name].append(Point(_converted(value.value, exposed.factor), of_value))
        for exposed in self._exposed:
            yield Family.defined(exposed.metric, points[exposed.metric.name])

    def _own(self, exposed: _Exposed, device: DeviceSample) -> dict[str, str]:
        driver = device.attributes.get("driver_version", "")
        values = {"hostname": self._hostname, "driver": driver}
        return {label: values[kind] for label, kind in exposed.own_labels if values[kind]}


def _exposed(names: DcgmNames | None, counters: CounterFile | None) -> Iterator[_Exposed]:
    """Yield what is exposed; a metric that has the same name in both generations once, with the labels of both."""
    if counters is not None and names is None:
        for counter in counters.counters:
            yield _of(
                counter.field, counter.metric, legacy=counter.metric.name == counter.field.legacy.name, both=False
            )
        return
    chosen = {counter.field.legacy.name: counter for counter in counters.counters} if counters is not None else None
    legacy, current = names != "4.7", names in ("4.7", "both")
    for field in dcgm_fields():
        counter_of_field = None if chosen is None else chosen.get(field.legacy.name)
        if chosen is not None and counter_of_field is None:
            continue
        same = field.legacy is field.current
        if legacy and (field.legacy_default or counter_of_field is not None):
            yield _of(field, _described(field.legacy, counter_of_field), legacy=True, both=same and current)
        if current and not (same and legacy) and (field.current_default or counter_of_field is not None):
            yield _of(field, _described(field.current, counter_of_field), legacy=False, both=False)


def _described(metric: MetricDefinition, counter: Counter | None) -> MetricDefinition:
    """Return the metric with the type and the help of a counter file."""
    return metric if counter is None else replace(metric, kind=counter.metric.kind, help=counter.metric.help)


def _of(field: DcgmField, metric: MetricDefinition, *, legacy: bool, both: bool) -> _Exposed:
    labels = (*LEGACY_LABELS, *CURRENT_LABELS) if both else LEGACY_LABELS if legacy else CURRENT_LABELS
    kinds = ("hostname", "driver") * (len(labels) // 2)
    return _Exposed(
        metric, field.current.name, field.legacy_factor if legacy else 1.0, tuple(zip(labels, kinds, strict=True))
    )


def _device_labels(sample: DeviceSample) -> dict[str, str]:
    device: DeviceIdentity = sample.device
    labels = {
        "gpu": device.index.partition("/")[0],
        "UUID": device.parent_uuid or device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "device": f"nvidia{sample.attributes.get('minor_number', '')}",
        "modelName": device.name,
    }
    if device.parent_uuid:
        labels["GPU_I_PROFILE"] = sample.attributes.get("gpu_profile", "")
        labels["GPU_I_ID"] = sample.attributes.get("gpu_instance", "")
    return labels


def _converted(value: float, factor: float) -> float:
    return value if factor == 1.0 else round(value * factor, _DIGITS)


# Triton reports the limit that was set, and the rest as NVML does.
_SOURCES = (
    ("nv_gpu_utilization", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    ("nv_gpu_memory_total_bytes", "DCGM_FI_DEV_FB_CAPACITY_BYTES"),
    ("nv_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED_BYTES"),
    ("nv_gpu_power_usage", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    ("nv_gpu_power_limit", "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    ("nv_energy_consumption", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"),
)


class TritonView:
    """Turns samples of whole GPUs into Triton's families. Energy counts from the first sample of each GPU."""

    def __init__(self) -> None:
        self._energy_at_start: dict[str, float] = {}

    def observe(self, sample: VendorSample) -> None:
        """Record the energy at the first sample of each GPU. To be called for every sample."""
        for device in sample.devices:
            for value in device.native:
                if value.name == "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL":
                    start = self._energy_at_start.setdefault(device.device.uuid, value.value)
                    if value.value < start:  # a reloaded driver counts from 0
                        self._energy_at_start[device.device.uuid] = 0.0

    def families(self, samples: Iterable[VendorSample]) -> Iterator[Family]:
        """Yield the families; those without values are empty."""
        gpus = [
            device
            for sample in samples
            if sample.vendor == "nvidia"
            for device in sample.devices
            if not device.device.parent_uuid
        ]
        for metric, source in _SOURCES:
            yield Family.of(metric, self._points(metric, source, gpus))

    def _points(self, metric: str, source: str, gpus: Iterable[DeviceSample]) -> Iterator[Point]:
        for device in gpus:
            for value in device.native:
                if value.name == source:
                    yield Point(self._value(metric, device.device.uuid, value.value), {"gpu_uuid": device.device.uuid})

    def _value(self, metric: str, uuid: str, value: float) -> float:
        if metric != "nv_energy_consumption":
            return value
        return round(value - self._energy_at_start.get(uuid, value), 3)
