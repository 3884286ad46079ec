"""Quantiles of the last minute, against those of all values."""

import math

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conch.domain.statistics import summaries
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.domain.statistics.summaries import LatencySummaries, Summary
from conch.server.observability.metrics.families import Metrics
from conch.server.options.server_options import ServerOptions

SHARES = (0.5, 0.9, 0.99)
SECOND = 1_000_000_000


def test_quantiles_are_right_to_one_percent() -> None:
    times = np.random.default_rng(1).lognormal(13, 1, 20_000).astype(int)
    summary = Summary()
    for ns in times:
        summary.add(int(ns))
    assert summary.quantiles_us(SHARES) == pytest.approx(np.quantile(times, SHARES) / 1000, rel=0.02)
    assert (summary.count, summary.ns) == (len(times), times.sum())


def test_durations_expire_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(summaries, "monotonic_ns", lambda: now)
    summary = Summary()
    assert all(map(math.isnan, summary.quantiles_us(SHARES)))
    summary.add(1000)
    now = 30 * SECOND
    summary.add(9000)
    assert summary.quantiles_us((0, 1)) == pytest.approx([1, 9], rel=0.01)
    now = 61 * SECOND
    assert summary.quantiles_us((0, 1)) == pytest.approx([9, 9], rel=0.01)
    now = 91 * SECOND
    assert math.isnan(summary.quantiles_us((0.5,))[0])
    assert summary.count == 2


def test_they_are_exported_where_they_are_wanted() -> None:
    cached = ModelStatistics("c", 1, cached=True, summaries=LatencySummaries())
    plain = ModelStatistics("p", 1, summaries=LatencySummaries())
    for model in (cached, plain):
        model.count_success(1, total=4_000_000, queue=1000, compute_input=0, compute_infer=3_000_000, compute_output=0)
    cached.count_hit(2000, 1000)
    cached.count_miss(5000)
    options = ServerOptions(metrics_config=(("summary_latencies", True), ("summary_quantiles", (0.5,))))
    text = Metrics(statistics=lambda: [cached, plain], samples=list, options=options).render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    request = families["nv_inference_request_summary_us"]
    assert request.type == "summary"
    values = {(s.name, s.labels["model"], s.labels.get("quantile")): s.value for s in request.samples}
    assert values["nv_inference_request_summary_us", "p", "0.5"] == pytest.approx(4000, rel=0.01)
    assert values["nv_inference_request_summary_us_count", "c", None] == 2
    assert values["nv_inference_request_summary_us_sum", "p", None] == 4000
    for name in ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"):
        assert {sample.labels["model"] for sample in families[name].samples} == {"c"}
    without = Metrics(statistics=lambda: [plain], samples=list, options=ServerOptions()).render()
    assert b"summary" not in without
