"""The result of measuring: what tables, HTML, JSON, tuner and comparison read. JSON is these classes, field by field.

Times are seconds and rates are per second unless a name says otherwise. Unknown is None, never 0.
"""

from dataclasses import dataclass, field

# Keys of the settings of a certificate.
BATCH_SIZE = "batch size"  # of requests with more than one element
PERCENTILES = "percentiles"  # those of --percentile, as "85, 99.9"
SERVER_LOST = "server-lost"  # code of a note


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval of 95 %. Without enough data for an interval, `low` and `high` are None."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class TimeDistribution:
    """Of a time in seconds. `percentiles` has the keys "50", "90", "95", "99", "99.9" and those asked for."""

    count: int
    mean: Estimate
    percentiles: dict[str, Estimate]
    max: float
    histogram: tuple[tuple[float, int], ...]
    """(upper edge, count) of logarithmic buckets that are not empty, ascending."""


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Of language models."""

    source: str
    """Where counts come from: "usage" (the server's), "tokenizer", or "chunks" (a content chunk counts as a token)."""
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int | None
    input_rate: Estimate
    output_rate: Estimate
    first_token: TimeDistribution | None
    inter_token: TimeDistribution | None
    """Time per token after the first, over all tokens rather than chunks."""
    output_length: TimeDistribution | None = None
    cached_tokens: int | None = None
    """Input tokens that the server took from its prefix cache, if it says so."""
    distinct_prompts: int | None = None
    """Different requests among those that succeeded."""


@dataclass(frozen=True, slots=True)
class ResponseFigures:
    """Of tensor models that answer a request with a stream of responses."""

    count: int  # within the window
    rate: Estimate
    first: TimeDistribution | None  # time to first response
    gap: TimeDistribution | None  # time between two responses of a request


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """From the server's own metrics over the window, where it has them."""

    requests: int | None = None
    queue_s: float | None = None  # mean per request
    compute_s: float | None = None  # mean per request: input, inference and output
    compute_input_s: float | None = None
    compute_infer_s: float | None = None
    compute_output_s: float | None = None
    batch_size: float | None = None  # mean
    cache_hit_ratio: float | None = None
    cpu_cores: float | None = None  # CPU seconds per second of the server's processes
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Of one GPU over the window."""

    name: str
    uuid: str
    utilization_ratio: float | None = None  # mean
    power_watts: float | None = None  # mean
    energy_joules: float | None = None
    memory_used_bytes: int | None = None  # highest


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the load generator and its machine kept up."""

    processes: int
    cpu_ratio: float  # CPU time of the busiest generator process per wall time, 0 to 1
    cpu_cores: float  # of all its processes together
    send_lag_p50_s: float  # handed to the socket minus intended, of requests that a free connection waited for
    send_lag_p99_s: float
    loop_lag_max_s: float  # longest time in which a process did not look at its sockets
    gc_pauses: int
    gc_pause_max_s: float
    steal_ratio: float | None  # share of the machine's CPU time that its hypervisor gave to others
    throttled_s: float | None  # time that this cgroup was throttled
    pressure_ratio: float | None = None  # of the CPU, from /proc/pressure: share of time in which some process waited
    cpu_wait_ratio: float | None = (
        None  # share of time in which a process was runnable without a processor, the highest
    )
    cpu_wait_p50_s: float | None = (
        None  # such waits before an answer or chunk was read, over all of them: at most this is in its time
    )
    cpu_wait_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """The load of one measurement. `kind` is "concurrency", "rate" (requests/s), "curve" (highest rate) or "trace"."""

    kind: str
    value: float
    label: str  # as tables print it: "30", "200/s poisson", "mooncake.jsonl ×2"


@dataclass(frozen=True, slots=True)
class Note:
    """One statement on the quality of a measurement, such as "not comparable: the client was the bottleneck"."""

    code: str
    """Stable name for programs: client-bottleneck, not-steady, steal, throttled, few-samples, server-restart, …"""
    severity: str  # "invalid" (do not use the figures), "warning", "info"
    message: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One level, measured."""

    level: Level
    started_at: str  # UTC, ISO 8601
    window_s: float  # after warm-up
    warm_up_s: float
    requests: int  # that ended within the window
    outcomes: dict[str, int]  # names of RequestOutcome in lower case
    errors: tuple[tuple[str, int], ...]  # messages and how often each came, the most frequent first, at most ten
    throughput: Estimate  # successful requests per second
    latency: TimeDistribution | None  # of successful requests, from the intended time; None without a success
    service_latency: TimeDistribution | None = None  # of successful requests, from the time they were sent
    goodput: Estimate | None = None  # requests per second that met all of `slo`
    goodput_ratio: Estimate | None = None
    slo: dict[str, float] = field(default_factory=dict)  # "ttft", "itl", "latency" → seconds
    tokens: TokenFigures | None = None
    responses: ResponseFigures | None = None  # None also where each request ends with its only response
    received_bytes: int = 0
    sent_bytes: int = 0
    server: ServerFigures | None = None
    gpus: tuple[GpuFigures, ...] = ()
    client: ClientHealth | None = None
    notes: tuple[Note, ...] = ()
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Per second of the run, warm-up included, for plots: "throughput", "p50", "p99", "errors", "in_flight", …"""

    @property
    def server_lost(self) -> bool:
        """Whether the server was gone before the end."""
        return any(note.code == SERVER_LOST for note in self.notes)


@dataclass(frozen=True, slots=True)
class Effect:
    """How B differs from A in one quantity at one level."""

    quantity: str
    """"throughput", "output_rate", "goodput", "mean", "p50", "p99", "ttft_p99", "itl_p50", "error_ratio", …"""
    level: str  # label of the level
    a: Estimate
    b: Estimate
    change: Estimate
    """b / a - 1, so 0.05 is 5 % more; of "error_ratio" b - a."""
    verdict: str  # "better", "worse" or "undecided"
