"""The collector of NVIDIA GPUs and their MIG slices.

A sample's native values have the names and units of DCGM 4.7; `nvidia_views` renames them. Values of the whole GPU are
in its sample. A MIG slice has a sample with the values that exist for slices: memory, activity, processes. A
GPU with slices has none of these, so that sums over all samples are right.
"""

from collections.abc import Callable
from time import monotonic
from typing import ClassVar

from conch.machine.accelerators.collectors import (
    AcceleratorAbsent,
    CollectorError,
    DeviceIdentity,
    DeviceSample,
    NativeValue,
    ProcessUsage,
    VendorSample,
    device_sample,
)
from conch.machine.accelerators.vendors import nvml

# Reading of the normal form → field of DCGM
_READINGS = {
    "utilization_ratio": "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "memory_used_bytes": "DCGM_FI_DEV_FB_USED_BYTES",
    "memory_total_bytes": "DCGM_FI_DEV_FB_CAPACITY_BYTES",
    "power_watts": "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "energy_joules_total": "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
    "temperature_celsius": "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    "clock_hertz": "DCGM_FI_DEV_SM_CLOCK_HERTZ",
}
_OF_DIVIDED = tuple(reader for reader in nvml.READERS if reader is not nvml.MEMORY)
_FACTORS = {nvml.NVLINK_SENT_KIB: 1024, nvml.NVLINK_RECEIVED_KIB: 1024}
_PCIE = (("DCGM_FI_PROF_PCIE_TX_BYTES", nvml.PCIE_SENT_BYTES), ("DCGM_FI_PROF_PCIE_RX_BYTES", nvml.PCIE_RECEIVED_BYTES))


class NvidiaCollector:
    """Reads all GPUs of the machine through NVML."""

    vendor: ClassVar[str] = "nvidia"

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._gpus: list[_GpuState] = []
        self._unreachable: list[int] = []
        self._events: nvml.XidEvents | None = None

    def start(self) -> None:
        """Open NVML, find the GPUs and register for their events."""
        try:
            driver = nvml.start()
            handles, self._unreachable = nvml.gpus()
        except nvml.NO_DRIVER as error:
            raise AcceleratorAbsent(f"no driver of NVIDIA: {error}") from error
        except nvml.NvmlFault as error:
            raise CollectorError(f"NVML: {error}") from error
        if not handles and not self._unreachable:
            raise AcceleratorAbsent("NVML lists no GPU")
        self._events = nvml.XidEvents()
        divided = {gpu.index for gpu in handles if gpu.parent is not None}
        self._gpus = [_GpuState(gpu, driver, self._clock, divided=gpu.index in divided) for gpu in handles]
        for state in self._gpus:
            state.start(self._events)

    def sample(self) -> VendorSample:
        """Read all GPUs. One that does not answer has a sample with the attribute `lost`, and without values."""
        try:
            self._count_xids()
            lost = [lost_sample(DeviceIdentity(self.vendor, str(index), "", "")) for index in self._unreachable]
            return VendorSample(self.vendor, (*(state.sample() for state in self._gpus), *lost))
        except nvml.NvmlFault as error:
            raise CollectorError(f"NVML: {error}") from error

    def close(self) -> None:
        """Free what NVML has allocated, and close it."""
        for state in self._gpus:
            state.close()
        if self._events is not None:
            self._events.close()
        nvml.stop()

    def _count_xids(self) -> None:
        assert self._events is not None, "start first"
        states = {state.gpu.address: state for state in self._gpus}
        for address, xid in self._events.poll():
            if (state := states.get(address)) is not None:
                state.count_xid(xid)


