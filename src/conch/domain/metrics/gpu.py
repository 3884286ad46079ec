"""NVIDIA GPUs, names of Triton: metrics of the GPUs of a server, and the state of accelerators."""

from conch.domain.metrics.metric import MetricDefinition

_GPU = ("gpu_uuid",)

GPU_UTILIZATION = MetricDefinition(
    "nv_gpu_utilization", "gauge", "Share of time in which the GPU ran a kernel, 0 to 1.", _GPU, "ratio"
)
GPU_MEMORY_TOTAL = MetricDefinition("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", _GPU, "bytes")
GPU_MEMORY_USED = MetricDefinition("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU in use.", _GPU, "bytes")
GPU_POWER_USAGE = MetricDefinition("nv_gpu_power_usage", "gauge", "Power draw of the GPU in watts.", _GPU, "watts")
GPU_POWER_LIMIT = MetricDefinition(
    "nv_gpu_power_limit", "gauge", "Power limit of the GPU in watts, as set.", _GPU, "watts"
)
GPU_ENERGY = MetricDefinition(
    "nv_energy_consumption",
    "counter",
    "Energy in joules that the GPU has used since the server started.",
    _GPU,
    "joules",
)
DEVICE_UP = MetricDefinition(
    "conch_accelerator_device_up",
    "gauge",
    "1 while the accelerator answers; 0 after it was lost, for example off the PCIe bus.",
    ("vendor", "device", "uuid", "name"),
)
