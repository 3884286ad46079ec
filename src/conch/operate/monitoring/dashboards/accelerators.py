"""The dashboard of accelerators: the normal form for all vendors, and DCGM's names for NVIDIA's."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, Unpack

from conch.domain.metrics import accelerators, dcgm
from conch.domain.metrics.dcgm import DcgmField
from conch.domain.metrics.metric import MetricDefinition
from conch.operate.monitoring.dashboards.panel import (
    DashboardPanel,
    GrafanaDashboard,
    PanelOptions,
    PanelRow,
    Steps,
    gauge,
    increase,
    panel,
    rate,
    ratio,
    row,
    total,
)

DcgmNames: TypeAlias = Literal["legacy", "4.7"]
_DEVICE = ("vendor", "device", "name")
_TEMPERATURES: Steps = ((0, "green"), (80, "orange"), (90, "red"))
_DEFECTS: Steps = ((0, "green"), (1, "red"))


def _of_device(title: str, metric: MetricDefinition, text: str, **options: Unpack[PanelOptions]) -> DashboardPanel:
    return panel(title, text, gauge(metric, *_DEVICE), **options)


_NORMAL_FORM = row(
    "All accelerators",
    _of_device(
        "Utilization",
        accelerators.UTILIZATION,
        "Share of time in which the accelerator computes. Below 30 % for long, it is idle.",
        steps=((0, "orange"), (0.3, "green")),
    ),
    panel(
        "Memory",
        "Share of the accelerator's memory in use.",
        ratio(gauge(accelerators.MEMORY_USED, *_DEVICE), gauge(accelerators.MEMORY_TOTAL, *_DEVICE)),
        steps=((0, "green"), (0.9, "orange"), (0.97, "red")),
    ),
    _of_device(
        "Temperature",
        accelerators.TEMPERATURE,
        "Temperature of the chip.",
        steps=_TEMPERATURES,
        range=(0, 130),
    ),
    _of_device("Power", accelerators.POWER, "Power draw.", stacked=True),
    panel(
        "Power by energy",
        "Energy used per second, which includes peaks between samples.",
        rate(accelerators.ENERGY, *_DEVICE),
        stacked=True,
    ),
    _of_device("Clock", accelerators.CLOCK, "Clock of the compute units."),
    panel(
        "Errors in an hour",
        "Errors by the vendor's code, such as an XID.",
        increase(accelerators.ERRORS, *_DEVICE, "code", window="1h"),
        steps=_DEFECTS,
    ),
    panel(
        "Collectors",
        "1 if the last sample of the vendor's collector succeeded.",
        gauge(accelerators.COLLECTOR_UP, "vendor", operator="min"),
        range=(0, 1),
        steps=((0, "red"), (1, "green")),
    ),
    panel(
        "Age of samples",
        "Time since the last successful sample. It grows while a driver hangs.",
        gauge(accelerators.SAMPLE_AGE, "vendor", operator="max"),
    ),
)
_MODELS = row(
    "Models",
    panel(
        "Memory by model",
        "Memory of accelerators that the instances and engines of each model use.",
        gauge(accelerators.MODEL_MEMORY, "model", "version"),
        width=12,
    ),
    panel(
        "Utilization by model",
        "Accelerators that compute for each model, on average.",
        gauge(accelerators.MODEL_UTILIZATION, "model", "version", unit=""),
        width=12,
    ),
)


@dataclass(frozen=True, slots=True)
class DcgmPanels:
    """The panels of DCGM's fields under the names before or since 4.7."""

    names: DcgmNames

    def metric(self, field: DcgmField) -> MetricDefinition:
        """Return the metric of a field."""
        return field.legacy if self.names == "legacy" else field.current

    @property
    def device(self) -> tuple[str, str]:
        """The labels by which GPUs are distinguished."""
        return ("Hostname" if self.names == "legacy" else "hostname", "gpu")

    def panel(
        self, title: str, text: str, *fields: tuple[DcgmField, str], **options: Unpack[PanelOptions]
    ) -> DashboardPanel:
        """Return a panel of gauges."""
        queries = (gauge(self.metric(field), *self.device).named(name) for field, name in fields)
        return panel(title, text, *queries, **options)

    def use(self) -> PanelRow:
        """Return the row of what GPUs do."""
        used = gauge(self.metric(dcgm.MEMORY_USED), *self.device)
        free = gauge(self.metric(dcgm.MEMORY_FREE), *self.device)
        return row(
            f"NVIDIA, DCGM's names ({self.names})",
            self.panel("GPU utilization", "Share of time in which a kernel runs.", (dcgm.GPU_UTILIZATION, "")),
            self.panel("Memory in use", "Used memory of the GPU.", (dcgm.MEMORY_USED, "")),
            panel("Share of memory", "Used memory as a share of used and free memory.", ratio(used, total(used, free))),
            self.panel(
                "Temperatures",
                "Temperatures of GPU and memory.",
                (dcgm.GPU_TEMPERATURE, "GPU"),
                (dcgm.MEMORY_TEMPERATURE, "memory"),
                steps=_TEMPERATURES,
                range=(0, 130),
            ),
            self.panel("Board power", "Power draw of the board.", (dcgm.POWER, ""), stacked=True),
            self.panel(
                "Clocks", "Clocks of multiprocessors and memory.", (dcgm.SM_CLOCK, "SM"), (dcgm.MEMORY_CLOCK, "memory")
            ),
            self.panel(
                "Memory bandwidth and codecs",
                "Share of time in which memory, encoder and decoder are in use.",
                (dcgm.MEMORY_UTILIZATION, "memory"),
                (dcgm.ENCODER_UTILIZATION, "encoder"),
                (dcgm.DECODER_UTILIZATION, "decoder"),
            ),
            self.panel(
                "Profiling",
                "Share of cycles in which engine, tensor cores and memory interface are active. GPUs before Hopper "
                "have no such values without DCGM.",
                (dcgm.GRAPHICS_ACTIVE, "engine"),
                (dcgm.TENSOR_ACTIVE, "tensor"),
                (dcgm.DRAM_ACTIVE, "DRAM"),
            ),
            self.panel(
                "PCIe", "Bytes per second over PCIe.", (dcgm.PCIE_SENT, "sent"), (dcgm.PCIE_RECEIVED, "received")
            ),
            self.panel("NVLink", "Data per second over all NVLinks.", (dcgm.NVLINK_THROUGHPUT, "")),
        )

    def health(self) -> PanelRow:
        """Return the row of errors and energy."""
        return row(
            "NVIDIA, energy and errors",
            panel("Energy", "Energy used in an hour.", increase(self.metric(dcgm.ENERGY), *self.device, window="1h")),
            self.panel("Last XID", "Code of the last XID error; 0 if there was none.", (dcgm.LAST_XID, "")),
            self.panel(
                "Row remapping failed",
                "1 if a memory row could not be remapped: replace the GPU.",
                (dcgm.ROWS_FAILED, ""),
                range=(0, 1),
                steps=_DEFECTS,
            ),
            panel(
                "Links and rows",
                "Retransmissions on PCIe and remapped rows in an hour.",
                *(
                    increase(self.metric(field), *self.device, window="1h").named(name)
                    for field, name in (
                        (dcgm.PCIE_REPLAYS, "PCIe replays"),
                        (dcgm.ROWS_CORRECTABLE, "rows, correctable"),
                        (dcgm.ROWS_UNCORRECTABLE, "rows, uncorrectable"),
                    )
                ),
                width=24,
            ),
        )


def gpu_dashboard(names: DcgmNames = "legacy") -> GrafanaDashboard:
    """Return the dashboard with the names of DCGM before or since 4.7."""
    nvidia = DcgmPanels(names)
    return GrafanaDashboard(
        "conch-gpu",
        "Conch / GPU",
        f"Accelerators of all vendors, what models use of them, and NVIDIA's under DCGM's names ({names}).",
        (_NORMAL_FORM, _MODELS, nvidia.use(), nvidia.health()),
        (
            ("gpu", "GPU", f'label_values({accelerators.UTILIZATION.name}{{job=~"$job"}}, uuid)'),
            ("model", "Model", f'label_values({accelerators.MODEL_MEMORY.name}{{job=~"$job"}}, model)'),
            ("version", "Version", f'label_values({accelerators.MODEL_MEMORY.name}{{job=~"$job"}}, version)'),
        ),
    )
