"""The containers of each device, by the ids that device plugins report to the kubelet."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from conch.machine.accelerators.collectors import CollectorError, CollectorStatus, DeviceIdentity
from conch.machine.accelerators.families import Containers, PodContainer

# A plugin that shares a device reports each share with a suffix: NVIDIA's time-slicing and MPS `::3`, GKE's `/vgpu3`,
# Cambricon's `--fake--3` and `-_-3`.
_SHARE = re.compile(r"(::\d+|/vgpu\d+|--fake--\d+|-_-\d+)$")
# Intel's plugin names DRM cards and shares of them `card1-0`.
_INTEL_SHARE = re.compile(r"(card\d+)-\d+")
# Huawei's names a part of a chip after its size: `Ascend310P-2c-100-0` is a part of `Ascend310P-0`.
_ASCEND_PART = re.compile(r"(Ascend\w+?)-\d+c(?:\.\d+cpu)?(?:-\d+)?-(\d+)")


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device of a container, as its plugin named it to the kubelet. `resource` is such as `nvidia.com/gpu`."""

    resource: str
    device_id: str
    container: PodContainer


def assign(devices: Iterable[DeviceIdentity], allocations: Iterable[Allocation]) -> dict[str, tuple[PodContainer, ...]]:
    """Return the containers of each device by UUID. A shared device has several; each stands once."""
    by_key = _by_key(devices)
    containers_of: dict[str, dict[PodContainer, None]] = {}
    for allocation in allocations:
        for uuid in _uuids(by_key, allocation.resource, allocation.device_id):
            containers_of.setdefault(uuid, {})[allocation.container] = None
    return {uuid: tuple(containers) for uuid, containers in containers_of.items()}


def unmatched(devices: Iterable[DeviceIdentity], offered: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return resource and id of devices that plugins offer, in the forms known here, and that match none."""
    by_key = _by_key(devices)
    return [(resource, name) for resource, name in offered if not _uuids(by_key, resource, name)]


def _by_key(devices: Iterable[DeviceIdentity]) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs of the devices that a name means: a NeuronDevice's are those of its cores."""
    uuids: dict[str, tuple[str, ...]] = {}
    for device in devices:
        for key in {device.uuid, device.pci_bus_id.lower(), *device.aliases} - {""}:
            uuids[key] = (*uuids.get(key, ()), device.uuid)
    return uuids


def _uuids(by_key: dict[str, tuple[str, ...]], resource: str, device_id: str) -> tuple[str, ...]:
    return next((by_key[name] for name in _names(resource, device_id) if name in by_key), ())


def _names(resource: str, device_id: str) -> Iterator[str]:
    """Yield what a device id may mean, the most specific first."""
    whole = _SHARE.sub("", device_id)
    for name in (device_id, whole):
        yield name
        yield f"{resource}/{name}"
        yield name.lower()
    if match := _INTEL_SHARE.fullmatch(device_id):
        yield match[1]
    if match := _ASCEND_PART.fullmatch(device_id):
        yield f"{match[1]}-{match[2]}"


_log = logging.getLogger(__name__)

# The value of the label `vendor` in the metrics of collectors.
KUBELET = "kubelet"
# Allocations outlive a restart of the kubelet; older ones may belong to pods that are gone.
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
        """Read the source once. Blocks."""
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
        """Return the state of the source, in the form of a collector."""
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
