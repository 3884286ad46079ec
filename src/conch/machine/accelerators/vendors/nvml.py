"""NVML, the library of NVIDIA's driver. The only module that imports NVIDIA's bindings.

Values are named and scaled as DCGM 4.7 does: base units. A value that the GPU or driver does not provide is missing.
Every call may hang or crash with the driver, so this runs in separate processes only: as a program, it prints the
installed GPUs as JSON.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from typing import Any

import pynvml

from conch.machine.accelerators.gpus import InstalledGpu

# NVML's errors on a machine without a GPU or its driver; other errors are faults of the driver.
NO_DRIVER = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_NoPermission)
# Errors of a GPU that does not answer any more: it fell off the bus, or must be reset.
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_MAX_EVENTS = 1024  # of one sample
_ALL_LINKS = 0xFFFFFFFF
_MIB = 1 << 20


class NvmlFault(Exception):
    """NVML is installed and fails. The message is NVML's."""


class GpuLost(Exception):
    """The GPU does not answer any more."""


def installed_gpus() -> list[InstalledGpu]:
    """Return the GPUs that NVML lists, none without a driver. Raises NvmlFault."""
    try:
        with _nvml():
            return [_installed(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except NO_DRIVER:
        return []
    except pynvml.NVMLError as error:
        raise NvmlFault(str(error).rstrip(".")) from error


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _installed(index: int) -> InstalledGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    enabled = _mig_enabled(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return InstalledGpu(
        index,
        pynvml.nvmlDeviceGetUUID(handle),
        pynvml.nvmlDeviceGetName(handle),
        int(memory.total),
        tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        enabled,
        tuple(pynvml.nvmlDeviceGetUUID(part) for part in _slices(handle)) if enabled else (),
        int(memory.used),
    )


def _mig_enabled(handle: Any) -> bool:
    with suppress(pynvml.NVMLError):  # most GPUs cannot be divided
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _slices(handle: Any) -> Iterator[Any]:
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError_NotFound):  # a slot without a slice
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


# ---- GPUs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """A GPU, or a MIG slice if `parent` is its GPU's handle. `gpu_instance` and `profile` describe a slice."""

    handle: Any
    index: int
    uuid: str
    name: str
    pci_bus_id: str
    minor_number: str
    parent: Any = None
    parent_uuid: str = ""
    gpu_instance: int = 0
    profile: str = ""

    @property
    def address(self) -> int:
        """Return the address by which NVML's events name the GPU."""
        return _address(self.handle)


def start() -> str:
    """Open NVML and return the version of the driver. Raises NvmlFault, or one of NO_DRIVER."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except NO_DRIVER:
        raise
    except pynvml.NVMLError as error:
        raise NvmlFault(str(error).rstrip(".")) from error


def stop() -> None:
    """Close NVML."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def gpus() -> tuple[list[GpuHandle], list[int]]:
    """Return the GPUs, each followed by its MIG slices, and the indexes of lost GPUs. Raises NvmlFault."""
    handles: list[GpuHandle] = []
    lost: list[int] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles += _gpu(index)
            except pynvml.NVMLError as error:
                if error.value not in _LOST:
                    raise
                lost.append(index)
    except pynvml.NVMLError as error:
        raise NvmlFault(str(error).rstrip(".")) from error
    return handles, lost


def _gpu(index: int) -> Iterator[GpuHandle]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = GpuHandle(
        handle,
        index,
        pynvml.nvmlDeviceGetUUID(handle),
        pynvml.nvmlDeviceGetName(handle),
        str(getattr(_attribute("nvmlDeviceGetPciInfo", handle), "busId", "")),
        str(_attribute("nvmlDeviceGetMinorNumber", handle, index)),
    )
    yield gpu
    for part in _slices(handle) if _mig_enabled(handle) else ():
        yield GpuHandle(
            part,
            index,
            pynvml.nvmlDeviceGetUUID(part),
            gpu.name,
            gpu.pci_bus_id,
            gpu.minor_number,
            handle,
            gpu.uuid,
            int(_attribute("nvmlDeviceGetGpuInstanceId", part, 0)),
            _profile(part),
        )


def _attribute(call: str, handle: Any, default: Any = None) -> Any:
    """Return an attribute of a GPU; virtual machines and WSL lack some."""
    with suppress(pynvml.NVMLError_NotSupported):
        return getattr(pynvml, call)(handle)
    return default


def _profile(handle: Any) -> str:
    """Return the profile of a slice, such as 1g.5gb: the end of its name, or else from its attributes."""
    name = str(pynvml.nvmlDeviceGetName(handle))
    if " MIG " in name:
        return name.rpartition(" MIG ")[2]
    with suppress(pynvml.NVMLError):
        attributes = pynvml.nvmlDeviceGetAttributes(handle)
        return f"{attributes.gpuInstanceSliceCount}g.{ceil(attributes.memorySizeMB / 1024)}gb"
    return ""


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# ---- values of one call ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one or more fields by one call. `read` raises NVMLError, or omits fields that it has no value for."""

    fields: tuple[str, ...]
    read: Callable[[Any], Mapping[str, float]]


def _number(name: str, call: str, *arguments: int, factor: float = 1.0) -> Reader:
    """Return a reader of a call that returns one number; the field's value is that times `factor`."""
    return Reader((name,), partial(_call, name, call, arguments, factor))


def _call(name: str, call: str, arguments: tuple[int, ...], factor: float, handle: Any) -> Mapping[str, float]:
    value = getattr(pynvml, call)(handle, *arguments)
    if isinstance(value, list):  # (value, sampling period), or the list of things that are counted
        value = value[0] if call.endswith("Utilization") else len(value)
    return {name: round(value * factor, 9)}


def _named(names: tuple[str, ...], read: Callable[[Any], Sequence[float | None]]) -> Reader:
    """Return a reader of several fields; `read` returns their values in order, None for those that are missing."""
    return Reader(names, partial(_zipped, names, read))


def _zipped(names: tuple[str, ...], read: Callable[[Any], Sequence[float | None]], handle: Any) -> Mapping[str, float]:
    return {name: value for name, value in zip(names, read(handle), strict=True) if value is not None}


def _temperature(handle: Any) -> tuple[float]:
    with suppress(pynvml.NVMLError_FunctionNotFound, AttributeError):  # an older driver or binding
        return (float(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)),)
    return (float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),)


