"""Keep the containers of devices up to date while the kubelet comes and goes."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Protocol

from conch.machine.accelerators.attribution.device_allocations import Allocation, assign, unmatched
from conch.machine.accelerators.base import CollectorError, CollectorStatus, DeviceIdentity
from conch.machine.accelerators.families import Containers

_log = logging.getLogger(__name__)

# The value of the label `vendor` in the metrics of collectors.
KUBELET = "kubelet"
# Allocations outlive a restart of the kubelet; older ones may be those of pods that are gone.
MAX_AGE_S = 60.0


class PodSource(Protocol):
    """What lists the devices of containers; both methods block and raise CollectorError."""

    def allocations(self) -> list[Allocation]:
        """Return the devices of all containers of the node."""

    def allocatable(self) -> list[tuple[str, str]]:
        """Return resource and id of all devices that the node's device plugins offer."""


class PodAttribution:
    """The containers of each device, refreshed every `interval_s` while `run` runs.

    A source that fails leaves the last allocations in force for `MAX_AGE_S`.
    """

    def __init__(self, source: PodSource, interval_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._source = source
        self._interval_s = interval_s
        self._clock = clock
        self._allocations: list[Allocation] = []
        self._offered: list[tuple[str, str]] = []
        self._reported = False
        self._refreshed_at: float | None = None
        self._duration_s: float | None = None
        self._error = ""

    async def run(self) -> None:
        """Refresh until cancelled, in a thread."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(self._interval_s)

    def refresh(self) -> None:
        """Ask the source once. Blocks."""
        began = self._clock()
        try:
            allocations = self._source.allocations()
            offered = self._source.allocatable() if not self._offered else self._offered
        except Exception as error:
            text = str(error) if isinstance(error, CollectorError) else repr(error)
            if text != self._error:
                _log.warning("%s; GPU metrics have no pod labels until it answers", text)
            self._error = text
            return
        if self._error:
            _log.info("the kubelet answers again")
        self._allocations, self._offered, self._error = allocations, offered, ""
        self._refreshed_at = self._clock()
        self._duration_s = self._refreshed_at - began

    def containers(self, devices: Iterable[DeviceIdentity]) -> Containers:
        """Return the containers of each device by UUID; empty if the last allocations are too old."""
        age = self._age()
        if age is None or age > MAX_AGE_S:
            return {}
        known = list(devices)
        if known and not self._reported:
            self._reported = True
            self._report_unmatched(known)
        return assign(known, self._allocations)

    def status(self) -> CollectorStatus:
        """Return the state of the source, as that of a collector."""
        up = not self._error and self._refreshed_at is not None
        return CollectorStatus(KUBELET, up, self._duration_s, self._age(), error=self._error)

    def _age(self) -> float | None:
        return None if self._refreshed_at is None else self._clock() - self._refreshed_at

    def _report_unmatched(self, devices: list[DeviceIdentity]) -> None:
        # A resource whose devices match in part is one of accelerators.
        missing = unmatched(devices, self._offered)
        matched = {resource for resource, _ in set(self._offered) - set(missing)}
        for resource, name in missing:
            if resource in matched:
                _log.warning("the kubelet offers %s '%s', which is not among the sampled devices", resource, name)
