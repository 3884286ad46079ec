"""The cheat sheet of commands and metrics, `docs/reference/cheat-sheet.md`; `tools.commands_page` writes it."""

from pathlib import Path

from conch.base.command_line.command_table import tasks

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cheat-sheet.md"

_HEAD = """\
# Cheat sheet

[All commands](commands.md), [all metrics](metrics.md), [all flags](flags.md).
"""
# Question → PromQL. A test holds the names of metrics to those of the catalogue.
QUESTIONS = {
    "Requests per second of each model": "sum by (model) (rate(nv_inference_request_success[1m]))",
    "Failed requests per second, by reason": "sum by (model, reason) (rate(nv_inference_request_failure[1m]))",
    "99th percentile of the latency, seconds": (
        "histogram_quantile(0.99, sum by (le, model) (rate(conch_request_duration_seconds_bucket[5m])))"
    ),
    "Mean time in the queue, microseconds": (
        "rate(nv_inference_queue_duration_us[1m]) / rate(nv_inference_request_success[1m])"
    ),
    "Mean time of the model, microseconds": (
        "rate(nv_inference_compute_infer_duration_us[1m]) / rate(nv_inference_request_success[1m])"
    ),
    "Requests per execution: are batches formed?": (
        "rate(nv_inference_request_success[1m]) / rate(nv_inference_exec_count[1m])"
    ),
    "Waiting requests": "nv_inference_pending_request_count",
    "Hit rate of the response cache": (
        "rate(nv_cache_num_hits_per_model[5m]) / (rate(nv_cache_num_hits_per_model[5m])"
        " + rate(nv_cache_num_misses_per_model[5m]))"
    ),
    "What runs worse than asked": "conch_degraded == 1",
    "Tokens per second of a language model": "sum by (model_name) (rate(vllm:generation_tokens_total[1m]))",
    "95th percentile of the time to the first token": (
        "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"
    ),
    "KV cache in use, from 0 to 1": "vllm:kv_cache_usage_perc",
}


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for task, commands in tasks().items():
        parts.append(f"## {task.capitalize()}\n\n| To | Command |\n| --- | --- |")
        for name, command in commands.items():
            example = (command.examples or (f"conch {name} --help",))[0].replace("|", "\\|")
            parts.append(f"| {command.help} | `{example}` |")
        parts.append("")
    parts.append("## Metrics\n\n| Question | PromQL |\n| --- | --- |")
    parts += [f"| {question} | `{query}` |" for question, query in QUESTIONS.items()]
    return "\n".join(parts) + "\n"
