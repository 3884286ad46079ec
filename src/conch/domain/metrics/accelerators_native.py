"""Accelerators under their vendors' names: what the vendors' own exporters expose, in their units.

Dashboards for those exporters work with them. DCGM's names for NVIDIA are in a separate module.
"""

from collections.abc import Iterator

from conch.domain.metrics.metric import Kind, MetricDefinition, Unit

_POD = ("namespace", "pod", "container")
_NEURON = ("availability_zone", "instance_id", "instance_name", "instance_type", "region", "subnet_id")
_CORE = (*_NEURON, "neuroncore", "runtime_tag")
_ASCEND = ("id", "model_name", "vdie_id", "pcie_bus_info")
_CAMBRICON = ("mlu", "model", "uuid")
_INTEL = ("uuid", "dev_name", "pci_dev", "vendor", "pci_bdf")
_AMD = ("gpu_id", "gpu_uuid", "card_model")

_Row = tuple[str, Kind, Unit, tuple[str, ...], str]
_ROWS: tuple[_Row, ...] = (
    # AWS Neuron: neuron-monitor-prometheus.py
    ("neuroncore_utilization_ratio", "gauge", "ratio", _CORE, "Utilization of a NeuronCore, 0 to 1."),
    *(
        (
            f"neuroncore_memory_usage_{kind}",
            "gauge",
            "bytes",
            (*_CORE, "memory_location"),
            f"Memory of a NeuronCore for {text}.",
        )
        for kind, text in (
            ("constants", "constants, which are the weights during inference"),
            ("model_code", "executable code of models"),
            ("model_shared_scratchpad", "the scratchpad that models share"),
            ("runtime_memory", "the Neuron Runtime"),
            ("tensors", "tensors"),
        )
    ),
    (
        "neuron_runtime_memory_used_bytes",
        "gauge",
        "bytes",
        (*_NEURON, "runtime_tag", "memory_location"),
        "Memory of the host and of Neuron devices that a runtime uses.",
    ),
    (
        "execution_errors_total",
        "counter",
        "",
        (*_NEURON, "runtime_tag", "error_type"),
        "Errors of executions on NeuronCores since the collector started, by type.",
    ),
    (
        "execution_status_total",
        "counter",
        "",
        (*_NEURON, "runtime_tag", "status_type"),
        "Executions on NeuronCores since the collector started, by result.",
    ),
    (
        "hardware_ecc_events_total",
        "counter",
        "",
        (*_NEURON, "neuron_device_index", "event_type"),
        "ECC events of a Neuron device.",
    ),
    # Huawei Ascend: npu-exporter. Its MB are mebibytes.
    ("npu_chip_info_utilization", "gauge", "percent", _ASCEND, "Utilization of the AI Cores in percent."),
    ("npu_chip_info_temperature", "gauge", "celsius", _ASCEND, "Temperature of the NPU."),
    ("npu_chip_info_power", "gauge", "watts", _ASCEND, "Power draw of the NPU."),
    ("npu_chip_info_hbm_used_memory", "gauge", "mebibytes", _ASCEND, "Memory of the NPU in use."),
    ("npu_chip_info_hbm_total_memory", "gauge", "mebibytes", _ASCEND, "Memory of the NPU."),
    ("npu_chip_info_aicore_current_freq", "gauge", "megahertz", _ASCEND, "Clock of the AI Cores."),
    ("npu_chip_info_health_status", "gauge", "", _ASCEND, "1 if the NPU is healthy."),
    # Cambricon: mlu-exporter
    ("mlu_utilization", "gauge", "percent", _CAMBRICON, "Utilization of the MLU in percent."),
    ("mlu_memory_used", "gauge", "bytes", _CAMBRICON, "Memory of the MLU in use."),
    ("mlu_memory_total", "gauge", "bytes", _CAMBRICON, "Memory of the MLU."),
    ("mlu_power_usage", "gauge", "watts", _CAMBRICON, "Power draw of the MLU."),
    ("mlu_temperature", "gauge", "celsius", _CAMBRICON, "Temperature of the MLU."),
    # Intel: XPU Manager
    ("xpum_engine_ratio", "gauge", "ratio", _INTEL, "Utilization of the GPU's engines, 0 to 1."),
    ("xpum_power_watts", "gauge", "watts", _INTEL, "Power draw of the GPU."),
    ("xpum_energy_joules", "gauge", "joules", _INTEL, "Energy that the GPU has used."),
    ("xpum_temperature_celsius", "gauge", "celsius", (*_INTEL, "location"), "Temperature of the GPU."),
    ("xpum_frequency_mhz", "gauge", "megahertz", (*_INTEL, "location", "type"), "Clock of the GPU."),
    ("xpum_memory_used_bytes", "gauge", "bytes", _INTEL, "Memory of the GPU in use."),
    ("xpum_memory_ratio", "gauge", "ratio", _INTEL, "Share of the GPU's memory in use, 0 to 1."),
    # AMD: device-metrics-exporter. Its MB are mebibytes.
    ("gpu_gfx_activity", "gauge", "percent", _AMD, "Utilization of the graphics engine in percent."),
    ("gpu_umc_activity", "gauge", "percent", _AMD, "Utilization of the memory controller in percent."),
    ("gpu_package_power", "gauge", "watts", _AMD, "Power draw of the GPU's socket."),
    ("gpu_edge_temperature", "gauge", "celsius", _AMD, "Temperature at the edge of the chip."),
    ("gpu_junction_temperature", "gauge", "celsius", _AMD, "Temperature at the hottest point of the chip."),
    ("gpu_memory_temperature", "gauge", "celsius", _AMD, "Temperature of the GPU's memory."),
    ("gpu_total_vram", "gauge", "mebibytes", _AMD, "Memory of the GPU."),
    ("gpu_used_vram", "gauge", "mebibytes", _AMD, "Memory of the GPU in use."),
    ("gpu_energy_consumed", "gauge", "", _AMD, "Energy that the GPU has used, in microjoules."),
    ("gpu_clock", "gauge", "megahertz", (*_AMD, "clock_type", "clock_index"), "Clock of the GPU."),
    ("gpu_ecc_correct_total", "gauge", "", _AMD, "Corrected ECC errors."),
    ("gpu_ecc_uncorrect_total", "gauge", "", _AMD, "Uncorrected ECC errors."),
)


def _definitions() -> Iterator[MetricDefinition]:
    for name, kind, unit, labels, text in _ROWS:
        yield MetricDefinition(name, kind, text, labels, unit, _POD)


NATIVE_ACCELERATOR_METRICS = tuple(_definitions())
