"""Match the device ids that device plugins report to the kubelet with devices."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conch.machine.accelerators.base import DeviceIdentity
from conch.machine.accelerators.families import PodContainer

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
    found: dict[str, dict[PodContainer, None]] = {}
    for allocation in allocations:
        for uuid in _uuids(by_key, allocation.resource, allocation.device_id):
            found.setdefault(uuid, {})[allocation.container] = None
    return {uuid: tuple(containers) for uuid, containers in found.items()}


def unmatched(devices: Iterable[DeviceIdentity], offered: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return resource and id of devices that plugins offer, in the forms known here, and that match none."""
    by_key = _by_key(devices)
    return [(resource, name) for resource, name in offered if not _uuids(by_key, resource, name)]


def _by_key(devices: Iterable[DeviceIdentity]) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs of the devices that a name means: a NeuronDevice's are those of its cores."""
    found: dict[str, tuple[str, ...]] = {}
    for device in devices:
        for key in {device.uuid, device.pci_bus_id.lower(), *device.aliases} - {""}:
            found[key] = (*found.get(key, ()), device.uuid)
    return found


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
