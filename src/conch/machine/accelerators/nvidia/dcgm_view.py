"""GPU metrics under DCGM's names, from samples of the NVIDIA collector."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from conch.domain.exposition import Family, Point
from conch.domain.metrics.dcgm import CURRENT_LABELS, DCGM_FIELDS, LEGACY_LABELS, DcgmField
from conch.domain.metrics.metric import MetricDefinition
from conch.machine.accelerators.base import DeviceIdentity, DeviceSample, VendorSample
from conch.machine.accelerators.families import Containers, container_labels
from conch.machine.accelerators.nvidia.counter_file import Counter, CounterFile

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

    `hostname` is the value of the label, "" for no such label. With `counters`, names, types and help are those of the
    file; `names` chooses other names for its fields.
    """

    def __init__(self, names: DcgmNames | None, hostname: str, counters: CounterFile | None = None) -> None:
        self._hostname = hostname
        self._exposed: Sequence[_Exposed] = tuple(_exposed(names, counters))

    def families(self, samples: Iterable[VendorSample], containers: Containers) -> Iterator[Family]:
        """Yield the families in DCGM's order; those without values are empty."""
        devices = [device for sample in samples if sample.vendor == "nvidia" for device in sample.devices]
        points: dict[str, list[Point]] = {each.metric.name: [] for each in self._exposed}
        by_source: dict[str, list[_Exposed]] = {}
        for each in self._exposed:
            by_source.setdefault(each.source, []).append(each)
        for device in devices:
            for places in container_labels(device.device, containers):
                labels = {**_device_labels(device), **places}
                for value in device.native:
                    for each in by_source.get(value.name, ()):
                        point = Point(
                            _converted(value.value, each.factor), {**labels, **self._own(each, device), **value.labels}
                        )
                        points[each.metric.name].append(point)
        for each in self._exposed:
            yield Family.of(each.metric, points[each.metric.name])

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
    for field in DCGM_FIELDS:
        found = None if chosen is None else chosen.get(field.legacy.name)
        if chosen is not None and found is None:
            continue
        same = field.legacy is field.current
        if legacy and (field.legacy_default or found is not None):
            yield _of(field, _described(field.legacy, found), legacy=True, both=same and current)
        if current and not (same and legacy) and (field.current_default or found is not None):
            yield _of(field, _described(field.current, found), legacy=False, both=False)


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
