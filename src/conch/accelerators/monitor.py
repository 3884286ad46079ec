"""The accelerators of a machine: one sampler for each vendor, and the metric families of their last samples."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from conch.accelerators.base import VendorSample
from conch.accelerators.collectors import present_vendors
from conch.accelerators.families import Containers, device_labels, native_families, sample_families, status_families
from conch.accelerators.nvidia.dcgm_view import DcgmNames, DcgmView
from conch.accelerators.nvidia.triton_view import TritonView
from conch.accelerators.sampler import Sampler
from conch.metric_catalog.catalog import all_metrics
from conch.metric_catalog.gpu import DEVICE_UP
from conch.observability.metrics.exposition import Family, Point
from conch.options.server_options import ServerOptions

NVIDIA = "nvidia"


def no_containers() -> Containers:
    """Return that no device is allocated to a container."""
    return {}


class AcceleratorMonitor:
    """Samples accelerators and exposes them. Life: `start` → `stop`. A scrape reads no driver.

    `dcgm` exposes NVIDIA GPUs under DCGM's names, and `triton_names` those under Triton's. `containers` returns the
    containers of the devices; `native_names` is whether vendors' own names are exposed beside the normal form.
    """

    def __init__(
        self,
        vendors: Iterable[str],
        interval_s: float,
        *,
        dcgm: DcgmView | None = None,
        triton_names: bool = False,
        native_names: bool = True,
        containers: Callable[[], Containers] = no_containers,
        timeout_s: float | None = None,
    ) -> None:
        self._triton = TritonView() if triton_names else None
        self._dcgm = dcgm
        self._native_names = native_names
        self._containers = containers
        self._samplers: Mapping[str, Sampler] = {
            vendor: Sampler(vendor, interval_s, timeout_s=timeout_s, on_sample=self._observe) for vendor in vendors
        }

    def start(self) -> None:
        """Start the samplers; they find out whether their vendors are present."""
        for sampler in self._samplers.values():
            sampler.start()

    async def stop(self) -> None:
        """Stop the samplers."""
        await asyncio.gather(*(sampler.stop() for sampler in self._samplers.values()))

    @property
    def samples(self) -> list[VendorSample]:
        """The last samples of the vendors whose collectors are up."""
        return [sampler.sample for sampler in self._samplers.values() if sampler.sample is not None]

    @property
    def healthy(self) -> bool:
        """Whether there is a sample, and no collector of a vendor that is present is down."""
        statuses = [status for sampler in self._samplers.values() if (status := sampler.status()) is not None]
        return bool(statuses) and all(status.up for status in statuses)

    def families(self) -> Iterator[Family]:
        """Yield all families."""
        samples, containers = self.samples, self._containers()
        if self._dcgm is not None:
            yield from self._dcgm.families(samples, containers)
        if self._triton is not None:
            yield from self._triton.families(samples)
        yield from sample_families(samples, containers)
        if self._native_names:
            others = [sample for sample in samples if sample.vendor != NVIDIA]
            yield from native_families(others, containers, all_metrics())
        yield self._devices_up()
        statuses = (sampler.status() for sampler in self._samplers.values())
        yield from status_families([status for status in statuses if status is not None])

    def _devices_up(self) -> Family:
        return Family.of(
            DEVICE_UP,
            [
                Point(int(up), device_labels(device))
                for sampler in self._samplers.values()
                for device, up in sampler.devices()
                if not device.parent_uuid  # slices come and go
            ],
        )

    def _observe(self, sample: VendorSample) -> None:
        if self._triton is not None and sample.vendor == NVIDIA:
            self._triton.observe(sample)


def server_monitor(options: ServerOptions) -> AcceleratorMonitor | None:
    """Return the monitor of a server's metrics; None if there is nothing to sample, or they are disabled."""
    if not (options.allow_metrics and options.allow_gpu_metrics):
        return None
    present = present_vendors()
    if not present:
        return None
    names = options.dcgm_names
    view = None if names == "off" else DcgmView(cast("DcgmNames", names), socket.gethostname())
    return AcceleratorMonitor(present, options.metrics_interval_ms / 1000, dcgm=view, triton_names=True)
