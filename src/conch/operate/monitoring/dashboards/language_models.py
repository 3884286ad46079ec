"""The dashboard of language models, with vLLM's names."""

from conch.domain.metrics import vllm
from conch.domain.metrics.metric import MetricDefinition
from conch.operate.monitoring.dashboards.measure import buckets, gauge, mean, quantile, rate, ratio
from conch.operate.monitoring.dashboards.panel import DashboardPanel, GrafanaDashboard, PanelRow, line

_LEVELS = ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
_MODEL = "model_name"


def _quantiles(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    queries = (*(line(quantile(level, metric, _MODEL), name) for level, name in _LEVELS),)
    return DashboardPanel(title, text, (*queries, line(mean(metric, _MODEL), "average")))


def _lengths(title: str, metric: MetricDefinition, text: str) -> DashboardPanel:
    return DashboardPanel(title, text, (line(buckets(metric)),), "heatmap", bucket_unit=metric.unit, interval="1m")


LANGUAGE_MODELS = GrafanaDashboard(
    "conch-llm",
    "Conch / Language models",
    "Latency, tokens and KV cache of language models; also for servers of vLLM.",
    (
        PanelRow(
            "Latency",
            (
                _quantiles(
                    "Time to first token", vllm.TIME_TO_FIRST_TOKEN, "From the receipt of a request to its first token."
                ),
                _quantiles(
                    "Inter-token latency", vllm.INTER_TOKEN_LATENCY, "Between two steps with tokens of a request."
                ),
                _quantiles("Request latency", vllm.REQUEST_LATENCY, "From the receipt of a request to its end."),
                _quantiles(
                    "Time in the queue", vllm.QUEUE_TIME, "From the receipt of a request to the engine's first step."
                ),
                _quantiles(
                    "Prefill", vllm.PREFILL_TIME, "From the engine's first step for a request to its first token."
                ),
                _quantiles("Decode", vllm.DECODE_TIME, "From a request's first token to its last."),
            ),
        ),
        PanelRow(
            "Load",
            (
                DashboardPanel(
                    "Requests in the engine",
                    "Requests that run and that wait.",
                    (
                        line(gauge(vllm.REQUESTS_RUNNING, _MODEL), "running"),
                        line(gauge(vllm.REQUESTS_WAITING, _MODEL), "waiting"),
                    ),
                ),
                DashboardPanel(
                    "Tokens",
                    "Tokens per second of prompts and answers.",
                    (
                        line(rate(vllm.PROMPT_TOKENS, _MODEL), "prompt"),
                        line(rate(vllm.GENERATION_TOKENS, _MODEL), "generated"),
                    ),
                ),
                DashboardPanel(
                    "Finished by reason",
                    "Finished sequences per second.",
                    (line(rate(vllm.REQUEST_SUCCESS, _MODEL, "finished_reason", unit="requests_per_second")),),
                ),
            ),
        ),
        PanelRow(
            "KV cache",
            (
                DashboardPanel(
                    "KV cache in use",
                    "Share of the KV cache in use. Near 1, requests wait or are preempted.",
                    (line(gauge(vllm.KV_CACHE_USAGE, _MODEL, operator="max")),),
                    steps=((0, "green"), (0.85, "orange"), (0.95, "red")),
                ),
                DashboardPanel(
                    "Prefix cache",
                    "Share of the tokens of prompts that were found in the prefix cache. Only vLLM reports it.",
                    (line(ratio(rate(vllm.PREFIX_CACHE_HITS, _MODEL), rate(vllm.PREFIX_CACHE_QUERIES, _MODEL))),),
                ),
                DashboardPanel(
                    "Preemptions",
                    "Requests per second that lost their place in the KV cache.",
                    (line(rate(vllm.PREEMPTIONS, _MODEL)),),
                ),
            ),
        ),
        PanelRow(
            "Lengths",
            (
                _lengths("Prompts", vllm.PROMPT_LENGTH, "Requests by the tokens of their prompt."),
                _lengths("Answers", vllm.GENERATION_LENGTH, "Requests by the generated tokens."),
                DashboardPanel(
                    "Time per output token",
                    "Average time from the first token to the last, per token.",
                    (line(mean(vllm.TIME_PER_OUTPUT_TOKEN, _MODEL)),),
                ),
            ),
        ),
    ),
    (
        ("model", "Model", f'label_values({vllm.REQUESTS_RUNNING.name}{{job=~"$job"}}, model_name)'),
        ("version", "Version", f'label_values({vllm.REQUESTS_RUNNING.name}{{job=~"$job"}}, version)'),
    ),
)
