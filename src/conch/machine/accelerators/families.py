"""Metric families of samples: normal form, native values, usage by model, and the state of collectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conch.domain.exposition import Family, Point
from conch.domain.metrics.metric import MetricDefinition
from conch.machine.accelerators.collectors import (
    READINGS,
    CollectorStatus,
    DeviceIdentity,
    DeviceSample,
    NativeValue,
    VendorSample,
)


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container that a device is allocated to."""

    namespace: str
    pod: str
    container: str

    def labels(self) -> dict[str, str]:
        """Return the labels of its series."""
        return {"namespace": self.namespace, "pod": self.pod, "container": self.container}


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Usage of a device by an instance or engine of a model; None is not known."""

    model: str
    version: str
    instance: str
    uuid: str
    memory_bytes: float | None
    utilization_ratio: float | None


# The containers of each device, by UUID. A device that is shared (time-slicing, MPS) has several.
Containers = Mapping[str, Sequence[PodContainer]]


def device_labels(device: DeviceIdentity) -> dict[str, str]:
    """Return the labels of every normal-form series of a device."""
    return {"vendor": device.vendor, "device": device.index, "uuid": device.uuid, "name": device.name}


def container_labels(device: DeviceIdentity, containers: Containers) -> Sequence[dict[str, str]]:
    """Return the labels for the containers of a device: one empty set if it is not allocated to any."""
    return [container.labels() for container in containers.get(device.uuid, ())] or [{}]


def sample_families(samples: Sequence[VendorSample], containers: Containers) -> Iterator[Family]:
    """Yield the normal form of all devices.

    A device that several containers share has a series for each of them, with the value of the whole device.
    """
    devices = [device for sample in samples for device in sample.devices]
    for name in READINGS:
        yield Family.of(
            f"conch_accelerator_{name}",
            [
                Point(device.readings[name], {**device_labels(device.device), **labels})
                for device in devices
                if name in device.readings
                for labels in container_labels(device.device, containers)
            ],
        )
    yield Family.of(
        "conch_accelerator_errors_total", [point for device in devices for point in _errors(device, containers)]
    )


def native_families(
    samples: Iterable[VendorSample], containers: Containers, catalog: Mapping[str, MetricDefinition]
) -> Iterator[Family]:
    """Yield the values under the vendors' names. Names that are not in `catalog` have a general help text."""
    points: dict[str, list[Point]] = {}
    kinds: dict[str, NativeValue] = {}
    for sample in samples:
        for value in sample.native:
            kinds.setdefault(value.name, value)
            points.setdefault(value.name, []).append(Point(value.value, value.labels))
        for device in sample.devices:
            for labels in container_labels(device.device, containers):
                for value in device.native:
                    kinds.setdefault(value.name, value)
                    points.setdefault(value.name, []).append(Point(value.value, {**value.labels, **labels}))
    for name, of_name in points.items():
        definition = catalog.get(name) or MetricDefinition(
            name, kinds[name].kind, "A value of an accelerator under its vendor's name and unit."
        )
        yield Family.defined(definition, of_name)


def model_families(usages: Iterable[ModelUsage]) -> Iterator[Family]:
    """Yield memory and GPU time of model instances and engines."""
    known = list(usages)
    for field in ("memory_bytes", "utilization_ratio"):
        values = [(getattr(usage, field), usage) for usage in known]
        points = [
            Point(value, {label: getattr(usage, label) for label in ("model", "version", "instance", "uuid")})
            for value, usage in values
            if value is not None
        ]
        yield Family.of(f"conch_accelerator_model_{field}", points)


def status_families(statuses: Sequence[CollectorStatus]) -> Iterator[Family]:
    """Yield the state of the collectors."""
    for metric, field in (
        ("conch_accelerator_collector_up", "up"),
        ("conch_accelerator_sample_duration_seconds", "sample_duration_s"),
        ("conch_accelerator_sample_age_seconds", "sample_age_s"),
    ):
        values = {status.vendor: getattr(status, field) for status in statuses}
        points = [Point(float(value), {"vendor": vendor}) for vendor, value in values.items() if value is not None]
        yield Family.of(metric, points)
    yield Family.of(
        "conch_accelerator_unsupported_fields_total",
        [
            Point(count, {"vendor": status.vendor, "field": name})
            for status in statuses
            for name, count in sorted(status.unsupported.items())
        ],
    )


def _errors(sample: DeviceSample, containers: Containers) -> Iterator[Point]:
    for code, count in sample.errors.items():
        for labels in container_labels(sample.device, containers):
            yield Point(count, {**device_labels(sample.device), "code": code, **labels})
