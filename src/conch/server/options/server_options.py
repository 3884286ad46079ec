"""The server's options and flags.

Every field of `ServerOptions` is a flag, with Triton's name where Triton has it: `http_port` is `--http-port` and, in
the environment, `CONCH_HTTP_PORT`. A field has the flag's type, default and help text,
and the kind of its values unless the type says it.
"""

from dataclasses import Field, dataclass, fields
from typing import Any, Literal

from conch.base.command_line.flag_values import (
    AT_LEAST_ONE,
    BACKEND_SETTING,
    BOOLEAN,
    BYTES,
    BYTES_ABOVE_ZERO,
    CACHE,
    CACHE_SIZE,
    COMPUTE_CAPABILITY,
    COUNT,
    DAYS_ABOVE_ZERO,
    DCGM_NAMES,
    FRONTENDS,
    GPU_LIMIT,
    HOST_POLICY,
    KEY,
    LEVEL,
    METRICS_SETTING,
    MILLISECONDS,
    MILLISECONDS_ABOVE_ZERO,
    OPTIONAL_PORT,
    PATH,
    PATTERN,
    PORT,
    PORT_RANGE,
    RESOURCE_LIMIT,
    RESTRICTION,
    SECONDS,
    SECONDS_ABOVE_ZERO,
    WORDS,
    BackendSetting,
    CacheSetting,
    HostPolicySetting,
    MetricsValue,
    ResourceLimit,
    ValueKind,
)
from conch.base.command_line.flags import Flag, declared_flags
from conch.base.command_line.flags import flag_field as _flag
from conch.domain.degradations import STRICT_ALL, reasons
from conch.machine.cores import node_cores, read_core_list
from conch.server.options.trace import DEPRECATED_FLAGS, TRACE_SETTING, TraceSetting
from conch.server.options.triton_only_flags import TRITON_ONLY_FLAGS

DEFAULT_CACHE_LIMIT_BYTES = 1 << 40


def _read_strict(text: str) -> str:
    """Check for true, false or reasons of degradations that are known at start or load."""
    if text.lower() in (STRICT_ALL, "false"):
        return text.lower()
    if any(reason not in reasons() or not reasons()[reason].refusable for reason in text.split(",")):
        raise ValueError(text)
    return text


