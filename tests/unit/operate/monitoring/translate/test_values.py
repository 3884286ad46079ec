"""A translated query has the values of the original: both are evaluated by a real Prometheus."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.operate.monitoring import promql
from conch.operate.monitoring.translate.dialects import DIALECTS, Correspondence, Dialect, correspondences
from conch.operate.monitoring.translate.expression import Rewriter, original_unit
from tests.support.prometheus import Prometheus, Value
from tests.unit.operate.monitoring.translate.samples import AT, exposition, in_job, renamed

pytestmark = [pytest.mark.slow]

PAIRS = [
    (source, target)
    for source, target in itertools.permutations(DIALECTS, 2)
    if any(source in row.names and target in row.names for row in correspondences())
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"))
    server.backfill(exposition())
    with server:
        yield server


def check(prometheus: Prometheus, query: str, source: Dialect, target: Dialect) -> None:
    """Both forms have the same values, and the same labels under their new names."""
    before = promql.parse(query)
    part = Rewriter(source, target).rewrite(before)
    old = prometheus.query(promql.render(in_job(before, source)), AT)
    assert old, query
    for node, scale in ((part.node, float(part.scale)), (original_unit(part), 1.0)):
        text = promql.render(in_job(node, target))
        new = prometheus.query(text, AT)
        left = {_key(sample, source, target): sample.value * scale for sample in old}
        right = {_key(sample, target, source): sample.value for sample in new}
        assert right == pytest.approx(left, rel=1e-9), f"{query} → {text}"


def _key(value: Value, own: Dialect, other: Dialect) -> tuple[str, ...]:
    """Return the values of the labels that both dialects have: each value belongs to one label."""
    return tuple(sorted(renamed(dict(value.labels), own, other).values()))


def queries_of(row: Correspondence, dialect: Dialect) -> list[str]:
    series = row.names[dialect]
    only = ", ".join(f'{label}="{value}"' for label, value in series.only)
    name, matchers = series.name, f"{{{only}}}" if only else ""
    if row.kind == "histogram":
        return [
            f"histogram_quantile(0.9, sum by (le) (rate({name}_bucket{matchers}[5m])))",
            f"rate({name}_sum{matchers}[5m]) / rate({name}_count{matchers}[5m])",
        ]
    if row.kind == "counter":
        return [f"rate({name}{matchers}[5m])", f"increase({name}{matchers}[10m] offset 5m)"]
    return [f"{name}{matchers}", f"avg_over_time({name}{matchers}[5m]) > 0"]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_every_row_keeps_its_values(prometheus: Prometheus, source: Dialect, target: Dialect) -> None:
    rows = [row for row in correspondences() if source in row.names and target in row.names]
    for row in rows:
        for query in queries_of(row, source):
            check(prometheus, query, source, target)


@dataclass(frozen=True)
class Case:
    """A query in a dialect, and those to which it is translated."""

    query: str
    source: Dialect
    targets: tuple[Dialect, ...]


_LEGACY: tuple[Dialect, ...] = ("dcgm-4.7",)
_GPU: tuple[Dialect, ...] = ("dcgm-4.7", "conch", "triton", "otel")
_LLM: tuple[Dialect, ...] = ("vllm-v1", "otel")
_NEW: tuple[Dialect, ...] = ("dcgm-legacy",)
CASES = [
    Case("DCGM_FI_DEV_FB_USED > 22000", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_FB_USED < bool 22000", "dcgm-legacy", _GPU),
    Case("22000 < DCGM_FI_DEV_FB_USED", "dcgm-legacy", _GPU),
    Case("100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", "dcgm-legacy", _LEGACY),
    Case("DCGM_FI_DEV_FB_USED * 1024 * 1024", "dcgm-legacy", _GPU),
    Case("max(DCGM_FI_DEV_SM_CLOCK * 1000000) by (Hostname, UUID, gpu)", "dcgm-legacy", _LEGACY),
    Case("DCGM_FI_DEV_GPU_UTIL / 100", "dcgm-legacy", _GPU),
    Case("100 - DCGM_FI_DEV_GPU_UTIL", "dcgm-legacy", _GPU),
    Case("-DCGM_FI_DEV_GPU_UTIL + 100", "dcgm-legacy", _GPU),
    Case("sum without (gpu, Hostname) (DCGM_FI_DEV_GPU_UTIL) >= 0", "dcgm-legacy", _LEGACY),
    Case("count by (Hostname) (DCGM_FI_DEV_GPU_UTIL > 1)", "dcgm-legacy", _LEGACY),
    Case("stdvar(DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("stddev by (UUID) (DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("topk(1, DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("quantile(0.5, DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("max_over_time(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m])[10m:30s] offset 5m)", "dcgm-legacy", _GPU),
    Case("predict_linear(DCGM_FI_DEV_FB_USED[10m], 600)", "dcgm-legacy", _GPU),
    Case("quantile_over_time(0.9, DCGM_FI_DEV_FB_USED[10m])", "dcgm-legacy", _GPU),
    Case("clamp_max(DCGM_FI_DEV_GPU_UTIL, 50)", "dcgm-legacy", _GPU),
    Case("clamp(DCGM_FI_DEV_GPU_UTIL, 20, 60)", "dcgm-legacy", _GPU),
    Case("sqrt(DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("round(DCGM_FI_DEV_GPU_UTIL)", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL ^ 2", "dcgm-legacy", _GPU),
    Case("2 ^ DCGM_FI_DEV_GPU_UTIL", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL % 7", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL atan2 DCGM_FI_DEV_GPU_TEMP", "dcgm-legacy", _LEGACY),
    Case("DCGM_FI_DEV_GPU_UTIL + DCGM_FI_DEV_GPU_TEMP", "dcgm-legacy", _LEGACY),
    Case("DCGM_FI_DEV_GPU_TEMP / DCGM_FI_DEV_GPU_UTIL", "dcgm-legacy", _LEGACY),
    Case("1000 / DCGM_FI_DEV_GPU_UTIL", "dcgm-legacy", _LEGACY),
    Case("DCGM_FI_DEV_GPU_UTIL > 90 or vector(50)", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED > 0", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL unless DCGM_FI_DEV_FB_USED > 22000", "dcgm-legacy", _GPU),
    Case("scalar(max(DCGM_FI_DEV_GPU_UTIL)) - 5", "dcgm-legacy", _GPU),
    Case("absent(DCGM_FI_DEV_GPU_UTIL > 1e9)", "dcgm-legacy", _GPU),
    Case("count_over_time(DCGM_FI_DEV_GPU_UTIL[5m])", "dcgm-legacy", _GPU),
    Case("changes(DCGM_FI_DEV_GPU_UTIL[5m]) + 1", "dcgm-legacy", _GPU),
    Case("deriv(DCGM_FI_DEV_FB_USED[5m])", "dcgm-legacy", _GPU),
    Case("DCGM_FI_DEV_GPU_UTIL * on (gpu) group_left (Hostname) DCGM_FI_DEV_MEM_COPY_UTIL", "dcgm-legacy", _LEGACY),
    Case("avg by (hostname) (DCGM_FI_DEV_FB_USED_BYTES) / 1048576 > 22000", "dcgm-4.7", _NEW),
    Case("sum(DCGM_FI_DEV_BOARD_POWER_WATTS) + sum(rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m]))", "dcgm-4.7", _NEW),
    Case("{__name__='DCGM_FI_DEV_GPU_UTIL'} > 30", "dcgm-legacy", _GPU),
    Case(
        'label_replace(DCGM_FI_DEV_GPU_UTIL, "Hostname", "x", "Hostname", "(.*)") > 1',
        "dcgm-legacy",
        _LEGACY,
    ),
    Case(
        "histogram_quantile(0.9, sum by (le, model_name) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))) > 0.5",
        "vllm-v0",
        ("vllm-v1", "otel", "conch"),
    ),
    Case(
        "histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 0.2",
        "vllm-v1",
        ("triton", "otel", "vllm-v0"),
    ),
    Case(
        'sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.5"}[5m])) / sum(rate('
        "vllm:time_to_first_token_seconds_count[5m]))",
        "vllm-v1",
        ("triton", "otel"),
    ),
    Case("rate(vllm:prompt_tokens_total[5m]) / rate(vllm:generation_tokens_total[5m])", "vllm-v0", _LLM),
    Case("sum without (model_name) (rate(vllm:generation_tokens_total[5m]))", "vllm-v0", _LLM),
    Case("rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])", "triton", _LLM),
    Case("rate(nv_inference_request_duration_us[5m]) / 1000 > 1", "triton", ("vllm-v0", "conch", "otel")),
    Case(
        'sum by (gen_ai_request_model) (rate(gen_ai_client_token_usage_sum{gen_ai_token_type="output"}[5m]))',
        "otel",
        ("vllm-v0", "vllm-v1"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.query)
def test_nested_expressions_keep_their_values(prometheus: Prometheus, case: Case) -> None:
    for target in case.targets:
        check(prometheus, case.query, case.source, target)


_METRICS = ("GPU_UTIL", "FB_USED", "GPU_TEMP", "SM_CLOCK", "POWER_USAGE", "MEM_COPY_UTIL")
_NUMBERS = st.sampled_from(("0", "0.5", "2", "30", "100", "1000", "1024", "22000", "1e6"))
_LEAVES = st.builds("DCGM_FI_DEV_{}{}".format, st.sampled_from(_METRICS), st.sampled_from(("", " offset 5m")))
_WINDOWED = st.builds(
    "{}(DCGM_FI_DEV_{}[5m])".format,
    st.sampled_from(("avg_over_time", "delta", "deriv", "max_over_time", "count_over_time")),
    st.sampled_from(_METRICS),
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions of expressions. Those that are discontinuous in rounding errors are not among them."""
    unary = "({})", "-({})", "abs({})", "sqrt({})", "ln({})", "max_over_time(({})[5m:30s])", "topk(5, {})", "sgn({})"
    aggregated = st.sampled_from(("sum", "avg", "max", "min", "count", "group"))
    grouping = st.sampled_from(("", " by (gpu)", " by (Hostname, UUID)", " without (Hostname)"))
    arithmetic = st.sampled_from(("+", "-", "*", "/"))
    compared = st.sampled_from((">", "<=", "> bool", "< bool"))
    both = st.sampled_from(("+", "-", "*", "/", ">", "and", "or", "unless", "atan2"))
    return st.one_of(
        st.builds(lambda form, expression: form.format(expression), st.sampled_from(unary), inner),
        st.builds("{}{} ({})".format, aggregated, grouping, inner),
        st.builds("({}) {} {}".format, inner, arithmetic, _NUMBERS),
        st.builds("{} {} ({})".format, _NUMBERS, arithmetic, inner),
        st.builds("({}) {} {}".format, inner, compared, _NUMBERS),
        st.builds("({}) {} ({})".format, inner, both, inner),
        st.builds("clamp_min({}, {})".format, inner, _NUMBERS),
        st.builds("({}) ^ {}".format, inner, st.sampled_from(("0.5", "2"))),
    )


@given(query=st.recursive(st.one_of(_LEAVES, _WINDOWED), _nested, max_leaves=6))
@settings(max_examples=400, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_expression_keeps_its_values(prometheus: Prometheus, query: str) -> None:
    before = promql.parse(query)
    part = Rewriter("dcgm-legacy", "dcgm-4.7").rewrite(before)
    old = prometheus.query(promql.render(in_job(before, "dcgm-legacy")), AT)
    for node, scale in ((part.node, float(part.scale)), (original_unit(part), 1.0)):
        text = promql.render(in_job(node, "dcgm-4.7"))
        new = prometheus.query(text, AT)
        assert len(new) == len(old), f"{query} → {text}"
        left = {_key(sample, "dcgm-legacy", "dcgm-4.7"): sample.value * scale for sample in old}
        right = {_key(sample, "dcgm-4.7", "dcgm-legacy"): sample.value for sample in new}
        size = max([abs(value) for value in left.values() if math.isfinite(value)], default=0)
        assert right == pytest.approx(left, rel=1e-6, abs=1e-9 * size, nan_ok=True), f"{query} → {text}"
