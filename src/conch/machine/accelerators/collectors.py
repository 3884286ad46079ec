"""Collectors by vendor: those of this package, and those of installed packages.

A package provides a collector by an entry point of the group `conch.accelerators`: `acme = "package.module:Acme"`,
where `Acme()` returns a `Collector`. The module is imported in the sampling process only.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from shutil import which

from conch.base.suggestion import did_you_mean
from conch.machine.accelerators.base import Collector, CollectorError
from conch.machine.accelerators.nvidia.driver import LIBRARY, has_nvidia_driver

ENTRY_POINTS = "conch.accelerators"

# Vendor → the module and class of its collector.
BUILT_IN: Mapping[str, str] = {
    "amd": "conch.machine.accelerators.vendors.amd:AmdCollector",
    "ascend": "conch.machine.accelerators.vendors.ascend:AscendCollector",
    "cambricon": "conch.machine.accelerators.vendors.cambricon:CambriconCollector",
    "intel": "conch.machine.accelerators.vendors.intel:IntelCollector",
    "neuron": "conch.machine.accelerators.vendors.neuron:NeuronCollector",
    "nvidia": "conch.machine.accelerators.nvidia.collector:NvidiaCollector",
}

# Vendor → the program that its collector runs.
_PROGRAMS: Mapping[str, str] = {
    "amd": "amd-smi",
    "ascend": "npu-smi",
    "cambricon": "cnmon",
    "intel": "xpu-smi",
    "neuron": "neuron-monitor",
}


def present_vendors() -> Sequence[str]:
    """Return the vendors whose driver or tool is installed, and those of installed packages. Nothing is started."""
    return [vendor for vendor in vendors() if not missing_driver(vendor)]


def missing_driver(vendor: str) -> str:
    """Return which driver or tool of the vendor is not installed, and the remedy; "" if it is. Nothing is started."""
    if vendor == "nvidia" and not has_nvidia_driver():
        return f"the driver library {LIBRARY} was not found; install the driver, or give the container a GPU"
    program = _PROGRAMS.get(vendor)
    return f"the program '{program}' is not on PATH; install it" if program and which(program) is None else ""


def vendors() -> Sequence[str]:
    """Return the vendors that have a collector, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def create_collector(vendor: str) -> Collector:
    """Return the vendor's collector, not started. Raises CollectorError if it is unknown or cannot be imported."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    place = BUILT_IN.get(vendor) or installed.get(vendor)
    if place is None:
        hint = did_you_mean(vendor, vendors(), f"; known vendors: {', '.join(vendors())}")
        raise CollectorError(f"there is no collector for the accelerator vendor '{vendor}'{hint}")
    module, _, name = place.partition(":")
    try:
        collector: Collector = getattr(import_module(module), name)()
    except Exception as error:
        raise CollectorError(f"the collector '{vendor}' ({place}) cannot be created: {error!r}") from error
    return collector
