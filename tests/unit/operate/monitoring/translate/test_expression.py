"""What queries become, and which are refused."""

import pytest

from conch.operate.monitoring import promql
from conch.operate.monitoring.translate.dialects import Dialect, Untranslatable
from conch.operate.monitoring.translate.expression import Rewriter, original_unit
from conch.operate.monitoring.translate.variables import parse_template

LEGACY_TO_NEW: list[tuple[str, str]] = [
    ("DCGM_FI_DEV_FB_USED > 1000", "DCGM_FI_DEV_FB_USED_BYTES > 1048576000"),
    ("DCGM_FI_DEV_FB_USED > $limit", "DCGM_FI_DEV_FB_USED_BYTES > $limit * 1048576"),
    ("DCGM_FI_DEV_FB_USED * 1024 * 1024", "DCGM_FI_DEV_FB_USED_BYTES"),
    ("DCGM_FI_DEV_SM_CLOCK * 1e6", "DCGM_FI_DEV_SM_CLOCK_HERTZ"),
    ("DCGM_FI_DEV_GPU_UTIL / 100", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    (
        'DCGM_FI_DEV_GPU_TEMP{Hostname=~"$Hostname", gpu=~"${gpu:regex}"}',
        'DCGM_FI_DEV_GPU_TEMP_CELSIUS{hostname=~"$Hostname", gpu=~"${gpu:regex}"}',
    ),
    (
        "avg_over_time(DCGM_FI_DEV_GPU_UTIL[$__range:$__interval] offset $shift) < 30",
        "avg_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[$__range:$__interval] offset $shift) < 0.3",
    ),
    ("topk($k, sum by ($group) (up))", "topk($k, sum by ($group) (up))"),
    ("ln(DCGM_FI_DEV_FB_USED)", "ln(DCGM_FI_DEV_FB_USED_BYTES / 1048576)"),
    (
        "DCGM_FI_DEV_FB_USED / on (instance) group_left () machine_memory_bytes",
        "DCGM_FI_DEV_FB_USED_BYTES / on (instance) group_left () machine_memory_bytes",
    ),
    (
        'label_join(DCGM_FI_DEV_GPU_TEMP, "place", "/", "Hostname", "gpu")',
        'label_join(DCGM_FI_DEV_GPU_TEMP_CELSIUS, "place", "/", "hostname", "gpu")',
    ),
    ("DCGM_FI_DEV_FB_USED < Inf", "DCGM_FI_DEV_FB_USED_BYTES < Inf"),
]


@pytest.mark.parametrize(("before", "after"), LEGACY_TO_NEW)
def test_a_query_is_rewritten(before: str, after: str) -> None:
    template = parse_template(before)
    part = Rewriter("dcgm-legacy", "dcgm-4.7").rewrite(template.tree)
    assert template.text(part.node) == after


def test_values_can_keep_their_unit() -> None:
    part = Rewriter("dcgm-legacy", "dcgm-4.7").rewrite(promql.parse("max(DCGM_FI_DEV_GPU_UTIL)"))
    assert promql.render(original_unit(part)) == "max(DCGM_FI_DEV_GPU_UTIL_RATIO) * 100"


REFUSED: list[tuple[str, Dialect, Dialect, str, str]] = [
    ('sum({__name__=~"DCGM_.*"})', "dcgm-legacy", "dcgm-4.7", "{__name__=~'DCGM_.*'}", "select the metrics by name"),
    ("$metric > 1", "dcgm-legacy", "dcgm-4.7", "a variable", "a metric whose name is a variable"),
    (
        "DCGM_FI_DEV_FB_USED * on (Hostname) group_left () node_info",
        "dcgm-legacy",
        "dcgm-4.7",
        "Hostname",
        "the label is renamed, but",
    ),
    ("DCGM_FI_DEV_GPU_TEMP", "dcgm-legacy", "triton", "DCGM_FI_DEV_GPU_TEMP", "no counterpart in triton"),
    ("DCGM_FI_DEV_UNHEARD_OF", "dcgm-legacy", "dcgm-4.7", "DCGM_FI_DEV_UNHEARD_OF", "no counterpart in dcgm-4.7"),
    ("sum by (gpu) (DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", "triton", "gpu", "the label has no counterpart in triton"),
    ("vllm:num_requests_swapped > 0", "vllm-v0", "vllm-v1", "", "V1 preempts requests by recomputing them"),
    ("vllm:gpu_prefix_cache_hit_rate", "vllm-v0", "vllm-v1", "", "divide the rate of"),
    ("rate(gen_ai_client_token_usage_sum[5m])", "otel", "vllm-v1", "", 'must have gen_ai_token_type="input" or'),
    ("vllm:time_to_first_token_seconds", "vllm-v1", "otel", "", "no counterpart"),
    ('vllm:e2e_request_latency_seconds_bucket{le=~"0.*"}', "vllm-v1", "otel", "", ""),
    ('vllm:time_to_first_token_seconds_bucket{le=~"0.*"}', "vllm-v1", "triton", "le", "a pattern of bounds"),
]


@pytest.mark.parametrize(("query", "source", "target", "subject", "reason"), REFUSED)
def test_a_query_without_a_counterpart_is_refused(
    query: str, source: Dialect, target: Dialect, subject: str, reason: str
) -> None:
    tree = parse_template(query).tree
    rewriter = Rewriter(source, target)
    if not reason:  # the same unit: the bounds stay
        rewriter.rewrite(tree)
        return
    with pytest.raises(Untranslatable) as caught:
        rewriter.rewrite(tree)
    assert reason in str(caught.value)
    assert caught.value.subject == subject or not subject


def test_a_variable_at_an_impossible_place_is_reported() -> None:
    with pytest.raises(promql.PromqlError):
        parse_template("sum($a $b)")
