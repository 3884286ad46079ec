"""Triton: names, kinds and labels of Triton, so that its dashboards and alerts work.

The series of a model exist, with the value 0, from its load until it is unloaded. Durations are counters of whole
microseconds. For an average, divide the rate of a duration by the rate of `nv_inference_request_success`. The
statistics endpoints of the protocol report the same counters.
"""

from functools import partial

from conch.domain.metrics.metric import MetricDefinition

_OF_MODEL = partial(MetricDefinition, labels=("model", "version"), optional_labels=("namespace",))
_MICROSECONDS = partial(_OF_MODEL, kind="counter", unit="microseconds")
_SUMMARY = partial(_OF_MODEL, kind="summary", unit="microseconds")

REQUEST_SUCCESS = _OF_MODEL("nv_inference_request_success", "counter", "Successful inference requests.")
REQUEST_FAILURE = MetricDefinition(
    "nv_inference_request_failure",
    "counter",
    "Failed inference requests, by reason.",
    labels=("model", "version", "reason"),
    optional_labels=("namespace",),
)
INFERENCE_COUNT = _OF_MODEL(
    "nv_inference_count",
    "counter",
    "Inferences: a request with a batch of n counts n times. Cached responses do not count.",
)
EXEC_COUNT = _OF_MODEL(
    "nv_inference_exec_count",
    "counter",
    "Executions of the model: a batch of several requests counts once. Cached responses do not count.",
)

REQUEST_DURATION = _MICROSECONDS(
    "nv_inference_request_duration_us",
    help="Cumulative microseconds from the receipt of requests to their responses. Only successful requests count.",
)
QUEUE_DURATION = _MICROSECONDS(
    "nv_inference_queue_duration_us", help="Cumulative microseconds of requests waiting for an instance."
)
COMPUTE_INPUT_DURATION = _MICROSECONDS(
    "nv_inference_compute_input_duration_us", help="Cumulative microseconds of preparing inputs."
)
COMPUTE_INFER_DURATION = _MICROSECONDS(
    "nv_inference_compute_infer_duration_us", help="Cumulative microseconds of executing the model."
)
COMPUTE_OUTPUT_DURATION = _MICROSECONDS(
    "nv_inference_compute_output_duration_us", help="Cumulative microseconds of preparing outputs."
)
FIRST_RESPONSE = _OF_MODEL(
    "nv_inference_first_response_histogram_ms",
    "histogram",
    "Milliseconds from the receipt of a request to its first response, of decoupled models and ensembles.",
    unit="milliseconds",
)

REQUEST_SUMMARY = _SUMMARY(
    "nv_inference_request_summary_us",
    help="Microseconds from the receipt of a request to its response, quantiles of the last minute.",
)
QUEUE_SUMMARY = _SUMMARY(
    "nv_inference_queue_summary_us",
    help="Microseconds of a request waiting for an instance, quantiles of the last minute.",
)
COMPUTE_INPUT_SUMMARY = _SUMMARY(
    "nv_inference_compute_input_summary_us",
    help="Microseconds of preparing a request's inputs, quantiles of the last minute.",
)
COMPUTE_INFER_SUMMARY = _SUMMARY(
    "nv_inference_compute_infer_summary_us",
    help="Microseconds of executing the model for a request, quantiles of the last minute.",
)
COMPUTE_OUTPUT_SUMMARY = _SUMMARY(
    "nv_inference_compute_output_summary_us",
    help="Microseconds of preparing a request's outputs, quantiles of the last minute.",
)
CACHE_HIT_SUMMARY = _SUMMARY(
    "nv_cache_hit_summary_per_model",
    help="Microseconds of the look-up of a cache hit, quantiles of the last minute.",
)
CACHE_MISS_SUMMARY = _SUMMARY(
    "nv_cache_miss_summary_per_model",
    help="Microseconds of the look-up of a cache miss and the insertion, quantiles of the last minute.",
)

PENDING_REQUESTS = _OF_MODEL(
    "nv_inference_pending_request_count",
    "gauge",
    "Requests that are not executing yet, including those sent ahead to a busy instance; 0 for ensembles.",
)
LOAD_DURATION = _OF_MODEL(
    "nv_model_load_duration_secs", "gauge", "Duration of the model's load in seconds.", unit="seconds"
)

MODEL_CACHE_HITS = _OF_MODEL("nv_cache_num_hits_per_model", "counter", "Cache hits.")
MODEL_CACHE_HIT_DURATION = _MICROSECONDS(
    "nv_cache_hit_duration_per_model", help="Cumulative microseconds of look-ups of cache hits."
)
MODEL_CACHE_MISSES = _OF_MODEL("nv_cache_num_misses_per_model", "counter", "Cache misses.")
MODEL_CACHE_MISS_DURATION = _MICROSECONDS(
    "nv_cache_miss_duration_per_model",
    help="Cumulative microseconds of look-ups of cache misses and insertions.",
)

# Gauges, also those that only grow, as in Triton.
CACHE_UTILIZATION = MetricDefinition(
    "nv_cache_util", "gauge", "Share of the cache's bytes in use, 0 to 1.", unit="ratio"
)
CACHE_ENTRIES = MetricDefinition("nv_cache_num_entries", "gauge", "Responses in the cache.")
CACHE_HITS = MetricDefinition("nv_cache_num_hits", "gauge", "Cache hits.")
CACHE_MISSES = MetricDefinition("nv_cache_num_misses", "gauge", "Cache misses.")
CACHE_LOOKUPS = MetricDefinition("nv_cache_num_lookups", "gauge", "Cache look-ups.")
CACHE_EVICTIONS = MetricDefinition("nv_cache_num_evictions", "gauge", "Evicted responses.")
CACHE_LOOKUP_DURATION = MetricDefinition(
    "nv_cache_lookup_duration", "gauge", "Cumulative microseconds of cache look-ups.", unit="microseconds"
)
CACHE_INSERTION_DURATION = MetricDefinition(
    "nv_cache_insertion_duration", "gauge", "Cumulative microseconds of cache insertions.", unit="microseconds"
)

CPU_UTILIZATION = MetricDefinition(
    "nv_cpu_utilization", "gauge", "Share of CPU time in use on all cores, 0 to 1.", unit="ratio"
)
CPU_MEMORY_TOTAL = MetricDefinition(
    "nv_cpu_memory_total_bytes", "gauge", "Memory of the machine in bytes.", unit="bytes"
)
CPU_MEMORY_USED = MetricDefinition("nv_cpu_memory_used_bytes", "gauge", "Memory in use in bytes.", unit="bytes")
