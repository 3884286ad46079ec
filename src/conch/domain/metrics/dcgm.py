"""NVIDIA GPUs, names of DCGM: metrics of `conch gpu-exporter`, named as before DCGM 4.7 and as since.

DCGM 4.7 renamed most fields; the new names have base units. `--dcgm-names` chooses.
[GPU metrics](../observability/gpu.md) lists which are exposed by default, and what they are read from.
"""

from dataclasses import dataclass

from conch.domain.metrics.metric import Kind, MetricDefinition, Unit

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName")
_PARTS = ("GPU_I_PROFILE", "GPU_I_ID", "container", "namespace", "pod")
LEGACY_LABELS = ("Hostname", "DCGM_FI_DRIVER_VERSION")
CURRENT_LABELS = ("hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION")

_MIB = 1 << 20
_DEV, _PROF = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
# How help texts name units that a legacy name does not tell.
_UNIT_NAMES: dict[Unit, str] = {
    "megahertz": "MHz",
    "percent": "percent",
    "mebibytes": "MiB",
    "millijoules": "mJ",
    "megabytes_per_second": "MB/s",
    "nanoseconds": "ns",
    "celsius": "°C",
    "watts": "W",
}


@dataclass(frozen=True, slots=True)
class DcgmField:
    """A field of DCGM: its metric before 4.7 and since, which are the same where the name did not change.

    The legacy value is the current one times `legacy_factor`. `legacy_id` and `current_id` are DCGM's numbers, 0 for
    fields of dcgm-exporter's own. `legacy_default` and `current_default`: whether it is exposed unless a counter file
    says otherwise.
    """

    legacy_id: int
    current_id: int
    legacy: MetricDefinition
    current: MetricDefinition
    legacy_factor: float = 1.0
    legacy_default: bool = True
    current_default: bool = True


def _metric(
    name: str, kind: Kind, text: str, unit: Unit, own: tuple[str, ...], extra: tuple[str, ...]
) -> MetricDefinition:
    text = f"{text[:-1]}, in {_UNIT_NAMES[unit]}." if unit in _UNIT_NAMES else text
    return MetricDefinition(name, kind, text, (*_LABELS, *extra), unit, (*own, *_PARTS))


def _renamed(
    ids: tuple[int, int],
    names: tuple[str, str],
    kind: Kind,
    text: str,
    units: tuple[Unit, Unit] = ("", ""),
    factor: float = 1.0,
    *,
    default: bool = True,
) -> DcgmField:
    return DcgmField(
        *ids,
        _metric(names[0], kind, text, units[0], LEGACY_LABELS, ()),
        _metric(names[1], kind, text, units[1], CURRENT_LABELS, ()),
        factor,
        default,
        default,
    )


def _unchanged(
    number: int,
    name: str,
    kind: Kind,
    text: str,
    unit: Unit = "",
    *,
    default: bool = True,
    labels: tuple[str, ...] = (),
) -> DcgmField:
    metric = _metric(name, kind, text, unit, (*LEGACY_LABELS, *CURRENT_LABELS), labels)
    return DcgmField(number, number, metric, metric, 1.0, default, default)


def _clock(ids: tuple[int, int], names: tuple[str, str], text: str) -> DcgmField:
    return _renamed(ids, names, "gauge", text, ("megahertz", "hertz"), 1e-6)


def _percent(ids: tuple[int, int], names: tuple[str, str], text: str) -> DcgmField:
    return _renamed(ids, names, "gauge", text, ("percent", "ratio"), 100.0)


def _memory(ids: tuple[int, int], names: tuple[str, str], text: str) -> DcgmField:
    return _renamed(ids, names, "gauge", text, ("mebibytes", "bytes"), 1 / _MIB)


def _active(number: int, names: tuple[str, str], text: str, *, default: bool = True) -> DcgmField:
    return _renamed((number, number), names, "gauge", text, ("ratio", "ratio"), default=default)


def _count(number: int, names: tuple[str, str], text: str, *, default: bool = True) -> DcgmField:
    return _renamed((number, number), names, "counter", text, default=default)


def _throttled(number: int, name: str, reason: str) -> DcgmField:
    return _unchanged(
        number, f"{_DEV}{name}_VIOLATION", "counter", f"Time throttled by {reason}.", "nanoseconds", default=False
    )


