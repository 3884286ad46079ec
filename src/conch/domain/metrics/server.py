"""Server: what Triton and vLLM have no metrics for.

Durations are in seconds, sizes in bytes. A timer that fires every 25 ms measures how long the event loop is blocked;
that lag is at most the CPU time that the process used meanwhile, so that a busy machine does not count. Processes of
models and engines are sampled once per `--metrics-interval-ms`.
"""

from functools import partial

from conch.domain.metrics.metric import MetricDefinition

_MODEL = ("model", "version")
_OF_MODEL = partial(MetricDefinition, labels=_MODEL, optional_labels=("namespace",))
_OF_PROCESS = partial(MetricDefinition, labels=(*_MODEL, "instance"), optional_labels=("namespace",))

REQUEST_DURATION = _OF_MODEL(
    "conch_request_duration_seconds",
    "histogram",
    "Seconds from the receipt of a request to its last response. Only successful requests count.",
    unit="seconds",
)
QUEUE_DURATION = _OF_MODEL(
    "conch_queue_duration_seconds",
    "histogram",
    "Seconds of a successful request waiting for an instance; for ensembles the sum over the steps.",
    unit="seconds",
)
BATCH_SIZE = _OF_MODEL("conch_batch_size", "histogram", "Inferences per execution of the model.")
QUEUE_DEPTH = _OF_MODEL(
    "conch_queue_depth", "gauge", "Requests in the queue of the model; requests sent ahead to an instance do not count."
)
QUEUE_OLDEST = _OF_MODEL(
    "conch_queue_oldest_request_seconds",
    "gauge",
    "Age of the oldest request in the queue, 0 if it is empty.",
    unit="seconds",
)
INSTANCES = _OF_MODEL("conch_instances", "gauge", "Instances of the model, busy or idle.")
INSTANCE_BUSY = _OF_MODEL(
    "conch_instance_busy_seconds_total",
    "counter",
    "Seconds that instances executed batches, summed over the instances.",
    unit="seconds",
)
MODEL_READY = _OF_MODEL("conch_model_ready", "gauge", "1 if a request sent now would be executed, else 0.")
PROCESS_RESTARTS = _OF_MODEL(
    "conch_process_restarts_total", "counter", "Attempts to replace a process of the model that had exited."
)
PROCESS_CPU = _OF_PROCESS(
    "conch_process_cpu_seconds_total",
    "counter",
    "CPU seconds of the process of a model instance or engine, with its descendants.",
    unit="seconds",
)
PROCESS_MEMORY = _OF_PROCESS(
    "conch_process_resident_memory_bytes",
    "gauge",
    "Resident memory of the process of a model instance or engine, with its descendants.",
    unit="bytes",
)

DEGRADED = MetricDefinition(
    "conch_degraded",
    "gauge",
    "1 while the server or a model runs worse than its configuration asks, by reason; absent when that is cured.",
    labels=("reason",),
    optional_labels=("model",),
)
RECEIVED_BYTES = MetricDefinition(
    "conch_received_bytes_total", "counter", "Bytes received from clients.", labels=("protocol",), unit="bytes"
)
SENT_BYTES = MetricDefinition(
    "conch_sent_bytes_total", "counter", "Bytes sent to clients.", labels=("protocol",), unit="bytes"
)
CONNECTIONS = MetricDefinition("conch_connections", "gauge", "Open connections.", labels=("protocol",))
API_KEYS_UP = MetricDefinition(
    "conch_api_keys_up",
    "gauge",
    "1 if the files of API keys were valid at the last check; 0 if one is missing or invalid: earlier keys stay valid.",
)
REJECTED_REQUESTS = MetricDefinition(
    "conch_rejected_requests_total",
    "counter",
    "Requests that were answered with an error without being executed, by reason.",
    labels=("reason",),
)

REQUEST_MEMORY_LIMIT = MetricDefinition(
    "conch_request_memory_limit_bytes",
    "gauge",
    "Maximum bytes of request bodies in memory, of all connections (--request-memory-limit).",
    unit="bytes",
)
REQUEST_MEMORY_USED = MetricDefinition(
    "conch_request_memory_used_bytes",
    "gauge",
    "Bytes of request bodies in memory; bodies of up to 4 KiB do not count.",
    unit="bytes",
)
REQUEST_MEMORY_REFUSED = MetricDefinition(
    "conch_request_memory_refused_total",
    "counter",
    "Requests that were refused because the memory for request bodies is in use.",
)
REQUEST_MEMORY_EVICTED = MetricDefinition(
    "conch_request_memory_evicted_total",
    "counter",
    "Uploads without progress that were ended because other requests needed the memory.",
)

LOOP_LAG = MetricDefinition(
    "conch_event_loop_lag_seconds", "histogram", "Seconds that the event loop was blocked.", unit="seconds"
)
LOOP_STALLS = MetricDefinition(
    "conch_event_loop_stalls_total", "counter", "How often the event loop was blocked for more than 100 ms."
)
LOOP_LONGEST_STALL = MetricDefinition(
    "conch_event_loop_longest_stall_seconds",
    "gauge",
    "Longest time in seconds that the event loop was blocked since the start.",
    unit="seconds",
)

CUSTOM_SERIES_DROPPED = MetricDefinition(
    "conch_custom_series_dropped",
    "gauge",
    "Series of models' custom metrics that are not exported, by reason: name, kind, labels or limit.",
    labels=("reason",),
)

# The standard names of a process, here of the server.
PROCESS_CPU_SECONDS = MetricDefinition(
    "process_cpu_seconds_total", "counter", "CPU seconds of the server's process.", unit="seconds"
)
PROCESS_RESIDENT_MEMORY = MetricDefinition(
    "process_resident_memory_bytes", "gauge", "Resident memory of the server's process.", unit="bytes"
)
PROCESS_VIRTUAL_MEMORY = MetricDefinition(
    "process_virtual_memory_bytes", "gauge", "Virtual memory of the server's process.", unit="bytes"
)
PROCESS_START_TIME = MetricDefinition(
    "process_start_time_seconds",
    "gauge",
    "Start of the server's process in seconds since the epoch.",
    unit="timestamp_seconds",
)
PROCESS_OPEN_FDS = MetricDefinition("process_open_fds", "gauge", "Open file descriptors of the server's process.")
PROCESS_MAX_FDS = MetricDefinition(
    "process_max_fds", "gauge", "Maximum number of open file descriptors of the server's process."
)