def _utilization(handle: Any) -> tuple[float, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _memory(handle: Any) -> tuple[float, float, float, float | None]:
    """Return total, free, used and reserved bytes. An older driver counts reserved memory as used."""
    with suppress(pynvml.NVMLError_FunctionNotFound):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return memory.total, memory.free, memory.used, memory.reserved
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.free, memory.used, None


def _license(handle: Any) -> tuple[float | None]:
    """Return whether a vGPU is licensed; None for a GPU that needs no license."""
    features = pynvml.nvmlDeviceGetGridLicensableFeatures(handle)
    if not features.isGridLicenseSupported:
        return (None,)
    licensable = features.gridLicensableFeatures[: features.licensableFeaturesCount]
    return (float(any(feature.featureState for feature in licensable)),)


def _remapped_rows(handle: Any) -> tuple[float, float, float, float]:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return correctable, uncorrectable, pending, failed


def _violation(policy: int, handle: Any) -> tuple[float]:
    return (pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime,)


_VIOLATIONS = ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTIL", "RELIABILITY")
MEMORY = _named(
    (
        "DCGM_FI_DEV_FB_CAPACITY_BYTES",
        "DCGM_FI_DEV_FB_FREE_BYTES",
        "DCGM_FI_DEV_FB_USED_BYTES",
        "DCGM_FI_DEV_FB_RESERVED_BYTES",
    ),
    _memory,
)
READERS: tuple[Reader, ...] = (
    _number("DCGM_FI_DEV_SM_CLOCK_HERTZ", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, factor=1e6),
    _number("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM, factor=1e6),
    _named(("DCGM_FI_DEV_GPU_TEMP_CELSIUS",), _temperature),
    _number("DCGM_FI_DEV_BOARD_POWER_WATTS", "nvmlDeviceGetPowerUsage", factor=1e-3),
    _number("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "nvmlDeviceGetTotalEnergyConsumption", factor=1e-3),
    _number("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "nvmlDeviceGetPcieReplayCounter"),
    _named(("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"), _utilization),
    _number("DCGM_FI_DEV_ENC_UTIL_RATIO", "nvmlDeviceGetEncoderUtilization", factor=0.01),
    _number("DCGM_FI_DEV_DEC_UTIL_RATIO", "nvmlDeviceGetDecoderUtilization", factor=0.01),
    MEMORY,
    _named(("DCGM_FI_DEV_VGPU_LICENSE_STATUS",), _license),
    _named(
        (
            "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
            "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
            "DCGM_FI_DEV_ROW_REMAP_PENDING",
            "DCGM_FI_DEV_ROW_REMAP_FAILED",
        ),
        _remapped_rows,
    ),
    _number("DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", "nvmlDeviceGetPowerManagementLimit", factor=1e-3),
    _number("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "nvmlDeviceGetEnforcedPowerLimit", factor=1e-3),
    _number("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "nvmlDeviceGetCurrentClocksEventReasons"),
    *(
        _named((f"DCGM_FI_DEV_{cause}_VIOLATION",), partial(_violation, policy))
        for cause, policy in zip(_VIOLATIONS, range(6), strict=True)  # NVML_PERF_POLICY_* has DCGM's order
    ),
    *(
        _number(f"DCGM_FI_DEV_ECC_{name}_TOTAL", "nvmlDeviceGetTotalEccErrors", kind, counter)
        for name, counter, kind in (("SBE_VOL", 0, 0), ("DBE_VOL", 0, 1), ("SBE_AGG", 1, 0), ("DBE_AGG", 1, 1))
    ),
    _number("DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", "nvmlDeviceGetRetiredPages", 0),
    _number("DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", "nvmlDeviceGetRetiredPages", 1),
    _number("DCGM_FI_DEV_PAGE_RETIRED_PENDING", "nvmlDeviceGetRetiredPagesPendingStatus"),
)


def read(handle: Any, readers: Sequence[Reader]) -> tuple[dict[str, float], list[str]]:
    """Return the values of a GPU, and the fields without a value. Raises GpuLost."""
    values: dict[str, float] = {}
    for reader in readers:
        with absent_if_unsupported():
            values.update(reader.read(handle))
    return values, [name for reader in readers for name in reader.fields if name not in values]


class absent_if_unsupported:  # noqa: N801 - used as a function
    """Suppress NVML's errors, which leave values absent.

    Raises GpuLost for a GPU that does not answer any more, NvmlFault if NVML is closed, a fault of all GPUs.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, pynvml.NVMLError):
            return False
        if error.value in _LOST:
            raise GpuLost(str(error)) from error
        if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
            raise NvmlFault(str(error).rstrip(".")) from error
        return True


# ---- field values ----------------------------------------------------------------------------------------------------

# Numbers of NVML_FI_DEV_…, which the bindings do not all have in older versions.
NVLINK_SENT_KIB, NVLINK_RECEIVED_KIB = 138, 139
PCIE_SENT_BYTES, PCIE_RECEIVED_BYTES = 197, 198
_FIELD_NUMBERS: Mapping[int, str] = {
    82: "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
    38: "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
    45: "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
    52: "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL",
    59: "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL",
}
_COUNTER_NUMBERS = (NVLINK_SENT_KIB, NVLINK_RECEIVED_KIB, PCIE_SENT_BYTES, PCIE_RECEIVED_BYTES)
FIELD_NAMES = tuple(_FIELD_NUMBERS.values())
# Members of the union by NVML_VALUE_TYPE_….
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def read_fields(handle: Any) -> tuple[dict[str, float], dict[int, float]]:
    """Return the values that NVML provides as numbered fields, by one call: fields of DCGM, and counters by number.

    The counters are of NVLink (KiB, all links) and PCIe (bytes). Raises GpuLost.
    """
    scopes = {NVLINK_SENT_KIB: _ALL_LINKS, NVLINK_RECEIVED_KIB: _ALL_LINKS}
    numbers = (*_FIELD_NUMBERS, *_COUNTER_NUMBERS)
    by_number: dict[int, float] = {}
    with absent_if_unsupported():
        for field in pynvml.nvmlDeviceGetFieldValues(handle, [(number, scopes.get(number, 0)) for number in numbers]):
            if field.nvmlReturn in _LOST:
                raise GpuLost(str(pynvml.NVMLError(field.nvmlReturn)))
            if field.nvmlReturn == pynvml.NVML_SUCCESS:
                by_number[field.fieldId] = getattr(field.value, _MEMBERS[field.valueType])
    values = {name: by_number[number] for number, name in _FIELD_NUMBERS.items() if number in by_number}
    return values, {number: by_number[number] for number in _COUNTER_NUMBERS if number in by_number}


def pcie_throughput(handle: Any) -> dict[str, float]:
    """Return the bytes per second over PCIe of GPUs without counters. Each of two calls measures for 20 ms."""
    throughput: dict[str, float] = {}
    for name, counter in (("DCGM_FI_PROF_PCIE_TX_BYTES", 0), ("DCGM_FI_PROF_PCIE_RX_BYTES", 1)):
        with absent_if_unsupported():
            throughput[name] = pynvml.nvmlDeviceGetPcieThroughput(handle, counter) * 1000.0
    return throughput


# ---- GPM: activity of the units of a GPU, since Hopper ---------------------------------------------------------------

# DCGM's field, NVML_GPM_METRIC_…, factor
_GPM = (
    ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1, 0.01),
    ("DCGM_FI_PROF_SM_UTIL_RATIO", 2, 0.01),
    ("DCGM_FI_PROF_SM_OCCUPANCY_RATIO", 3, 0.01),
    ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 5, 0.01),
    ("DCGM_FI_PROF_DRAM_UTIL_RATIO", 10, 0.01),
    ("DCGM_FI_PROF_FP64_UTIL_RATIO", 11, 0.01),
    ("DCGM_FI_PROF_FP32_UTIL_RATIO", 12, 0.01),
    ("DCGM_FI_PROF_FP16_UTIL_RATIO", 13, 0.01),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", 20, _MIB),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", 21, _MIB),
)
GPM_NAMES = tuple(name for name, _, _ in _GPM)


class GpmReader:
    """Activity of one GPU or MIG slice between two samples; the first sample has no values."""

    def __init__(self, gpu: GpuHandle) -> None:
        self._gpu = gpu
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self._taken = 0
        self._request = pynvml.c_nvmlGpmMetricsGet_t()

    def read(self) -> dict[str, float]:
        """Sample and return the activity since the previous one. Raises GpuLost."""
        values: dict[str, float] = {}
        with absent_if_unsupported():
            self._samples.reverse()
            if self._gpu.parent is None:
                pynvml.nvmlGpmSampleGet(self._gpu.handle, self._samples[1])
            else:
                pynvml.nvmlGpmMigSampleGet(self._gpu.parent, self._gpu.gpu_instance, self._samples[1])
            self._taken += 1
            if self._taken > 1:
                self._compare(values)
        return values

    def _compare(self, values: dict[str, float]) -> None:
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM)
        request.sample1, request.sample2 = self._samples
        for slot, (_, number, _) in zip(request.metrics, _GPM, strict=False):
            slot.metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        for slot, (field, _, factor) in zip(request.metrics, _GPM, strict=False):
            if slot.nvmlReturn == pynvml.NVML_SUCCESS:
                values[field] = round(slot.value * factor, 9)

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)


def gpm_reader(gpu: GpuHandle) -> GpmReader | None:
    """Return a reader of the GPU's activity, None if it has no GPM. Raises GpuLost."""
    with absent_if_unsupported():
        if pynvml.nvmlGpmQueryDeviceSupport(gpu.parent or gpu.handle).isSupportedDevice:
            return GpmReader(gpu)
    return None


# ---- XID events ------------------------------------------------------------------------------------------------------


class XidEvents:
    """The XID errors of the GPUs. The driver queues them between calls of `poll`."""

    def __init__(self) -> None:
        self._set = pynvml.nvmlEventSetCreate()

    def register(self, gpu: GpuHandle) -> bool:
        """Receive the errors of a GPU from now on; return whether it reports any. Raises GpuLost."""
        with absent_if_unsupported():
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            return True
        return False

    def poll(self) -> list[tuple[int, int]]:
        """Return the new errors without waiting: address of the GPU, and XID."""
        errors: list[tuple[int, int]] = []
        with suppress(pynvml.NVMLError):  # NVML_ERROR_TIMEOUT: none is left
            while len(errors) < _MAX_EVENTS:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
                errors.append((_address(event.device), int(event.eventData)))
        return errors

    def close(self) -> None:
        """Free the event set."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._set)


# ---- processes -------------------------------------------------------------------------------------------------------


def process_memory(handle: Any) -> dict[int, float | None] | None:
    """Return the bytes of each compute process by its id; None if the driver does not list processes."""
    with absent_if_unsupported():
        return {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return None


def process_utilization(handle: Any, since_us: int) -> tuple[dict[int, float] | None, int]:
    """Return the mean share of time in which each process computed, and the time of the last sample.

    `since_us` is the time from an earlier call. Processes that did not compute are missing; None if unsupported.
    """
    samples: Sequence[Any] = ()
    try:
        with suppress(pynvml.NVMLError_NotFound):  # no process computed
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise GpuLost(str(error)) from error
        return None, since_us
    by_process: dict[int, list[float]] = {}
    for sample in samples:
        if sample.timeStamp > since_us:
            by_process.setdefault(sample.pid, []).append(sample.smUtil / 100)
    last_us = max((sample.timeStamp for sample in samples), default=since_us)
    return {pid: min(sum(values) / len(values), 1.0) for pid, values in by_process.items()}, last_us


if __name__ == "__main__":
    try:
        print(json.dumps([asdict(gpu) for gpu in installed_gpus()]))
    except NvmlFault as error:
        sys.exit(str(error))