class _GpuState:
    """One GPU or slice, with what must be remembered between samples."""

    def __init__(self, gpu: nvml.GpuHandle, driver: str, clock: Callable[[], float], *, divided: bool) -> None:
        """`divided` is whether the GPU has slices."""
        self.gpu = gpu
        index = str(gpu.index) if gpu.parent is None else f"{gpu.index}/{gpu.gpu_instance}"
        self._is_slice = gpu.parent is not None
        self._is_divided = divided and not self._is_slice
        self._identity = DeviceIdentity(
            "nvidia", index, gpu.uuid, gpu.name, gpu.pci_bus_id, gpu.parent_uuid, _aliases(gpu)
        )
        self._attributes = {"minor_number": gpu.minor_number, "driver_version": driver}
        if self._is_slice:
            self._attributes |= {"gpu_instance": str(gpu.gpu_instance), "gpu_profile": gpu.profile}
        self._clock = clock
        self._gpm: nvml.GpmReader | None = None
        self._reports_xids = False
        self._xids: dict[int, int] = {}
        self._last_xid = 0
        self._counters: dict[int, float] = {}
        self._counted_at = 0.0
        self._utilization_us = 0

    def start(self, events: nvml.XidEvents) -> None:
        """Register for events and prepare the reading of activity."""
        try:
            self._gpm = None if self._is_divided else nvml.gpm_reader(self.gpu)
            self._reports_xids = not self._is_slice and events.register(self.gpu)
        except nvml.GpuLost:
            return  # so says the first sample

    def count_xid(self, xid: int) -> None:
        """Count an XID error."""
        self._xids[xid] = self._xids.get(xid, 0) + 1
        self._last_xid = xid

    def sample(self) -> DeviceSample:
        """Return the values of the GPU, or of the slice."""
        errors = {str(xid): count for xid, count in self._xids.items()}
        try:
            values, absent = self._of_slice() if self._is_slice else self._of_gpu()
            processes = self._processes()
        except nvml.GpuLost:
            return lost_sample(self._identity, errors)
        readings = {name: values.get(field) for name, field in _READINGS.items()}
        if readings["utilization_ratio"] is None:
            readings["utilization_ratio"] = values.get("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
        return device_sample(
            self._identity,
            readings,
            errors=errors,
            native=(*(NativeValue(name, value) for name, value in values.items()), *self._xid_totals()),
            processes=processes,
            unsupported=absent,
            attributes=self._attributes,
        )

    def close(self) -> None:
        """Free what NVML has allocated for the GPU."""
        if self._gpm is not None:
            self._gpm.close()

    def _of_slice(self) -> tuple[dict[str, float], list[str]]:
        values, absent = nvml.read(self.gpu.handle, (nvml.MEMORY,))
        activity = self._activity(absent)
        return values | activity, absent

    def _of_gpu(self) -> tuple[dict[str, float], list[str]]:
        handle = self.gpu.handle
        values, absent = nvml.read(handle, _OF_DIVIDED if self._is_divided else nvml.READERS)
        fields, counters = nvml.read_fields(handle)
        absent += [name for name in nvml.FIELD_NAMES if name not in fields]
        rates = self._rates(counters)
        values |= fields | self._nvlink(rates, counters, absent)
        activity = self._activity(absent)
        if self._gpm is None:
            activity |= self._pcie(rates, counters)
        if self._reports_xids:
            values["DCGM_FI_DEV_XID_ERROR"] = self._last_xid
        else:
            absent.append("DCGM_FI_DEV_XID_ERROR")
        return values | activity, [name for name in absent if name not in activity]

    def _activity(self, absent: list[str]) -> dict[str, float]:
        """Return what GPM measured since the last sample; without GPM its fields are absent."""
        if self._gpm is not None:
            activity = self._gpm.read()
            absent += [name for name in nvml.GPM_NAMES if activity and name not in activity]
            return activity
        if not self._is_divided:
            absent += nvml.GPM_NAMES
        return {}

    def _rates(self, counters: dict[int, float]) -> dict[int, float]:
        """Return the increase per second of counters since the last sample."""
        now = self._clock()
        before, elapsed = self._counters, now - self._counted_at
        self._counters, self._counted_at = counters, now
        return {
            number: max(value - before[number], 0.0) * _FACTORS.get(number, 1) / elapsed
            for number, value in counters.items()
            if number in before and elapsed > 0
        }

    def _nvlink(self, rates: dict[int, float], counters: dict[int, float], absent: list[str]) -> dict[str, float]:
        name, directions = (
            "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
            (nvml.NVLINK_SENT_KIB, nvml.NVLINK_RECEIVED_KIB),
        )
        if any(number not in counters for number in directions):
            absent.append(name)
        if any(number not in rates for number in directions):
            return {}
        return {name: sum(rates[number] for number in directions)}

    def _pcie(self, rates: dict[int, float], counters: dict[int, float]) -> dict[str, float]:
        """Return the throughput of PCIe of a GPU without GPM: from counters where it has them."""
        if all(number in counters for _, number in _PCIE):
            return {field: rates[number] for field, number in _PCIE if number in rates}
        return nvml.pcie_throughput(self.gpu.handle)

    def _processes(self) -> tuple[ProcessUsage, ...]:
        memory = {} if self._is_divided else nvml.process_memory(self.gpu.handle)
        if not memory:
            return ()
        shares, self._utilization_us = nvml.process_utilization(self.gpu.handle, self._utilization_us)
        return tuple(
            ProcessUsage(pid, used, None if shares is None else shares.get(pid, 0.0)) for pid, used in memory.items()
        )

    def _xid_totals(self) -> list[NativeValue]:
        name = "DCGM_EXP_XID_ERRORS_TOTAL"
        return [NativeValue(name, count, {"xid": str(xid)}, "counter") for xid, count in self._xids.items()]


def _aliases(gpu: nvml.GpuHandle) -> tuple[str, ...]:
    """Return the ids that GKE's device plugin uses; NVIDIA's reports UUIDs."""
    if gpu.parent is not None:
        return (f"nvidia{gpu.index}/gi{gpu.gpu_instance}",)
    return (f"nvidia{gpu.minor_number}",)


def lost_sample(device: DeviceIdentity, errors: dict[str, int] | None = None) -> DeviceSample:
    """Return the sample of a device that does not answer any more: no values, and the attribute `lost`."""
    return DeviceSample(device, errors=errors or {}, attributes={"lost": "true"})
