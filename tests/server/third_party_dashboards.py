"""Which metrics well-known dashboards of others query, panel by panel. Names are facts; their JSON is not here.

`python -m tests.server.third_party_dashboards` writes the table of docs/observability/dashboards.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ForeignPanel:
    """A panel: its title, the metrics of its queries, and why it shows no data, if so. `only`: where it has data."""

    title: str
    metrics: tuple[str, ...]
    empty: str = ""
    only: str = ""


TRITON = "Triton's `deploy/k8s-onprem/dashboard.json`"
DCGM = "DCGM exporter, grafana.com 12239"
VLLM = "vLLM's `grafana.json`"
_HOPPER = "on GPUs since Hopper"
_RENAMED = "newer releases of vLLM have another name; `conch translate --from vllm-v0 --to vllm-v1`"

DASHBOARDS: dict[str, tuple[ForeignPanel, ...]] = {
    TRITON: (
        ForeignPanel("Active Triton Instances", ("nv_inference_count",)),
        ForeignPanel("Proportion of Requests by Pod", ("nv_inference_count",)),
        ForeignPanel(
            "Cumulative Inference Requests by Pod", ("nv_inference_request_success", "nv_inference_request_failure")
        ),
        ForeignPanel("Compute Time by Model", ("nv_inference_compute_infer_duration_us",)),
        ForeignPanel("Average Queue Time by Pod", ("nv_inference_queue_duration_us", "nv_inference_request_success")),
    ),
    DCGM: (
        ForeignPanel("GPU Temperature", ("DCGM_FI_DEV_GPU_TEMP",)),
        ForeignPanel("GPU Avg. Temp", ("DCGM_FI_DEV_GPU_TEMP",)),
        ForeignPanel("GPU Power Usage", ("DCGM_FI_DEV_POWER_USAGE",)),
        ForeignPanel("GPU Power Total", ("DCGM_FI_DEV_POWER_USAGE",)),
        ForeignPanel("GPU SM Clocks", ("DCGM_FI_DEV_SM_CLOCK",)),
        ForeignPanel("GPU Utilization", ("DCGM_FI_PROF_GR_ENGINE_ACTIVE",), only=_HOPPER),
        ForeignPanel("Tensor Core Utilization", ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",), only=_HOPPER),
        ForeignPanel("GPU Framebuffer Mem Used", ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE")),
    ),
    VLLM: (
        ForeignPanel("E2E Request Latency", ("vllm:e2e_request_latency_seconds_bucket",)),
        ForeignPanel("Token Throughput", ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")),
        ForeignPanel("Time Per Output Token Latency", ("vllm:time_per_output_token_seconds_bucket",), _RENAMED),
        ForeignPanel("Scheduler State", ("vllm:num_requests_running", "vllm:num_requests_waiting")),
        ForeignPanel("Time To First Token Latency", ("vllm:time_to_first_token_seconds_bucket",)),
        ForeignPanel("Cache Utilization", ("vllm:gpu_cache_usage_perc",), _RENAMED),
        ForeignPanel("Request Prompt Length", ("vllm:request_prompt_tokens_bucket",)),
        ForeignPanel("Request Generation Length", ("vllm:request_generation_tokens_bucket",)),
        ForeignPanel("Finish Reason", ("vllm:request_success_total",)),
        ForeignPanel("Queue Time", ("vllm:request_queue_time_seconds_sum",)),
        ForeignPanel(
            "Requests Prefill and Decode Time",
            ("vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"),
        ),
        ForeignPanel(
            "Max Generation Token in Sequence Group",
            ("vllm:request_max_num_generation_tokens_sum",),
        ),
    ),
}

PAGE = Path(__file__).parents[2] / "docs" / "observability" / "dashboards.md"
_BEGIN, _END = "<!-- third-party dashboards -->\n", "<!-- end of third-party dashboards -->"


def page() -> str:
    """Return the page with the table."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{chr(10).join(_rows())}\n\n{_END}{after}"


def _rows() -> Iterator[str]:
    yield "| dashboard | panels with data | panels without data |"
    yield "| --- | --- | --- |"
    for dashboard, panels in DASHBOARDS.items():
        full = ", ".join(
            f"{panel.title} ({panel.only})" if panel.only else panel.title for panel in panels if not panel.empty
        )
        empty = "; ".join(f"{panel.title} ({panel.empty})" for panel in panels if panel.empty) or "none"
        yield f"| {dashboard} | {full} | {empty} |"


if __name__ == "__main__":
    PAGE.write_text(page())
