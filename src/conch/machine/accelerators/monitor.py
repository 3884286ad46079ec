"""The accelerators of a machine: one sampler for each vendor, and the metric families of their last samples."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, cast

from conch.domain.exposition import Family, Point
from conch.domain.metrics.catalog import all_metrics
from conch.machine.accelerators.collectors import CollectorStatus, VendorSample, present_vendors
from conch.machine.accelerators.families import (
    device_labels,
    model_families,
    native_families,
    sample_families,
    status_families,
)
from conch.machine.accelerators.model_attribution import AttributedProcess, ModelAttribution
from conch.machine.accelerators.nvidia_views import DcgmNames, DcgmView, TritonView
from conch.machine.accelerators.pod_attribution import PodAttribution
from conch.machine.accelerators.sampler import Sampler

NVIDIA = "nvidia"
# Absent vendors that count as failures: none of a server; of an exporter all if it finds no vendor, or each one named.
Expected: TypeAlias = Literal["none", "any", "each"]
# The value of the label `vendor` while an exporter finds no accelerator at all.
NO_VENDOR = "none"
MIN_INTERVAL_S = 0.1
# Vendors other than NVIDIA are read by their tools, which take seconds; collectors have shorter timeouts for each.
_TOOL_TIMEOUT_S = 30.0
# In a server, tools leave the processors to models.
_TOOL_INTERVAL_S = 5.0
_log = logging.getLogger(__name__)


class AcceleratorMonitor:
    """Samples accelerators and exposes them. Life: `start` → `stop`. A scrape reads no driver.

    `dcgm` exposes NVIDIA GPUs under DCGM's names, and `triton_names` those under Triton's. `pods` and `models`
    attribute devices, if given.
    Vendors that are read by a tool are sampled every `tool_interval_s` at most. `expected` are the vendors whose
    absence is logged and exposed as a collector that is down.
    """

    def __init__(
        self,
        vendors: Iterable[str],
        interval_s: float,
        *,
        dcgm: DcgmView | None = None,
        triton_names: bool = False,
        pods: PodAttribution | None = None,
        models: ModelAttribution | None = None,
        timeout_s: float | None = None,
        tool_interval_s: float = 0.0,
        expected: Expected = "none",
    ) -> None:
        self._triton = TritonView() if triton_names else None
        self._dcgm = dcgm
        self._pods = pods
        self._models = models
        self._expected = expected
        self._reported: set[str] = set()  # vendors whose absence was logged
        self._tasks: list[asyncio.Task[None]] = []
        self._samplers: Mapping[str, Sampler] = {
            vendor: Sampler(
                vendor,
                interval_s if vendor == NVIDIA else max(interval_s, tool_interval_s),
                timeout_s=timeout_s or (None if vendor == NVIDIA else max(_TOOL_TIMEOUT_S, 3 * interval_s)),
                on_sample=self._observe,
                on_absent=self._report_absence,
            )
            for vendor in vendors
        }

    def start(self) -> None:
        """Start the samplers; they find out whether their vendors are present."""
        for sampler in self._samplers.values():
            sampler.start()
        if self._pods is not None:
            self._tasks.append(asyncio.create_task(self._pods.run()))
        if self._models is not None:
            self._tasks.append(asyncio.create_task(self._models.run(lambda: self.samples)))

    async def stop(self) -> None:
        """Stop the samplers."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(*(sampler.stop() for sampler in self._samplers.values()))

    @property
    def samples(self) -> list[VendorSample]:
        """The last samples of the vendors whose collectors are up."""
        return [sampler.sample for sampler in self._samplers.values() if sampler.sample is not None]

    @property
    def healthy(self) -> bool:
        """Whether there is a sample, and no collector of a vendor that is present is down."""
        statuses = self._statuses()
        return bool(statuses) and all(status.up for status in statuses)

    @property
    def failures(self) -> list[str]:
        """Why collectors of present vendors are down."""
        return [f"{status.vendor}: {status.error or 'no sample'}" for status in self._statuses() if not status.up]

    def _statuses(self) -> list[CollectorStatus]:
        """Return the states of the collectors of vendors that are present or expected."""
        statuses = []
        for sampler in self._samplers.values():
            status = sampler.status()
            if status is None and sampler.absence and self._expected == "each":
                status = CollectorStatus(sampler.vendor, up=False, error=sampler.absence)
            if status is not None:
                statuses.append(status)
        if not statuses and self._expected == "any" and self._all_absent():
            statuses.append(CollectorStatus(NO_VENDOR, up=False))
        return statuses

    def _all_absent(self) -> bool:
        return all(sampler.absence for sampler in self._samplers.values())

    def _report_absence(self) -> None:
        """Log the expected vendors that are absent, once until they are found."""
        absent = {vendor: sampler.absence for vendor, sampler in self._samplers.items() if sampler.absence}
        if self._expected == "each":
            for vendor in absent.keys() - self._reported:
                _log.warning("no accelerator of vendor %s: %s; looking for it until it appears", vendor, absent[vendor])
            self._reported |= absent.keys()
        elif self._expected == "any" and self._all_absent() and not self._reported:
            reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in absent.items())
            _log.warning("no accelerator was found on this machine; looking for one until it appears (%s)", reasons)
            self._reported |= absent.keys()

    def families(self) -> Iterator[Family]:
        """Yield all families."""
        samples = self.samples
        devices = [device.device for sample in samples for device in sample.devices]
        containers = {} if self._pods is None else self._pods.containers(devices)
        if self._dcgm is not None:
            yield from self._dcgm.families(samples, containers)
        if self._triton is not None:
            yield from self._triton.families(samples)
        yield from sample_families(samples, containers)
        others = [sample for sample in samples if sample.vendor != NVIDIA]
        yield from native_families(others, containers, all_metrics())
        yield from model_families(() if self._models is None else self._models.usage)
        yield self._devices_up()
        statuses = self._statuses()
        if self._pods is not None:
            statuses.append(self._pods.status())
        yield from status_families(statuses)

    def _devices_up(self) -> Family:
        return Family.of(
            "conch_accelerator_device_up",
            [
                Point(int(up), device_labels(device))
                for sampler in self._samplers.values()
                for device, up in sampler.devices()
                if not device.parent_uuid  # slices come and go
            ],
        )

    def _observe(self, sample: VendorSample) -> None:
        if sample.vendor in self._reported:
            _log.info("found accelerators of vendor %s", sample.vendor)
            self._reported.clear() if self._expected == "any" else self._reported.discard(sample.vendor)
        if self._triton is not None and sample.vendor == NVIDIA:
            self._triton.observe(sample)


def server_monitor(
    processes: Callable[[], Sequence[AttributedProcess]], *, dcgm_names: str, interval_ms: float, host_proc: str
) -> AcceleratorMonitor | None:
    """Return the monitor of a server's metrics; None if there is nothing to sample.

    `processes` returns the server's and its models' processes; `host_proc` is the host's /proc in a container, or "".
    """
    present = present_vendors()
    if not present:
        return None
    view = None if dcgm_names == "off" else DcgmView(cast("DcgmNames", dcgm_names), socket.gethostname())
    interval_s = max(interval_ms / 1000, MIN_INTERVAL_S)
    models = ModelAttribution(processes, interval_s, Path(host_proc) if host_proc else None)
    return AcceleratorMonitor(
        present, interval_s, dcgm=view, triton_names=True, models=models, tool_interval_s=_TOOL_INTERVAL_S
    )
