"""GPUs, from `conch gpu-exporter` or dcgm-exporter, under DCGM's names of before 4.7 and since."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from time import monotonic_ns

from conch.base.http.prometheus import ScrapeSettings, scrape
from conch.domain.metrics.catalog import fields_by_name
from conch.measure.bench.measurement import GpuFigures, Note
from conch.measure.bench.observers.observer import Observed, ServerObserver
from conch.measure.bench.observers.server_metrics import MetricSeries, parse_exposition

_FIELDS = {
    "utilization": "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "power": "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "energy": "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
    "memory": "DCGM_FI_DEV_FB_USED_BYTES",
}


@cache
def _metrics() -> dict[str, tuple[str, float]]:
    """Return the field of each name of a metric, and the factor from its unit to the base unit."""
    fields: dict[str, tuple[str, float]] = {}
    for field, current in _FIELDS.items():
        metric = fields_by_name()[current]
        fields |= {metric.legacy.name: (field, 1 / metric.legacy_factor), metric.current.name: (field, 1.0)}
    return fields


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The values of one GPU in base units, by field."""

    time_ns: int
    name: str
    values: dict[str, float]


def gpu_samples(series: Sequence[MetricSeries], time_ns: int) -> dict[str, GpuSample]:
    """Return a sample for each GPU, by UUID. Parts of a GPU (MIG) do not count."""
    samples: dict[str, GpuSample] = {}
    metrics = _metrics()
    for line in series:
        if line.name in metrics and not line.labels.get("GPU_I_ID"):
            field, factor = metrics[line.name]
            uuid = line.labels.get("UUID", line.labels.get("gpu", ""))
            name = f"GPU {line.labels.get('gpu', '?')} {line.labels.get('modelName', '')}".strip()
            sample = samples.setdefault(uuid, GpuSample(time_ns, name, {}))
            sample.values[field] = line.value * factor
    return samples


def gpu_figures(uuid: str, samples: Sequence[GpuSample]) -> GpuFigures:
    """Return the figures of one GPU over a window. There must be a sample."""

    def values(field: str) -> list[float]:
        return [sample.values[field] for sample in samples if field in sample.values]

    utilization, power, energy, memory = (values(field) for field in ("utilization", "power", "energy", "memory"))
    return GpuFigures(
        samples[0].name,
        uuid,
        sum(utilization) / len(utilization) if utilization else None,
        sum(power) / len(power) if power else None,
        energy[-1] - energy[0] if len(energy) > 1 else None,
        int(max(memory)) if memory else None,
    )


class GpuMetrics(ServerObserver):
    """Scrapes an exporter of GPUs."""

    def __init__(self, settings: ScrapeSettings) -> None:
        self._settings = settings
        self._samples: list[dict[str, GpuSample]] = []
        self._failure = ""

    def sample(self) -> None:
        try:
            samples = gpu_samples(list(parse_exposition(scrape(self._settings))), monotonic_ns())
        except OSError as error:
            self._failure = f"{self._settings.url}: {error.strerror or error}"
            return
        if samples:
            self._samples.append(samples)
        else:
            self._failure = f"{self._settings.url} has no metrics under DCGM's names"

    def observed(self, start_ns: int, end_ns: int) -> Observed:
        by_gpu: dict[str, list[GpuSample]] = {}
        for samples in self._samples:
            for uuid, sample in samples.items():
                if start_ns <= sample.time_ns <= end_ns:
                    by_gpu.setdefault(uuid, []).append(sample)
        notes = () if by_gpu else (Note("no-gpu-metrics", "warning", f"no metrics of GPUs: {self._failure}"),)
        return Observed(gpus=tuple(gpu_figures(uuid, samples) for uuid, samples in sorted(by_gpu.items())), notes=notes)

    def gauges(self) -> dict[str, float]:
        """Return utilisation and power over all GPUs."""
        if not self._samples:
            return {}
        latest = self._samples[-1].values()
        utilization = [sample.values["utilization"] for sample in latest if "utilization" in sample.values]
        power = [sample.values["power"] for sample in latest if "power" in sample.values]
        values = {"GPU": sum(utilization) / len(utilization)} if utilization else {}
        return values | ({"GPU power": sum(power)} if power else {})
