"""Language models: vLLM's names and buckets with any engine, for vLLM's dashboards.

Triton's metrics apply to these models too; their queue duration is the time to the first token. Some times start when
the engine schedules a request first: those of queue, prefill and inference. They are measured for finished requests if
the engine reports that moment: `openvino_genai` and `scripted` always do, `vllm` does unless `disable_log_stats` is set
in `model.json`. The label `engine` is always `0`.

vLLM 0.32 also exports metrics that are not implemented: iterations, preemptions and computed tokens per request
(`iteration_tokens_total`, `request_num_preemptions`, `request_prefill_kv_computed_tokens`), waiting requests and cached
tokens by reason or source (`…_by_reason`, `…_by_source`, `…_by_stage`), admission (`admission_rejections`,
`watermark_requests`, `corrupted_requests`), LoRA (`lora_requests_info`), and those of caches and transfers
(`external_prefix_cache_…`, `mm_cache_…`, `kv_block_…`, `kv_offload_…`, `nixl_…`, `mooncake_…`, `hisparse_…`),
speculative decoding (`spec_decode_…`), diffusion (`diffusion_…`), estimated work (`estimated_…`), sleep and weight
updates (`sleep_mode_…`, `rl_…`), tool calls and WebSockets (`tool_call_parser_…`, `websocket_…`).
"""

from functools import partial

from conch.domain.metrics.metric import MetricDefinition

_LABELS = ("model_name", "engine", "version")
_OF_MODEL = partial(MetricDefinition, labels=_LABELS)
_TOKENS = partial(_OF_MODEL, kind="counter", unit="tokens")
_SECONDS = partial(_OF_MODEL, kind="histogram", unit="seconds")
_LENGTH = partial(_OF_MODEL, kind="histogram", unit="tokens")

REQUESTS_RUNNING = _OF_MODEL("vllm:num_requests_running", "gauge", "Requests running in the engine.")
REQUESTS_WAITING = _OF_MODEL("vllm:num_requests_waiting", "gauge", "Requests waiting in the engine.")
KV_CACHE_USAGE = _OF_MODEL("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", unit="ratio")
PREFIX_CACHE_QUERIES = _TOKENS(
    "vllm:prefix_cache_queries_total", help="Tokens of prompts that were looked up in the prefix cache."
)
PREFIX_CACHE_HITS = _TOKENS(
    "vllm:prefix_cache_hits_total", help="Tokens of prompts that were found in the prefix cache."
)
PREEMPTIONS = _OF_MODEL("vllm:num_preemptions_total", "counter", "Preempted requests.")
SLEEP_STATE = MetricDefinition(
    "vllm:engine_sleep_state",
    "gauge",
    "1 for the state of the engine: awake, or discard_all if it is stopped until the next request.",
    labels=(*_LABELS, "sleep_state"),
)
CACHE_CONFIG = MetricDefinition(
    "vllm:cache_config_info",
    "gauge",
    "Size of the KV cache in labels, as far as the engine reports it. The value is 1.",
    labels=(*_LABELS, "enable_prefix_caching"),
    optional_labels=("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_memory_bytes"),
)
PROMPT_TOKENS = _TOKENS("vllm:prompt_tokens_total", help="Tokens of prompts of finished requests.")
PROMPT_TOKENS_CACHED = _TOKENS(
    "vllm:prompt_tokens_cached_total",
    help="Tokens of prompts from the prefix cache, if the engine reports them.",
)
GENERATION_TOKENS = _TOKENS("vllm:generation_tokens_total", help="Generated tokens.")
REQUEST_SUCCESS = MetricDefinition(
    "vllm:request_success_total",
    "counter",
    "Finished sequences, by reason: stop, length or abort.",
    labels=(*_LABELS, "finished_reason"),
)
TIME_TO_FIRST_TOKEN = _SECONDS(
    "vllm:time_to_first_token_seconds", help="Seconds from the receipt of a request to its first token."
)
INTER_TOKEN_LATENCY = _SECONDS(
    "vllm:inter_token_latency_seconds", help="Seconds between two steps with tokens of a request."
)
REQUEST_LATENCY = _SECONDS("vllm:e2e_request_latency_seconds", help="Seconds from the receipt of a request to its end.")
TIME_PER_OUTPUT_TOKEN = _SECONDS(
    "vllm:request_time_per_output_token_seconds",
    help="Seconds from the first token to the last, divided by the number of tokens after the first.",
)
QUEUE_TIME = _SECONDS(
    "vllm:request_queue_time_seconds",
    help="Seconds from the receipt of a request to the engine's first step for it.",
)
PREFILL_TIME = _SECONDS(
    "vllm:request_prefill_time_seconds",
    help="Seconds from the engine's first step for a request to its first token.",
)
INFERENCE_TIME = _SECONDS(
    "vllm:request_inference_time_seconds",
    help="Seconds from the engine's first step for a request to its last token.",
)
DECODE_TIME = _SECONDS("vllm:request_decode_time_seconds", help="Seconds from a request's first token to its last.")
PROMPT_LENGTH = _LENGTH("vllm:request_prompt_tokens", help="Tokens of a request's prompt.")
GENERATION_LENGTH = _LENGTH("vllm:request_generation_tokens", help="Generated tokens of a request.")
LONGEST_GENERATION = _LENGTH(
    "vllm:request_max_num_generation_tokens", help="Generated tokens of the longest sequence of a request."
)
REQUESTED_N = _OF_MODEL("vllm:request_params_n", "histogram", "Requested sequences (n).")
REQUESTED_MAX_TOKENS = _LENGTH("vllm:request_params_max_tokens", help="Requested max_tokens.")
