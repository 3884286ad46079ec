"""What the server was told at start: one frozen value, read from flags and environment, checked once.

Every field of `ServerOptions` is a flag, under Triton's name where Triton has it: `http_port` is `--http-port` and, in
the environment, `CONCH_HTTP_PORT`. Type, default and help stand at the field and nowhere else. `option_parser` reads
them.
"""

from dataclasses import Field, dataclass, fields
from typing import Any, Literal

from conch.options.flag_field import flag_field as _flag
from conch.options.flag_values import (
    AT_LEAST_ONE,
    BACKEND_SETTING,
    BOOLEAN,
    BYTES,
    BYTES_ABOVE_ZERO,
    CACHE,
    CACHE_SIZE,
    COMPRESSION_LEVEL,
    COMPUTE_CAPABILITY,
    CONTROL_MODE,
    COUNT,
    KEY,
    LEVEL,
    LOG_FORMAT,
    LOG_REQUESTS,
    METRICS_SETTING,
    MILLISECONDS,
    MILLISECONDS_ABOVE_ZERO,
    OPTIONAL_PORT,
    PATH,
    PATTERN,
    PORT,
    RATE_LIMIT,
    RESOURCE_LIMIT,
    RESTRICTION,
    SECONDS,
    SECONDS_ABOVE_ZERO,
    TEXT,
    BackendSetting,
    ResourceLimit,
)
from conch.options.flags import Flag
from conch.options.isolation import IsolationOptions
from conch.options.trace import OLDER_FLAGS, TRACE_SETTING, TraceSetting
from conch.options.triton_only_flags import FOREIGN_FLAGS

# ---- the flags -------------------------------------------------------------------------------------------------------


