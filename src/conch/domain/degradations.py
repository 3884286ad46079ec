"""Degradations: how a server may run worse than its configuration asks, what each costs, and what cures it.

`REASONS` is the only list of them. Log, console table, metric, `conch doctor`, `conch ps`, response headers and
docs/degradations.md read it. A degradation is never silent: it is reported by its reason, with the detail of the case.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["server", "model", "answer"]

# Header of an answer with the reasons that concern it.
HEADER = "X-Conch-Degraded"
STRICT_ALL = "true"


@dataclass(frozen=True, slots=True)
class DegradationReason:
    """One way to run worse than asked. `costs` and `cure` are one sentence each.

    `refusable`: known when the server or a model starts, so that --strict refuses the start. Others occur later.
    """

    id: str
    scope: Scope
    costs: str
    cure: str
    refusable: bool = False


@dataclass(frozen=True, slots=True)
class Degradation:
    """A reason that holds now: of `model`, "" for the whole server; `detail` is a sentence about this case."""

    reason: str
    detail: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.detail}; {REASONS[self.reason].cure}"


def _at_start(id_: str, scope: Scope, costs: str, cure: str) -> DegradationReason:
    return DegradationReason(id_, scope, costs, cure, refusable=True)


def _later(id_: str, scope: Scope, costs: str, cure: str) -> DegradationReason:
    return DegradationReason(id_, scope, costs, cure)


_ROWS = (
    # ---- a model, when it is loaded
    _at_start("kind_gpu_on_cpu", "model", "Inference takes the CPU's time, often 10 to 100 times the GPU's.",
        "install the driver and a backend with CUDA, or set KIND_CPU"),
    _at_start("provider_fallback", "model", "The model runs on another execution provider than asked.",
        "install the onnxruntime build with this provider, or name another execution accelerator"),
    _at_start("setting_ignored", "model", "A setting of config.pbtxt has no effect.",
        "remove the setting, or use what the message names"),
    _at_start("parameter_ignored", "model", "A parameter of the model has no effect.", "remove the parameter"),
    _at_start("cache_off", "model", "Every request is executed, although response_cache is on in config.pbtxt.",
        "start the server with --cache-config=local,size=<bytes>"),
    _at_start("rate_limiter_off", "model", "Executions are not limited by the resources of the instance groups.",
        "start the server with --rate-limit=execution_count"),
    _at_start("requirements_missing", "model", "The model fails when its code imports a package that is missing.",
        "run pip install -r on the model's requirements.txt"),
    _at_start("steps_misfit", "model", "A request that reaches this step of the ensemble can fail.",
        "make the shapes of the steps fit"),
    _at_start("batch_of_one", "model", "Requests wait for a batch that never holds more than one.",
        "raise max_batch_size, or remove dynamic_batching"),
    _at_start("threads_exceed_cores", "model", "Threads wait for each other: latency rises with the number of threads.",
        "lower the thread counts of the model, or its instance count"),
    _at_start("gpu_without_warmup", "model", "The first requests wait seconds for kernels that are compiled or loaded.",
        "add model_warmup to config.pbtxt"),
    _at_start("kv_cache_reduced", "model", "Fewer sequences run at a time; others wait or are computed again.",
        "lower the configured cache, or free memory"),
    # ---- a model, while it runs
    _later("batches_never_form", "model", "Requests wait in the queue, but each is executed alone.",
        "send requests of equal shapes concurrently, or remove max_queue_delay_microseconds"),
    _later("cache_never_hit", "model", "Each request pays for a look-up and an insertion, and none is answered by it.",
        "remove response_cache from the configuration of a model whose requests do not repeat"),
    _later("cache_too_small", "model", "Responses larger than the whole cache are computed each time.",
        "raise --cache-config=local,size=<bytes>"),
    _later("process_restarted", "model", "Requests in flight failed, and the capacity was lower during the restart.",
        "see the exit status in the log, and fix the model or raise its memory limit"),
    _later("no_progress", "model", "The requests of the named instance or engine wait, and those in it may never end.",
        "find where it hangs, with py-spy dump --pid; --hang-timeout-secs replaces such a process"),
    _later("instances_missing", "model", "Fewer requests are executed at a time than the instance groups ask for.",
        "see in the log why an instance does not start"),
    _later("preempted", "model", "Sequences were computed again, because the KV cache was full.",
        "enlarge the KV cache, or lower the number of concurrent sequences"),
    _later("previous_version_served", "model", "The files of the repository are not what is served.",
        "fix what the failed load says in the log, and load the model again"),
    # ---- one answer
    _later("prompt_truncated", "answer", "The model did not see the whole prompt.",
        "shorten the prompt, raise truncate_prompt_tokens, or use a model with a longer context"),
    _later("field_ignored", "answer", "A field of the request has no effect; X-Conch-Ignored names it.",
        "remove the field, or refuse such requests with --openai-strict=true"),
    # ---- the server, when it starts
    _at_start("interpreted_build", "server", "The server is about a fifth slower with small requests.",
        "in the sources: apt-get install gcc python3-dev; CONCH_COMPILE=must pip install . (no -e)"),
    _at_start("flag_ignored", "server", "A flag or environment variable has no effect.", "remove it"),
    _at_start("backend_setting_ignored", "server", "A setting of --backend-config has no effect.",
        "correct or remove the setting"),
    _at_start("gpu_unusable", "server", "Models run without this GPU.",
        "check it with nvidia-smi, or lower --min-supported-compute-capability"),
    _at_start("one_core", "server", "Protocols and models take turns on one processor core.",
        "give the server at least 2 cores"),
    _at_start("shared_memory_small", "server", "Clients' tensors in shared memory do not fit, and are copied instead.",
        "mount a larger /dev/shm: docker run --shm-size=1g, or a memory emptyDir there"),
    _at_start("huge_pages_off", "server", "Large tensors cost a page fault for each 4 KiB.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
    _at_start("file_descriptors_low", "server", "Connections beyond the limit are refused.",
        "raise the hard limit: ulimit -Hn 65536, LimitNOFILE=65536 of systemd, or --ulimit nofile=65536 of docker"),
    _at_start("certificate_expiring", "server", "TLS connections fail when the certificate expires.",
        "renew the certificate of --grpc-server-cert and restart the server"),
    # ---- the server, while it runs
    _later("cpu_throttled", "server", "The kernel stops all threads for the rest of a period: latency has long tails.",
        "raise the CPU limit of the container, or lower the number of threads and instances"),
    _later("swapped", "server", "Pages of the server are read from disk when they are used.",
        "give the machine or the container more memory, or run swapoff -a"),
    _later("clock_stepped", "server", "Times of logs, traces and metrics do not match those of other machines.",
        "let chrony or systemd-timesyncd slew the clock"),
    _later("loop_blocked", "server", "Every connection waited while the event loop was blocked for over 100 ms.",
        "see in the log what blocked it"),
    _later("gpu_metrics_missing", "server", "GPU metrics are missing from /metrics.",
        "see in the log what the driver answers, and check it with nvidia-smi"),
    _later("traces_dropped", "server", "Traces are missing from the file or the collector.",
        "lower the sampling rate of --trace-config, or use a faster disk or collector"),
    _later("incident_not_written", "server", "The bundle that should explain an incident is missing.",
        "free space in --incident-dir, and let the server write there"),
    _later("log_lines_lost", "server", "Lines are missing from the log.", "free space where the log is written"),
    _later("custom_series_dropped", "server", "Custom metrics of models are missing from /metrics.",
        "see the reason in conch_custom_series_dropped and in the log"),
    _later("api_keys_stale", "server", "Removed API keys remain valid, and new ones are refused.",
        "correct the file of API keys, as the log says"),
    _later("repository_unreachable", "server", "Models are served from the cache, and changes are not seen.",
        "check the address, the network and the proxy of the remote repository"),
    _later("cache_unreachable", "server", "Every request is executed, as without a response cache.",
        "check the address, the password and the network of the Redis of --cache-config"),
)  # fmt: skip

REASONS = MappingProxyType({reason.id: reason for reason in _ROWS})