_STRICT = ValueKind(
    "true|false|reason,…", "true, false, or reasons of docs/degradations.md that occur at start or load", _read_strict
)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The settings in `--metrics-config`; those of texts are "" for none."""

    counter_latencies: bool = True
    histogram_latencies: bool = False  # times to the first response
    summary_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)  # Triton's
    otlp_endpoint: str = ""
    otlp_interval_ms: int = 60_000  # between exports
    custom_metrics: str = ""  # the file that declares metrics


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerOptions:
    """The options of one server. `conch.server.options.parser.parse` checks them, the constructor does not."""

    id: str = _flag("triton", "Server", "Name of this server in its metadata.")
    exit_timeout_secs: int = _flag(
        30, "Server", "Seconds to wait for requests in flight when the server stops.", SECONDS
    )
    hang_timeout_secs: int = _flag(
        0,
        "Server",
        "Seconds without progress after which the process of a model instance or engine that has requests is "
        "replaced, and those fail. 0: never; it is only named in conch_degraded.",
        SECONDS,
    )
    shutdown_delay_secs: int = _flag(
        0,
        "Server",
        "Seconds to serve on, with readiness false, after the signal to stop: load balancers leave in this time.",
        SECONDS,
    )
    listen_when_ready: bool = _flag(
        False,
        "Server",
        "Accept connections, except for metrics, when the initial models are loaded, as Triton does: for load "
        "balancers without health checks.",
    )
    exit_on_error: bool = _flag(True, "Server", "Exit if a model cannot be loaded at start.")
    frontend_processes: int = _flag(
        1,
        "Server",
        "Processes that accept clients, decode and encode, on the HTTP, OpenAI and gRPC ports. 1: the server's process "
        "does; auto: 1 on up to four cores, else one for each four cores, at most 8. docs/scale.md has measurements.",
        FRONTENDS,
    )
    strict: str = _flag(
        "false",
        "Server",
        "Refuse to start, and to load a model, that would run worse than asked: for any reason, or for those named. "
        "docs/degradations.md lists them.",
        _STRICT,
    )

    openai_address: str = _flag("", "OpenAI", "Address of the OpenAI port; --http-address if not given.")
    openai_port: int = _flag(
        -1,
        "OpenAI",
        "Additional port with only the OpenAI API, health and metrics; 0 for any free port, -1 for none. The HTTP port "
        "always serves the API.",
        OPTIONAL_PORT,
    )
    allowed_origins: str = _flag(
        "",
        "HTTP",
        "Origins of pages that may call the HTTP and OpenAI ports from a browser (CORS), such as "
        "https://chat.example.com; * for all.",
        WORDS,
    )
    allowed_methods: str = _flag("*", "HTTP", "Methods that those pages may use.", WORDS)
    allowed_headers: str = _flag("*", "HTTP", "Headers that those pages may send.", WORDS)
    allow_credentials: bool = _flag(False, "HTTP", "Let those pages send the user's credentials.")
    openai_api_key: tuple[str, ...] = _flag(
        (), "OpenAI", "Key that clients of /v1 must send as bearer token; one of several.", KEY, repeatable=True
    )
    openai_api_key_file: str = _flag("", "OpenAI", "File of such keys, one per line; reloaded when it changes.", PATH)
    openai_strict: bool = _flag(
        False,
        "OpenAI",
        "Refuse requests with fields that have no effect. They are served otherwise, and the answer names the fields "
        "in the header X-Conch-Ignored; docs/reference/openai-fields.md lists them.",
    )
    ollama_api: bool = _flag(
        False,
        "OpenAI",
        "Serve Ollama's API on the HTTP and OpenAI ports, to clients on this machine or with an API key. Its clients "
        "expect the port 11434, which --openai-port can be.",
    )
    batch_dir: str = _flag(
        "",
        "OpenAI",
        "Folder for the files and batches of /v1/files and /v1/batches, which need it. Batches run while clients have "
        "no requests, and continue after a restart.",
        PATH,
    )
    batch_max_bytes: int = _flag(
        1 << 30, "OpenAI", "Maximum bytes of all files in --batch-dir, results included.", BYTES_ABOVE_ZERO
    )
    lora_dir: str = _flag(
        "", "OpenAI", "Folder whose LoRA adapters /v1/load_lora_adapter may load; it loads none without it.", PATH
    )
    lora_separator: str = _flag(
        "_lora_", "OpenAI", "Text between the names of a model and its LoRA adapter in the OpenAI API."
    )
    responses_store: int = _flag(
        0,
        "OpenAI",
        "Responses of /v1/responses to keep in memory for previous_response_id: up to 256 MiB, for 24 hours; 0 keeps "
        "none.",
        COUNT,
    )

    api_key_file: str = _flag(
        "",
        "Server",
        "File of API keys, one per line: '<name> <scope>,… <key>', with the scopes infer, manage, metrics and debug. "
        "Clients of all ports must send a key as bearer token, except for health checks. Reloaded when it changes.",
        PATH,
    )
    request_memory_limit: int = _flag(
        0,
        "Server",
        "Maximum bytes of all request bodies in memory, on all ports; requests over it are refused with the advice to "
        "retry. 0 for a quarter of the free memory at start, at least 256 MiB.",
        BYTES,
    )
    event_log_bytes: int = _flag(
        64 << 20,
        "Server",
        "Maximum bytes of the event log in memory, which explains the time of requests: about 180,000 of the last "
        "requests with their batches. Grows as they come; 0 for none.",
        BYTES,
    )

    log_verbose: int = _flag(0, "Logging", "Verbosity: 0 for none, 1 for requests, instances and polls.", LEVEL)
    log_info: bool = _flag(True, "Logging", "Log at level info.")
    log_warning: bool = _flag(True, "Logging", "Log at level warning.")
    log_error: bool = _flag(True, "Logging", "Log at level error.")
    log_format: Literal["default", "ISO8601", "json"] = _flag(
        "default", "Logging", "Format of the start of a line; json for one object per line."
    )
    log_requests: Literal["off", "errors", "all"] = _flag(
        "off", "Logging", "Log a line with times and sizes for each request, or each failed one."
    )
    log_file: str = _flag("", "Logging", "Append the log to this file instead of writing it to stderr.", PATH)

    model_repository: tuple[str, ...] = _flag(
        (),
        "Model repository",
        "Directory of models, its s3, gs, as, oci or http URL, or a Python file.",
        PATH,
        repeatable=True,
        aliases=("model-store",),
    )
    model_dir: str = _flag(
        "",
        "Model repository",
        "Directory of one model without the folders of a repository, such as only model.onnx; KServe mounts such ones. "
        "A file of a model or a repository is served too.",
        PATH,
        aliases=("model_dir",),
    )
    model_name: str = _flag(
        "",
        "Model repository",
        "Name of the model in --model-dir; the name of the directory if not given.",
        aliases=("model_name",),
    )
    model_dir_wait_secs: int = _flag(
        0,
        "Model repository",
        "Seconds to wait for --model-dir to exist, as needed with KServe's modelcars.",
        SECONDS,
    )
    allow_pickled_models: bool = _flag(
        False,
        "Model repository",
        "Serve model.joblib and other pickles in --model-dir, in a Python process. A pickle can run any code.",
    )
    repository_cache: str = _flag(
        "",
        "Model repository",
        "Directory for copies of remote repositories; by default conch/repositories in the user's cache.",
        PATH,
    )
    repository_cache_limit: int = _flag(
        DEFAULT_CACHE_LIMIT_BYTES,
        "Model repository",
        "Maximum bytes on disk for the copies of one remote repository; 0 for no limit. A twentieth of the disk, at "
        "most 1 GiB, always stays free.",
        BYTES,
    )
    repository_verify_key: str = _flag(
        "",
        "Model repository",
        "Public key (PEM, such as cosign.pub) that must have signed the images of oci:// repositories.",
        PATH,
    )
    model_control_mode: Literal["none", "poll", "explicit"] = _flag(
        "none",
        "Model repository",
        "none: load all models at start. poll: also apply changes of the repository. explicit: load the models of "
        "--load-model at start, others when a client requests it.",
    )
    repository_poll_secs: int = _flag(
        15, "Model repository", "Seconds between polls of the repository, in mode poll.", SECONDS_ABOVE_ZERO
    )
    load_model: tuple[str, ...] = _flag(
        (), "Model repository", "Model to load at start, in mode explicit; '*' for all.", repeatable=True
    )
    model_config_name: str = _flag(
        "", "Model repository", "Name of configurations: <model>/configs/<name>.pbtxt instead of config.pbtxt."
    )
    default_max_queue_size: int = _flag(
        16384,
        "Model repository",
        "Maximum queued requests of a model whose configuration has no max_queue_size; 0 for no limit, as in Triton.",
        COUNT,
    )
    idle_unload_secs: int = _flag(
        0,
        "Model repository",
        "Seconds without a request after which the engine of a language model stops until the next request, unless the "
        "model has a parameter idle_unload_secs; 0 for never.",
        SECONDS,
    )
    model_load_thread_count: int = _flag(
        4, "Model repository", "Maximum number of models that load at the same time.", AT_LEAST_ONE
    )
    model_load_retry_count: int = _flag(0, "Model repository", "Number of retries of a failed load.", COUNT)
    disable_auto_complete_config: bool = _flag(
        False, "Model repository", "Require complete configurations of models.", bare=True
    )
    model_namespacing: bool = _flag(
        False,
        "Model repository",
        "Allow models of the same name in several repositories; calls between models prefer the same repository.",
    )
    allow_native_extensions: bool = _flag(
        False,
        "Model repository",
        "Allow models to load libraries from their folders into the server process: "
        "op_library_filename of onnxruntime, CPU_EXTENSION_PATH of OpenVINO, plug-ins of accelerators.",
    )
    strict_readiness: bool = _flag(True, "Model repository", "Report readiness only if all models are available.")

    allow_http: bool = _flag(True, "HTTP", "Listen for HTTP requests.")
    http_address: str = _flag("0.0.0.0", "HTTP", "Address to listen on.")  # noqa: S104 - Triton's default
    http_port: int = _flag(8000, "HTTP", "Port to listen on; 0 for any free port.", PORT)
    reuse_http_port: bool = _flag(False, "HTTP", "Share the port with other servers that also set this.")
    http_max_input_size: int = _flag(
        67108864, "HTTP", "Maximum bytes of a JSON or decompressed body.", BYTES_ABOVE_ZERO
    )
    docs_remote: bool = _flag(
        False, "HTTP", "Allow clients on other machines to open /docs, the page that lists endpoints."
    )
    debug_remote: bool = _flag(
        False,
        "HTTP",
        "Allow clients on other machines to call /v2/debug where neither API keys nor a restriction protect it.",
    )
    http_header_forward_pattern: str = _flag(
        "", "HTTP", "Forward headers with matching names as request parameters, except credentials.", PATTERN
    )
    http_restricted_api: tuple[str, ...] = _flag(
        (), "HTTP", "Endpoints that require this header.", RESTRICTION, repeatable=True, separator=";"
    )

    http_use_ssl: bool = _flag(False, "HTTP", "Serve the HTTP and OpenAI ports over TLS.")
    http_use_ssl_mutual: bool = _flag(False, "HTTP", "Serve over TLS and require a certificate from clients.")
    http_server_cert: str = _flag("", "HTTP", "PEM file of the server's certificate; reloaded when it changes.", PATH)
    http_server_key: str = _flag("", "HTTP", "PEM file of the server's key; reloaded when it changes.", PATH)
    http_root_cert: str = _flag("", "HTTP", "PEM file of the certificate authority of the clients.", PATH)

    allow_grpc: bool = _flag(True, "gRPC", "Listen for gRPC requests.")
    grpc_address: str = _flag("0.0.0.0", "gRPC", "Address to listen on.")  # noqa: S104 - Triton's default
    grpc_port: int = _flag(8001, "gRPC", "Port to listen on; 0 for any free port.", PORT)
    reuse_grpc_port: bool = _flag(False, "gRPC", "Share the port with other servers that also set this.")
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = _flag(
        "none", "gRPC", "Compression of inference responses."
    )
    grpc_header_forward_pattern: str = _flag(
        "", "gRPC", "Forward metadata with matching keys as request parameters, except credentials.", PATTERN
    )
    grpc_restricted_protocol: tuple[str, ...] = _flag(
        (), "gRPC", "Calls that require this metadata.", RESTRICTION, repeatable=True, separator=";"
    )
    grpc_use_ssl: bool = _flag(False, "gRPC", "Serve over TLS.")
    grpc_use_ssl_mutual: bool = _flag(False, "gRPC", "Serve over TLS and require a certificate from clients.")
    grpc_server_cert: str = _flag("", "gRPC", "PEM file of the server's certificate; reloaded when it changes.", PATH)
    grpc_server_key: str = _flag("", "gRPC", "PEM file of the server's key; reloaded when it changes.", PATH)
    grpc_root_cert: str = _flag("", "gRPC", "PEM file of the certificate authority of the clients.", PATH)
    grpc_keepalive_time: int = _flag(7200000, "gRPC", "Milliseconds between keep-alive pings.", MILLISECONDS)
    grpc_keepalive_timeout: int = _flag(
        20000, "gRPC", "Milliseconds to wait for the acknowledgement of a ping.", MILLISECONDS
    )
    grpc_keepalive_permit_without_calls: bool = _flag(False, "gRPC", "Send pings also without calls in flight.")
    grpc_http2_max_pings_without_data: int = _flag(
        2, "gRPC", "Maximum pings without data in between; 0 for no limit.", COUNT
    )
    grpc_http2_min_recv_ping_interval_without_data: int = _flag(
        300000, "gRPC", "Minimum milliseconds between a client's pings without data.", MILLISECONDS
    )
    grpc_http2_max_ping_strikes: int = _flag(
        2, "gRPC", "Maximum pings of a client that are too early; 0 for no limit.", COUNT
    )
    grpc_max_connection_age: int = _flag(
        0, "gRPC", "Maximum age of a connection in milliseconds; 0 for no limit.", MILLISECONDS
    )
    grpc_max_connection_age_grace: int = _flag(
        0,
        "gRPC",
        "Milliseconds to wait for the calls of a connection over its maximum age; 0 for no limit.",
        MILLISECONDS,
    )

    allow_metrics: bool = _flag(True, "Metrics", "Serve metrics for Prometheus.")
    allow_cpu_metrics: bool = _flag(True, "Metrics", "Export metrics of the CPU and its memory.")
    allow_gpu_metrics: bool = _flag(
        True, "Metrics", "Export metrics of GPUs and other accelerators, where there are any."
    )
    dcgm_names: str = _flag(
        "off",
        "Metrics",
        "Export metrics of NVIDIA GPUs under DCGM's names too: those before DCGM 4.7 (legacy), those since, or both.",
        DCGM_NAMES,
    )
    host_proc: str = _flag(
        "",
        "Metrics",
        "Folder with /proc of the machine, for accelerator metrics by model in a container with its own process ids.",
        PATH,
    )
    metrics_address: str = _flag("", "Metrics", "Address to listen on; --http-address if not given.")
    metrics_port: int = _flag(8002, "Metrics", "Port to listen on; 0 for any free port.", PORT)
    metrics_use_ssl: bool = _flag(
        False, "Metrics", "Serve metrics over TLS, with the files of --http-server-cert and --http-server-key."
    )
    metrics_interval_ms: int = _flag(
        2000, "Metrics", "Milliseconds between measurements of the machine.", MILLISECONDS_ABOVE_ZERO
    )
    metrics_config: tuple[tuple[str, MetricsValue], ...] = _flag(
        (),
        "Metrics",
        "Kinds of latency metrics, quantiles of summaries, export to an OpenTelemetry collector, and a file of "
        "declared metrics.",
        METRICS_SETTING,
        repeatable=True,
    )

    limits_file: str = _flag(
        "",
        "Limits",
        "YAML file of limits of requests and tokens per second; read again within 2 seconds of a change.",
        PATH,
    )
    limits_kubernetes: bool = _flag(
        False,
        "Limits",
        "Read limits from annotations (max_qps, conch.ai/...) of the Deployment or other object that owns this pod.",
    )
    limits_tenant_header: str = _flag(
        "",
        "Limits",
        "Header, or gRPC metadata, with the tenant of a request; set by a trusted proxy. Without it the tenant is the "
        "name of the API key.",
    )
    limits_admin_remote: bool = _flag(
        False,
        "Limits",
        "Allow clients on other machines to call /v2/limits where neither API keys nor a restriction protect it.",
    )
    limits_audit_log: str = _flag(
        "", "Limits", "File to which changes of limits are appended as hash-chained JSON lines.", PATH
    )
    limits_audit_retention_days: int = _flag(
        180, "Limits", "Days to keep rotated files of --limits-audit-log.", DAYS_ABOVE_ZERO
    )
    limits_measure: bool = _flag(
        False, "Limits", "Measure requests and tokens per second also while there are no limits."
    )

    incident_dir: str = _flag(
        "",
        "Incidents",
        "Folder for bundles that the server writes at an incident: events, metrics, configurations, log. "
        "docs/incidents.md says what is one.",
        PATH,
    )
    incident_keep: int = _flag(10, "Incidents", "Bundles in --incident-dir; older ones are removed.", AT_LEAST_ONE)
    incident_interval_secs: int = _flag(
        300, "Incidents", "Seconds between bundles of incidents that the server finds; later ones are noted.", SECONDS
    )
    incident_p99_ms: int = _flag(
        0, "Incidents", "Budget of a model's P99 over 30 seconds; above it is an incident. 0: none.", MILLISECONDS
    )
    incident_failures: int = _flag(
        50, "Incidents", "Failed requests of a model in 10 seconds that are an incident. 0: none.", COUNT
    )
    incident_requests: Literal["shapes", "hashed", "sampled", "whole"] = _flag(
        "shapes",
        "Incidents",
        "What bundles have of the last requests: shapes, keyed hashes of inputs, one of 100 requests whole, or all.",
    )
    incident_redact: str = _flag(
        "",
        "Incidents",
        "Patterns of keys in JSON, and of inputs, whose values bundles do not have, besides *password*, *secret* and "
        "similar ones: such as content or messages.content.",
        WORDS,
    )

    model_env_allow: tuple[str, ...] = _flag(
        (),
        "Backends",
        "Shell pattern of environment variables that model and engine processes inherit, such as AWS_*; by default all "
        "but CONCH_*. PATH, HOME, locale, PYTHON* and similar ones are always inherited.",
        repeatable=True,
        separator=";",
    )
    model_env_deny: tuple[str, ...] = _flag(
        (),
        "Backends",
        "Shell pattern of environment variables that model and engine processes do not inherit; has precedence over "
        "--model-env-allow.",
        repeatable=True,
        separator=";",
    )
    process_debugging: bool = _flag(
        False,
        "Backends",
        "Allow debuggers and core dumps of the server. Its memory, with keys and requests, is then readable for "
        "processes of the same user, including models.",
    )
    backend_config: tuple[BackendSetting, ...] = _flag(
        (),
        "Backends",
        "Setting of one backend, or without a name of all backends.",
        BACKEND_SETTING,
        repeatable=True,
        separator=";",
    )

    cache_config: tuple[CacheSetting, ...] = _flag(
        (),
        "Response cache",
        "Cache for responses of models with response_cache: its size in bytes, or settings of a Redis.",
        CACHE,
        repeatable=True,
        separator=";",
    )
    response_cache_byte_size: int = _flag(
        0, "Response cache", "Deprecated form of --cache-config=local,size=<bytes>.", CACHE_SIZE
    )

    allow_client_shm: bool = _flag(False, "Memory and devices", "Allow clients to register shared memory for tensors.")
    client_shm_prefix: str = _flag(
        "",
        "Memory and devices",
        "Start of the names of the objects in /dev/shm that clients may register, without the slash; any if not given.",
    )

    host_policy: tuple[HostPolicySetting, ...] = _flag(
        (),
        "Memory and devices",
        "Cores of the instances whose group names the policy in host_policy; without it, 'cpu' and 'gpu_<id>'.",
        HOST_POLICY,
        repeatable=True,
        separator=";",
    )

    model_load_gpu_limit: tuple[tuple[int, float], ...] = _flag(
        (),
        "Memory and devices",
        "Fraction of a GPU's memory above which, after its load, a model is refused.",
        GPU_LIMIT,
        repeatable=True,
    )

    min_supported_compute_capability: str = _flag(
        "6.0",
        "Memory and devices",
        "Minimum compute capability of GPUs; others are not used.",
        COMPUTE_CAPABILITY,
    )

    trace_config: tuple[TraceSetting, ...] = _flag(
        (), "Tracing", "Levels, rate and destination of traces.", TRACE_SETTING, repeatable=True, separator=";"
    )

    rate_limit: Literal["off", "execution_count"] = _flag(
        "off", "Rate limiter", "execution_count: limit concurrent executions by resources of instances."
    )
    rate_limit_resource: tuple[ResourceLimit, ...] = _flag(
        (),
        "Rate limiter",
        "Available units of a resource, on all devices or one. With this flag, models can only use named resources.",
        RESOURCE_LIMIT,
        repeatable=True,
    )

    allow_sagemaker: bool = _flag(False, "Cloud endpoints", "Listen for requests of Amazon SageMaker.")
    sagemaker_port: int = _flag(8080, "Cloud endpoints", "Port of SageMaker's requests; 0 for any free port.", PORT)
    sagemaker_safe_port_range: str = _flag(
        "", "Cloud endpoints", "Ports that the other endpoints may use beside SageMaker's.", PORT_RANGE
    )
    allow_vertex_ai: bool = _flag(
        False, "Cloud endpoints", "Listen for requests of Vertex AI; true by default where AIP_MODE is PREDICTION."
    )
    vertex_ai_port: int = _flag(
        8080, "Cloud endpoints", "Port of Vertex AI's requests; AIP_HTTP_PORT by default where it is set.", PORT
    )
    vertex_ai_default_model: str = _flag(
        "", "Cloud endpoints", "Model of requests to Vertex AI that name none; the only model if not given."
    )

    # Not a flag: variables that hosting platforms set, see `checks.py`.
    platform_variables: tuple[tuple[str, str], ...] = ()
    # Not flags: messages of the parser for the log; ports to try if one is in use, from the given one on; what the user
    # named, if not the repositories; whether clients may unload models outside of mode explicit.
    notices: tuple[str, ...] = ()
    port_attempts: int = 1
    source: str = ""
    unloads: bool = False

    def __post_init__(self) -> None:
        """Derive options from others."""
        if not self.metrics_address:
            object.__setattr__(self, "metrics_address", self.http_address)
        if self.grpc_use_ssl_mutual:
            object.__setattr__(self, "grpc_use_ssl", True)
        if self.http_use_ssl_mutual:
            object.__setattr__(self, "http_use_ssl", True)

    def __repr__(self) -> str:
        """Show options that differ from their defaults, without secrets."""
        shown = (option for option in fields(self) if getattr(self, option.name) != option.default)
        return f"ServerOptions({', '.join(f'{option.name}={self._shown(option)}' for option in shown)})"

    def _shown(self, option: Field[Any]) -> str:
        kind = option.metadata.get("flag", {}).get("kind")
        return "..." if kind is not None and kind.secret else repr(getattr(self, option.name))

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Return the settings of one backend by key; those for all backends have a lower precedence."""
        general = {setting.key: setting.value for setting in self.backend_config if not setting.backend}
        return general | {setting.key: setting.value for setting in self.backend_config if setting.backend == backend}

    @property
    def strict_reasons(self) -> frozenset[str]:
        """The reasons of degradations that --strict refuses; `STRICT_ALL` for all."""
        return frozenset() if self.strict == "false" else frozenset(self.strict.split(","))

    @property
    def cache_bytes(self) -> int:
        """Size of the response cache; 0 for none."""
        sizes = [setting.size for setting in self.cache_config if setting.size is not None]
        return sizes[-1] if sizes else self.response_cache_byte_size

    @property
    def redis_settings(self) -> dict[str, str]:
        """The settings of the response cache in Redis; empty without one."""
        return {setting.key: setting.value for setting in self.cache_config if setting.cache == "redis"}

    @property
    def policy_cores(self) -> dict[str, frozenset[int]]:
        """The cores of each host policy: those of cpu-cores, else of its NUMA node. Reads the machine's nodes."""
        settings = {(setting.policy, setting.key): setting.value for setting in self.host_policy}
        return {
            policy: read_core_list(value) if key == "cpu-cores" else node_cores(int(value))
            for (policy, key), value in settings.items()
            if key == "cpu-cores" or (policy, "cpu-cores") not in settings
        }

    @property
    def min_compute_capability(self) -> tuple[int, int]:
        """Major and minor number of `--min-supported-compute-capability`."""
        major, _, minor = self.min_supported_compute_capability.partition(".")
        return int(major), int(minor or 0)

    @property
    def metrics(self) -> MetricsConfig:
        """The settings in `--metrics-config`, the last of each."""
        settings: dict[str, Any] = dict(self.metrics_config)
        return MetricsConfig(**settings)


# Without a field: the parser sets disable_auto_complete_config.
STRICT_MODEL_CONFIG = Flag(
    "strict-model-config",
    "Deprecated",
    "Deprecated form of --disable-auto-complete-config.",
    BOOLEAN,
    default=False,
)

OWN_FLAGS = declared_flags(ServerOptions)
FLAGS: tuple[Flag, ...] = (*OWN_FLAGS, *TRITON_ONLY_FLAGS, *DEPRECATED_FLAGS, STRICT_MODEL_CONFIG)