# Of the summaries of latencies, Triton's.
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerOptions(IsolationOptions):
    """The options of one server. `parse` makes and checks it; made by hand it is taken as it is."""

    id: str = _flag("triton", "Server", "Name of this server in its metadata.", TEXT)
    exit_timeout_secs: int = _flag(
        30, "Server", "Seconds that requests in flight are given to finish when the server stops.", SECONDS
    )
    exit_on_error: bool = _flag(True, "Server", "Exit if a model cannot be loaded at start.", BOOLEAN)

    openai_address: str = _flag("", "OpenAI", "Address of the OpenAI port; --http-address if not given.", TEXT)
    openai_port: int = _flag(
        -1,
        "OpenAI",
        "Port for the OpenAI API, its health and metrics alone; 0 lets the system choose, -1 is none: the HTTP port "
        "always has the API.",
        OPTIONAL_PORT,
    )
    openai_api_key: tuple[str, ...] = _flag(
        (), "OpenAI", "Secret that clients of /v1 must send as bearer token; any one of several.", KEY, repeatable=True
    )
    openai_api_key_file: str = _flag(
        "", "OpenAI", "File with such keys, one in a line; read again when it changes.", PATH
    )
    lora_separator: str = _flag(
        "_lora_", "OpenAI", "What stands between a model's name and its LoRA adapter's in the OpenAI API.", TEXT
    )

    api_key_file: str = _flag(
        "",
        "Server",
        "File with lines '<name> <scope>,… <key>' (scopes infer, manage, metrics): clients of every port must send a "
        "key as bearer token, but for the server's health. Read again when it changes.",
        PATH,
    )
    request_memory_limit: int = _flag(
        0,
        "Server",
        "Bytes that request bodies may occupy at once, over all connections of all ports; requests beyond it are told "
        "to try again later. 0: a quarter of the memory that is free at start, at least 256 MiB.",
        BYTES,
    )

    log_verbose: int = _flag(0, "Logging", "Verbosity: 0 for none, 1 for requests, instances and polls.", LEVEL)
    log_info: bool = _flag(True, "Logging", "Log at level info.", BOOLEAN)
    log_warning: bool = _flag(True, "Logging", "Log at level warning.", BOOLEAN)
    log_error: bool = _flag(True, "Logging", "Log at level error.", BOOLEAN)
    log_format: Literal["default", "ISO8601", "json"] = _flag(
        "default", "Logging", "Form of a line's beginning; json: each line is an object.", LOG_FORMAT
    )
    log_requests: Literal["off", "errors", "all"] = _flag(
        "off", "Logging", "Log a line with times and sizes for each request, or each that fails.", LOG_REQUESTS
    )
    log_file: str = _flag("", "Logging", "Append the log to this file instead of writing it to stderr.", PATH)

    model_repository: tuple[str, ...] = _flag(
        (),
        "Model repository",
        "Directory with models, or its s3, gs, as, oci or http URL.",
        PATH,
        repeatable=True,
        aliases=("model-store",),
    )
    repository_cache: str = _flag(
        "",
        "Model repository",
        "Directory for copies of remote repositories; conch/repositories in the user's cache if not given.",
        PATH,
    )
    model_control_mode: Literal["none", "poll", "explicit"] = _flag(
        "none",
        "Model repository",
        "none: load everything at start. poll: also follow changes of the repository. explicit: load what --load-model "
        "names, then what clients ask for.",
        CONTROL_MODE,
    )
    repository_poll_secs: int = _flag(
        15, "Model repository", "Seconds between two looks at the repository under poll.", SECONDS_ABOVE_ZERO
    )
    load_model: tuple[str, ...] = _flag(
        (), "Model repository", "Model to load at start under explicit; '*' alone means all.", TEXT, repeatable=True
    )
    model_config_name: str = _flag(
        "", "Model repository", "Prefer <model>/configs/<name>.pbtxt to <model>/config.pbtxt.", TEXT
    )
    default_max_queue_size: int = _flag(
        16384,
        "Model repository",
        "Requests that may wait for one model where its configuration sets no max_queue_size; 0 for any number, as "
        "Triton has it.",
        COUNT,
    )
    idle_unload_secs: int = _flag(
        0,
        "Model repository",
        "Seconds without a request after which the engine of a language model is stopped until the next one, where its "
        "parameter idle_unload_secs does not say it; 0 for never.",
        SECONDS,
    )
    model_load_thread_count: int = _flag(
        4, "Model repository", "Models that are loaded at the same time.", AT_LEAST_ONE
    )
    model_load_retry_count: int = _flag(0, "Model repository", "Further attempts at a load that failed.", COUNT)
    disable_auto_complete_config: bool = _flag(
        False, "Model repository", "Serve only models whose configuration is written out in full.", BOOLEAN, bare=True
    )
    model_namespacing: bool = _flag(
        False,
        "Model repository",
        "Let models in different repositories have the same name; ensembles and models find those of their own first.",
        BOOLEAN,
    )
    allow_native_extensions: bool = _flag(
        False,
        "Model repository",
        "Let configurations name libraries in the model's folder that are loaded into the server's process: "
        "op_library_filename of onnxruntime, CPU_EXTENSION_PATH of OpenVINO, plug-ins of accelerators.",
        BOOLEAN,
    )
    strict_readiness: bool = _flag(True, "Model repository", "Report ready only if every model is available.", BOOLEAN)

    allow_http: bool = _flag(True, "HTTP", "Listen for HTTP requests.", BOOLEAN)
    http_address: str = _flag("0.0.0.0", "HTTP", "Address to listen on.", TEXT)  # noqa: S104 - Triton's default
    http_port: int = _flag(8000, "HTTP", "Port to listen on; 0 lets the system choose.", PORT)
    reuse_http_port: bool = _flag(False, "HTTP", "Share the port with other servers that set this too.", BOOLEAN)
    http_max_input_size: int = _flag(
        67108864, "HTTP", "Largest JSON or uncompressed body that is accepted, in bytes.", BYTES_ABOVE_ZERO
    )
    http_header_forward_pattern: str = _flag(
        "", "HTTP", "Headers whose names match become parameters of the request; credentials do not.", PATTERN
    )
    http_restricted_api: tuple[str, ...] = _flag(
        (), "HTTP", "Serve these endpoints only to who sends this header.", RESTRICTION, repeatable=True, separator=";"
    )

    allow_grpc: bool = _flag(True, "gRPC", "Listen for gRPC requests.", BOOLEAN)
    grpc_address: str = _flag("0.0.0.0", "gRPC", "Address to listen on.", TEXT)  # noqa: S104 - Triton's default
    grpc_port: int = _flag(8001, "gRPC", "Port to listen on; 0 lets the system choose.", PORT)
    reuse_grpc_port: bool = _flag(False, "gRPC", "Share the port with other servers that set this too.", BOOLEAN)
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = _flag(
        "none", "gRPC", "Compression of inference responses.", COMPRESSION_LEVEL
    )
    grpc_header_forward_pattern: str = _flag(
        "", "gRPC", "Metadata whose keys match become parameters of the request; credentials do not.", PATTERN
    )
    grpc_restricted_protocol: tuple[str, ...] = _flag(
        (), "gRPC", "Serve these calls only to who sends this metadata.", RESTRICTION, repeatable=True, separator=";"
    )
    grpc_use_ssl: bool = _flag(False, "gRPC", "Serve over TLS.", BOOLEAN)
    grpc_use_ssl_mutual: bool = _flag(False, "gRPC", "Serve over TLS and ask clients for a certificate.", BOOLEAN)
    grpc_server_cert: str = _flag("", "gRPC", "PEM file of the server's certificate.", PATH)
    grpc_server_key: str = _flag("", "gRPC", "PEM file of the server's key.", PATH)
    grpc_root_cert: str = _flag("", "gRPC", "PEM file of the authority that signed the clients' certificates.", PATH)
    grpc_keepalive_time: int = _flag(7200000, "gRPC", "Milliseconds between two keep-alive pings.", MILLISECONDS)
    grpc_keepalive_timeout: int = _flag(20000, "gRPC", "Milliseconds to wait for the answer to a ping.", MILLISECONDS)
    grpc_keepalive_permit_without_calls: bool = _flag(False, "gRPC", "Ping even if no call is in flight.", BOOLEAN)
    grpc_http2_max_pings_without_data: int = _flag(2, "gRPC", "Pings sent without data between; 0 for any.", COUNT)
    grpc_http2_min_recv_ping_interval_without_data: int = _flag(
        300000, "gRPC", "Milliseconds that a client must leave between two pings without data.", MILLISECONDS
    )
    grpc_http2_max_ping_strikes: int = _flag(2, "gRPC", "Early pings that a client is forgiven; 0 for any.", COUNT)
    grpc_max_connection_age: int = _flag(
        0, "gRPC", "Milliseconds that a connection may live; 0 for ever.", MILLISECONDS
    )
    grpc_max_connection_age_grace: int = _flag(
        0, "gRPC", "Milliseconds that calls get to finish on a connection past its age; 0 for ever.", MILLISECONDS
    )

    allow_metrics: bool = _flag(True, "Metrics", "Serve metrics for Prometheus.", BOOLEAN)
    allow_cpu_metrics: bool = _flag(True, "Metrics", "Serve metrics of the processor and the memory.", BOOLEAN)
    metrics_address: str = _flag("", "Metrics", "Address to listen on; --http-address if not given.", TEXT)
    metrics_port: int = _flag(8002, "Metrics", "Port to listen on; 0 lets the system choose.", PORT)
    metrics_interval_ms: int = _flag(
        2000, "Metrics", "Milliseconds for which measurements of the machine are kept.", MILLISECONDS_ABOVE_ZERO
    )
    metrics_config: tuple[tuple[str, bool | tuple[float, ...]], ...] = _flag(
        (), "Metrics", "Switch a kind of latency metrics on or off.", METRICS_SETTING, repeatable=True
    )

    backend_config: tuple[BackendSetting, ...] = _flag(
        (),
        "Backends",
        "Setting of one backend, or without its name of all.",
        BACKEND_SETTING,
        repeatable=True,
        separator=";",
    )

    cache_config: tuple[int, ...] = _flag(
        (),
        "Response cache",
        "Keep answers of models with response_cache, at most so many bytes of them; the last counts.",
        CACHE,
        repeatable=True,
        separator=";",
    )
    response_cache_byte_size: int = _flag(
        0, "Response cache", "Older name of --cache-config=local,size=<bytes>.", CACHE_SIZE
    )

    allow_client_shm: bool = _flag(
        False, "Memory and devices", "Let clients keep tensors in shared memory that they register.", BOOLEAN
    )

    min_supported_compute_capability: str = _flag(
        "6.0",
        "Memory and devices",
        "Smallest compute capability of the GPUs that models run on; others are left out.",
        COMPUTE_CAPABILITY,
    )

    trace_config: tuple[TraceSetting, ...] = _flag(
        (), "Tracing", "What is traced, how often, and where traces go.", TRACE_SETTING, repeatable=True, separator=";"
    )

    rate_limit: Literal["off", "execution_count"] = _flag(
        "off", "Rate limiter", "execution_count: instances execute when they have their resources.", RATE_LIMIT
    )
    rate_limit_resource: tuple[ResourceLimit, ...] = _flag(
        (),
        "Rate limiter",
        "Units of a resource, on every device or one. Once one is named, models cannot use others.",
        RESOURCE_LIMIT,
        repeatable=True,
    )

    # Not a flag: what the log should say about the flags once there is a log.
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Settle what follows from other options."""
        if not self.metrics_address:
            object.__setattr__(self, "metrics_address", self.http_address)
        if self.grpc_use_ssl_mutual:
            object.__setattr__(self, "grpc_use_ssl", True)

    def __repr__(self) -> str:
        """Show what is not as by default."""
        shown = (one for one in fields(self) if getattr(self, one.name) != one.default)
        return f"ServerOptions({', '.join(f'{one.name}={self._shown(one)}' for one in shown)})"

    def _shown(self, one: Field[Any]) -> str:
        secret = one.metadata and one.metadata["kind"].secret
        return "..." if secret else repr(getattr(self, one.name))

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Return the settings of one backend by key; its own win over those for all."""
        general = {one.key: one.value for one in self.backend_config if not one.backend}
        return general | {one.key: one.value for one in self.backend_config if one.backend == backend}

    @property
    def cache_bytes(self) -> int:
        """Size of the response cache; 0 if there is none."""
        return self.cache_config[-1] if self.cache_config else self.response_cache_byte_size

    @property
    def min_compute_capability(self) -> tuple[int, int]:
        """Major and minor number of `--min-supported-compute-capability`."""
        major, _, minor = self.min_supported_compute_capability.partition(".")
        return int(major), int(minor or 0)

    @property
    def counter_latencies(self) -> bool:
        """Whether latencies are exported as counters."""
        return bool(dict(self.metrics_config).get("counter_latencies", True))

    @property
    def histogram_latencies(self) -> bool:
        """Whether times to the first response are exported as histograms."""
        return bool(dict(self.metrics_config).get("histogram_latencies", False))

    @property
    def summary_latencies(self) -> bool:
        """Whether quantiles of latencies are exported."""
        return bool(dict(self.metrics_config).get("summary_latencies", False))

    @property
    def summary_quantiles(self) -> tuple[float, ...]:
        """Which quantiles, each from 0 to 1."""
        chosen = dict(self.metrics_config).get("summary_quantiles", ())
        return chosen if isinstance(chosen, tuple) and chosen else _QUANTILES


# Triton's older name of the opposite of auto-completion. It has no field: it sets another flag's.
STRICT_MODEL_CONFIG = Flag(
    "strict-model-config",
    "Deprecated",
    "true is --disable-auto-complete-config, false is the default.",
    BOOLEAN,
    default=False,
)

OWN_FLAGS: tuple[Flag, ...] = tuple(
    Flag(name=one.name.replace("_", "-"), default=one.default, **one.metadata)
    for one in fields(ServerOptions)
    if one.metadata
)
FLAGS: tuple[Flag, ...] = (*OWN_FLAGS, *FOREIGN_FLAGS, *OLDER_FLAGS, STRICT_MODEL_CONFIG)