SM_CLOCK = _clock((100, 1603), (f"{_DEV}SM_CLOCK", f"{_DEV}SM_CLOCK_HERTZ"), "Clock of the streaming multiprocessors.")
MEMORY_CLOCK = _clock((101, 1604), (f"{_DEV}MEM_CLOCK", f"{_DEV}MEMORY_CLOCK_HERTZ"), "Clock of the memory.")
MEMORY_TEMPERATURE = _renamed(
    (140, 140),
    (f"{_DEV}MEMORY_TEMP", f"{_DEV}MEMORY_TEMP_CELSIUS"),
    "gauge",
    "Temperature of the memory.",
    ("celsius", "celsius"),
)
GPU_TEMPERATURE = _renamed(
    (150, 150),
    (f"{_DEV}GPU_TEMP", f"{_DEV}GPU_TEMP_CELSIUS"),
    "gauge",
    "Temperature of the GPU.",
    ("celsius", "celsius"),
)
POWER = _renamed(
    (155, 155),
    (f"{_DEV}POWER_USAGE", f"{_DEV}BOARD_POWER_WATTS"),
    "gauge",
    "Power draw of the board.",
    ("watts", "watts"),
)
ENERGY = _renamed(
    (156, 1611),
    (f"{_DEV}TOTAL_ENERGY_CONSUMPTION", f"{_DEV}GPU_ENERGY_JOULES_TOTAL"),
    "counter",
    "Energy used since the driver was loaded.",
    ("millijoules", "joules"),
    1000.0,
)
PCIE_REPLAYS = _count(202, (f"{_DEV}PCIE_REPLAY_COUNTER", f"{_DEV}PCIE_REPLAY_TOTAL"), "Retransmissions on PCIe.")
GPU_UTILIZATION = _percent(
    (203, 1613), (f"{_DEV}GPU_UTIL", f"{_DEV}GPU_UTIL_RATIO"), "Share of time in which a kernel ran."
)
MEMORY_UTILIZATION = _percent(
    (204, 1614),
    (f"{_DEV}MEM_COPY_UTIL", f"{_DEV}MEMORY_UTIL_RATIO"),
    "Share of time in which the memory was read or written.",
)
ENCODER_UTILIZATION = _percent(
    (206, 1615), (f"{_DEV}ENC_UTIL", f"{_DEV}ENC_UTIL_RATIO"), "Utilization of the video encoder."
)
DECODER_UTILIZATION = _percent(
    (207, 1616), (f"{_DEV}DEC_UTIL", f"{_DEV}DEC_UTIL_RATIO"), "Utilization of the video decoder."
)
LAST_XID = _renamed(
    (230, 230),
    (f"{_DEV}XID_ERRORS", f"{_DEV}XID_ERROR"),
    "gauge",
    "Code of the last XID error since the exporter started; 0 if there was none.",
)
MEMORY_FREE = _memory((251, 1626), (f"{_DEV}FB_FREE", f"{_DEV}FB_FREE_BYTES"), "Free memory.")
MEMORY_USED = _memory(
    (252, 1627), (f"{_DEV}FB_USED", f"{_DEV}FB_USED_BYTES"), "Used memory, without that reserved by the driver."
)
NVLINK_THROUGHPUT = _renamed(
    (449, 1648),
    (f"{_DEV}NVLINK_BANDWIDTH_TOTAL", f"{_DEV}NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
    "gauge",
    "Data sent and received over all NVLinks per second.",
    # DCGM divides KiB/s by 1000 for its MB/s.
    ("megabytes_per_second", "bytes_per_second"),
    1 / 1_024_000,
)
VGPU_LICENSE = _unchanged(526, f"{_DEV}VGPU_LICENSE_STATUS", "gauge", "1 if the vGPU is licensed, otherwise 0.")
ROWS_UNCORRECTABLE = _count(
    393,
    (f"{_DEV}UNCORRECTABLE_REMAPPED_ROWS", f"{_DEV}ROW_REMAP_UNCORRECTABLE_TOTAL"),
    "Memory rows remapped because of uncorrectable errors.",
)
ROWS_CORRECTABLE = _count(
    394,
    (f"{_DEV}CORRECTABLE_REMAPPED_ROWS", f"{_DEV}ROW_REMAP_CORRECTABLE_TOTAL"),
    "Memory rows remapped because of correctable errors.",
)
ROWS_FAILED = _renamed(
    (395, 395),
    (f"{_DEV}ROW_REMAP_FAILURE", f"{_DEV}ROW_REMAP_FAILED"),
    "gauge",
    "1 if a memory row could not be remapped, otherwise 0.",
)
MEMORY_RESERVED = _memory(
    (253, 1628), (f"{_DEV}FB_RESERVED", f"{_DEV}FB_RESERVED_BYTES"), "Memory reserved by driver and firmware."
)
MEMORY_TOTAL = DcgmField(
    250,
    1625,
    _metric(f"{_DEV}FB_TOTAL", "gauge", "Memory of the GPU.", "mebibytes", LEGACY_LABELS, ()),
    _metric(f"{_DEV}FB_CAPACITY_BYTES", "gauge", "Memory of the GPU.", "bytes", CURRENT_LABELS, ()),
    1 / _MIB,
    legacy_default=False,
)
GRAPHICS_ACTIVE = _active(
    1001,
    (f"{_PROF}GR_ENGINE_ACTIVE", f"{_PROF}GR_ENGINE_UTIL_RATIO"),
    "Share of time in which the graphics or compute engine was active.",
)
TENSOR_ACTIVE = _active(
    1004,
    (f"{_PROF}PIPE_TENSOR_ACTIVE", f"{_PROF}TENSOR_UTIL_RATIO"),
    "Share of cycles in which the tensor cores were active.",
)
DRAM_ACTIVE = _active(
    1005,
    (f"{_PROF}DRAM_ACTIVE", f"{_PROF}DRAM_UTIL_RATIO"),
    "Share of cycles in which the memory interface was active.",
)
PCIE_SENT = _unchanged(
    1009, f"{_PROF}PCIE_TX_BYTES", "gauge", "Bytes that the GPU sends over PCIe per second.", "bytes_per_second"
)
PCIE_RECEIVED = _unchanged(
    1010, f"{_PROF}PCIE_RX_BYTES", "gauge", "Bytes that the GPU receives over PCIe per second.", "bytes_per_second"
)
XID_TOTAL = _unchanged(
    0, "DCGM_EXP_XID_ERRORS_TOTAL", "counter", "XID errors since the exporter started, by code.", labels=("xid",)
)

# Exposed only if a counter file names them.
SM_ACTIVE = _active(
    1002,
    (f"{_PROF}SM_ACTIVE", f"{_PROF}SM_UTIL_RATIO"),
    "Share of cycles in which a multiprocessor had a warp.",
    default=False,
)
SM_OCCUPANCY = _active(
    1003,
    (f"{_PROF}SM_OCCUPANCY", f"{_PROF}SM_OCCUPANCY_RATIO"),
    "Resident warps as a share of the maximum.",
    default=False,
)
FP64_ACTIVE = _active(
    1006,
    (f"{_PROF}PIPE_FP64_ACTIVE", f"{_PROF}FP64_UTIL_RATIO"),
    "Share of cycles in which the FP64 pipe was active.",
    default=False,
)
FP32_ACTIVE = _active(
    1007,
    (f"{_PROF}PIPE_FP32_ACTIVE", f"{_PROF}FP32_UTIL_RATIO"),
    "Share of cycles in which the FP32 pipe was active.",
    default=False,
)
FP16_ACTIVE = _active(
    1008,
    (f"{_PROF}PIPE_FP16_ACTIVE", f"{_PROF}FP16_UTIL_RATIO"),
    "Share of cycles in which the FP16 pipe was active.",
    default=False,
)
POWER_LIMIT = _renamed(
    (160, 160),
    (f"{_DEV}POWER_MGMT_LIMIT", f"{_DEV}BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    "gauge",
    "Power limit that was set.",
    ("watts", "watts"),
    default=False,
)
POWER_LIMIT_ENFORCED = _renamed(
    (164, 164),
    (f"{_DEV}ENFORCED_POWER_LIMIT", f"{_DEV}BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    "gauge",
    "Power limit that the driver enforces.",
    ("watts", "watts"),
    default=False,
)
CLOCK_EVENT_REASONS = _renamed(
    (112, 112),
    (f"{_DEV}CLOCK_THROTTLE_REASONS", f"{_DEV}CLOCKS_EVENT_REASONS"),
    "gauge",
    "Reasons why clocks are reduced, as NVML's bit mask.",
    default=False,
)
VIOLATIONS = (
    _throttled(240, "POWER", "the power limit"),
    _throttled(241, "THERMAL", "temperature"),
    _throttled(242, "SYNC_BOOST", "synchronized boost with other GPUs"),
    _throttled(243, "BOARD_LIMIT", "limits of the board"),
    _throttled(244, "LOW_UTIL", "low utilization"),
    _throttled(245, "RELIABILITY", "reliability limits"),
)
ECC_ERRORS = tuple(
    _unchanged(number, f"{_DEV}ECC_{name}_TOTAL", "counter", f"{text} ECC errors.", default=False)
    for number, name, text in (
        (310, "SBE_VOL", "Single-bit volatile"),
        (311, "DBE_VOL", "Double-bit volatile"),
        (312, "SBE_AGG", "Single-bit persistent"),
        (313, "DBE_AGG", "Double-bit persistent"),
    )
)
RETIRED_PAGES = (
    _count(
        390,
        (f"{_DEV}RETIRED_SBE", f"{_DEV}PAGE_RETIRED_SBE_TOTAL"),
        "Pages retired after single-bit errors.",
        default=False,
    ),
    _count(
        391,
        (f"{_DEV}RETIRED_DBE", f"{_DEV}PAGE_RETIRED_DBE_TOTAL"),
        "Pages retired after double-bit errors.",
        default=False,
    ),
)
RETIRED_PENDING = _renamed(
    (392, 392),
    (f"{_DEV}RETIRED_PENDING", f"{_DEV}PAGE_RETIRED_PENDING"),
    "gauge",
    "1 if pages are to be retired at the next reset, otherwise 0.",
    default=False,
)
ROWS_PENDING = _unchanged(
    396,
    f"{_DEV}ROW_REMAP_PENDING",
    "gauge",
    "1 if memory rows are to be remapped at the next reset, otherwise 0.",
    default=False,
)
NVLINK_ERRORS = tuple(
    _count(number, (f"{_DEV}NVLINK_{name}_ERROR_COUNT_TOTAL", f"{_DEV}NVLINK_{name}_ERROR_TOTAL"), text, default=False)
    for number, name, text in (
        (409, "CRC_FLIT", "CRC errors of NVLink's flow control."),
        (419, "CRC_DATA", "CRC errors of NVLink's data."),
        (429, "REPLAY", "Retransmissions on NVLink."),
        (439, "RECOVERY", "Recoveries of NVLinks."),
    )
)

# In the order in which they are exposed.
DCGM_FIELDS: tuple[DcgmField, ...] = (
    SM_CLOCK,
    MEMORY_CLOCK,
    MEMORY_TEMPERATURE,
    GPU_TEMPERATURE,
    POWER,
    ENERGY,
    PCIE_REPLAYS,
    GPU_UTILIZATION,
    MEMORY_UTILIZATION,
    ENCODER_UTILIZATION,
    DECODER_UTILIZATION,
    LAST_XID,
    XID_TOTAL,
    MEMORY_TOTAL,
    MEMORY_FREE,
    MEMORY_USED,
    MEMORY_RESERVED,
    NVLINK_THROUGHPUT,
    VGPU_LICENSE,
    ROWS_UNCORRECTABLE,
    ROWS_CORRECTABLE,
    ROWS_FAILED,
    GRAPHICS_ACTIVE,
    TENSOR_ACTIVE,
    DRAM_ACTIVE,
    PCIE_SENT,
    PCIE_RECEIVED,
    SM_ACTIVE,
    SM_OCCUPANCY,
    FP64_ACTIVE,
    FP32_ACTIVE,
    FP16_ACTIVE,
    POWER_LIMIT,
    POWER_LIMIT_ENFORCED,
    CLOCK_EVENT_REASONS,
    *VIOLATIONS,
    *ECC_ERRORS,
    *RETIRED_PAGES,
    RETIRED_PENDING,
    ROWS_PENDING,
    *NVLINK_ERRORS,
)

DCGM_LEGACY_METRICS: tuple[MetricDefinition, ...] = tuple(field.legacy for field in DCGM_FIELDS)
DCGM_CURRENT_METRICS: tuple[MetricDefinition, ...] = tuple(field.current for field in DCGM_FIELDS)
# Names that neither this exporter nor dcgm-exporter exposes unless a counter file names them.
DCGM_OPTIONAL: frozenset[str] = frozenset(
    metric.name for metric in (*DCGM_LEGACY_METRICS, *DCGM_CURRENT_METRICS)
) - frozenset(
    metric.name
    for field in DCGM_FIELDS
    for metric, exposed in ((field.legacy, field.legacy_default), (field.current, field.current_default))
    if exposed
)
