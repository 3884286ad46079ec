"""Accelerators: the normal form, with base units and the same names for every vendor."""

from conch.domain.metrics.metric import MetricDefinition

_DEVICE = ("vendor", "device", "uuid", "name")
_POD = ("namespace", "pod", "container")
_MODEL = ("model", "version", "instance", "uuid")

UTILIZATION = MetricDefinition(
    "conch_accelerator_utilization_ratio",
    "gauge",
    "Share of time in which the accelerator computed, 0 to 1.",
    _DEVICE,
    "ratio",
    _POD,
)
MEMORY_USED = MetricDefinition(
    "conch_accelerator_memory_used_bytes", "gauge", "Memory of the accelerator in use.", _DEVICE, "bytes", _POD
)
MEMORY_TOTAL = MetricDefinition(
    "conch_accelerator_memory_total_bytes", "gauge", "Memory of the accelerator.", _DEVICE, "bytes", _POD
)
POWER = MetricDefinition(
    "conch_accelerator_power_watts", "gauge", "Power draw of the accelerator.", _DEVICE, "watts", _POD
)
ENERGY = MetricDefinition(
    "conch_accelerator_energy_joules_total",
    "counter",
    "Energy that the accelerator has used since its driver started.",
    _DEVICE,
    "joules",
    _POD,
)
TEMPERATURE = MetricDefinition(
    "conch_accelerator_temperature_celsius", "gauge", "Temperature of the accelerator's chip.", _DEVICE, "celsius", _POD
)
CLOCK = MetricDefinition(
    "conch_accelerator_clock_hertz", "gauge", "Clock of the accelerator's compute units.", _DEVICE, "hertz", _POD
)
ERRORS = MetricDefinition(
    "conch_accelerator_errors_total",
    "counter",
    "Errors of the accelerator by the vendor's code, such as an XID.",
    (*_DEVICE, "code"),
    optional_labels=_POD,
)
MODEL_MEMORY = MetricDefinition(
    "conch_accelerator_model_memory_bytes",
    "gauge",
    "Memory of the accelerator that an instance or engine of a model uses.",
    _MODEL,
    "bytes",
)
MODEL_UTILIZATION = MetricDefinition(
    "conch_accelerator_model_utilization_ratio",
    "gauge",
    "Share of time in which the accelerator computed for an instance or engine of a model, 0 to 1.",
    _MODEL,
    "ratio",
)
COLLECTOR_UP = MetricDefinition(
    "conch_accelerator_collector_up",
    "gauge",
    "1 if the last sample of the vendor's collector succeeded; 0 for vendor=none while an exporter finds no vendor.",
    ("vendor",),
)
SAMPLE_DURATION = MetricDefinition(
    "conch_accelerator_sample_duration_seconds",
    "gauge",
    "Duration of the last sample of the vendor's collector.",
    ("vendor",),
    "seconds",
)
SAMPLE_AGE = MetricDefinition(
    "conch_accelerator_sample_age_seconds",
    "gauge",
    "Time since the last successful sample of the vendor's collector.",
    ("vendor",),
    "seconds",
)
UNSUPPORTED_FIELDS = MetricDefinition(
    "conch_accelerator_unsupported_fields_total",
    "counter",
    "Values that the accelerator, its driver or its tool did not provide; the series of the field is absent.",
    ("vendor", "field"),
)

# Readings of a device: their names in a sample, and the families that they become.
READINGS = {
    "utilization_ratio": UTILIZATION,
    "memory_used_bytes": MEMORY_USED,
    "memory_total_bytes": MEMORY_TOTAL,
    "power_watts": POWER,
    "energy_joules_total": ENERGY,
    "temperature_celsius": TEMPERATURE,
    "clock_hertz": CLOCK,
}
