"""GPU metrics under Triton's names, from samples of the NVIDIA collector."""

from collections.abc import Iterable, Iterator

from conch.domain.exposition import Family, Point
from conch.domain.metrics import dcgm, gpu
from conch.domain.metrics.dcgm import DcgmField
from conch.domain.metrics.metric import MetricDefinition
from conch.machine.accelerators.base import DeviceSample, VendorSample

# Triton reports the limit that was set, and the rest as NVML does.
_SOURCES: tuple[tuple[MetricDefinition, DcgmField], ...] = (
    (gpu.GPU_UTILIZATION, dcgm.GPU_UTILIZATION),
    (gpu.GPU_MEMORY_TOTAL, dcgm.MEMORY_TOTAL),
    (gpu.GPU_MEMORY_USED, dcgm.MEMORY_USED),
    (gpu.GPU_POWER_USAGE, dcgm.POWER),
    (gpu.GPU_POWER_LIMIT, dcgm.POWER_LIMIT),
    (gpu.GPU_ENERGY, dcgm.ENERGY),
)


class TritonView:
    """Turns samples of whole GPUs into Triton's families. Energy counts from the first sample of each GPU."""

    def __init__(self) -> None:
        self._energy_at_start: dict[str, float] = {}

    def observe(self, sample: VendorSample) -> None:
        """Note the energy at the first sample of each GPU. To be called for every sample."""
        for device in sample.devices:
            for value in device.native:
                if value.name == dcgm.ENERGY.current.name:
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
        for metric, field in _SOURCES:
            yield Family.of(metric, self._points(metric, field, gpus))

    def _points(self, metric: MetricDefinition, field: DcgmField, gpus: Iterable[DeviceSample]) -> Iterator[Point]:
        for device in gpus:
            for value in device.native:
                if value.name == field.current.name:
                    yield Point(self._value(metric, device.device.uuid, value.value), {"gpu_uuid": device.device.uuid})

    def _value(self, metric: MetricDefinition, uuid: str, value: float) -> float:
        if metric is not gpu.GPU_ENERGY:
            return value
        return round(value - self._energy_at_start.get(uuid, value), 3)
