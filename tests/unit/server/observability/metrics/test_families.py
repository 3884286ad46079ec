"""Families of `/metrics`: names, labels, what exists from the start, and agreement with the statistics."""

import math
import re
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from conch.base.errors import ConfigError, FailureReason
from conch.base.extras import install_command
from conch.domain.exposition import Family, Point
from conch.domain.statistics.model_statistics import (
    CacheStatistics,
    ModelState,
    ModelStatistics,
)
from conch.server.observability.metrics.custom import MAX_SERIES, MetricSample
from conch.server.observability.metrics.families import Metrics, otlp_exporter
from conch.server.options.server_options import ServerOptions

MS = 1_000_000

# Triton's families and their types, as its reference lists them.
TRITONS = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_model_load_duration_secs": "gauge",
    "nv_cpu_utilization": "gauge",
    "nv_cpu_memory_total_bytes": "gauge",
    "nv_cpu_memory_used_bytes": "gauge",
}
OF_SERVER = {
    "conch_request_duration_seconds": "histogram",
    "conch_queue_duration_seconds": "histogram",
    "conch_batch_size": "histogram",
}


def scrape(
    models: Sequence[ModelStatistics] = (),
    samples: Sequence[MetricSample] = (),
    options: ServerOptions | None = None,
) -> dict[str, Metric]:
    """Render and read back; families by the name in their TYPE line."""
    metrics = Metrics(statistics=lambda: models, samples=lambda: samples, options=options or ServerOptions())
    families = text_string_to_metric_families(metrics.render().decode())
    return {family.name: family for family in families if family.name != "conch_custom_series_dropped"}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Return the value of the one series of that name under those labels; the parser adds `_total` to a counter's."""
    (value,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name.removesuffix("_total") == name and sample.labels == labels
    ]
    return value


def busy(name: str = "m", version: int = 3) -> ModelStatistics:
    model = ModelStatistics(name, version)
    times = {"total": 9999, "queue": 1001, "compute_input": 2000, "compute_infer": 3000, "compute_output": 4000}
    model.count_success(8, **times)
    model.count_success(1, **times)
    model.count_execution(9, 0, 1, 2, 3)
    model.count_failure(5, FailureReason.BACKEND)
    model.pending = 2
    model.load_duration_s = 0.25
    return model


def test_names_and_types_are_tritons() -> None:
    families = scrape([ModelStatistics("m", 1)])
    assert {name: family.type for name, family in families.items()} == TRITONS | OF_SERVER


def test_series_exist_from_the_start_with_integral_values() -> None:
    metrics = Metrics(
        statistics=lambda: [ModelStatistics("m", 1)], samples=list, options=ServerOptions(allow_cpu_metrics=False)
    )
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith("nv_")]
    per_model = [name for name in TRITONS if not name.startswith("nv_cpu")]
    assert [line for line in lines if "reason" not in line] == [
        f'{name}{{model="m",version="1"}} 0' for name in per_model if name != "nv_inference_request_failure"
    ]
    assert [line for line in lines if "reason" in line] == [
        f'nv_inference_request_failure{{model="m",reason="{reason}",version="1"}} 0'
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    ]


def test_every_family_is_explained_once() -> None:
    metrics = Metrics(statistics=lambda: [busy("a"), busy("b")], samples=list, options=ServerOptions())
    text = metrics.render().decode()
    for name in TRITONS:
        assert text.count(f"# HELP {name} ") == text.count(f"# TYPE {name} ") == 1


def test_values_are_integral_microseconds_of_the_statistics() -> None:
    families = scrape([busy()])
    labels = {"model": "m", "version": "3"}
    assert {
        name: value(families, name, **labels) for name in TRITONS if name.startswith("nv_inf") and "fail" not in name
    } == {
        "nv_inference_request_success": 2,
        "nv_inference_count": 9,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 19,  # 2 * 9999 ns, the fraction cut off
        "nv_inference_queue_duration_us": 2,
        "nv_inference_compute_input_duration_us": 4,
        "nv_inference_compute_infer_duration_us": 6,
        "nv_inference_compute_output_duration_us": 8,
        "nv_inference_pending_request_count": 2,
    }
    assert value(families, "nv_inference_request_failure", reason="BACKEND", **labels) == 1
    assert value(families, "nv_inference_request_failure", reason="OTHER", **labels) == 0
    assert value(families, "nv_model_load_duration_secs", **labels) == 0.25


def test_versions_of_a_model_are_separate_series() -> None:
    families = scrape([busy("m", 1), ModelStatistics("m", 2)])
    assert value(families, "nv_inference_count", model="m", version="1") == 9
    assert value(families, "nv_inference_count", model="m", version="2") == 0


def test_every_model_has_a_pending_count_ensembles_too() -> None:
    families = scrape([ModelStatistics("e", 1), ModelStatistics("m", 1)])
    assert [sample.labels["model"] for sample in families["nv_inference_pending_request_count"].samples] == ["e", "m"]
    assert value(families, "nv_inference_exec_count", model="e", version="1") == 0


CACHED = {
    "nv_cache_num_hits_per_model": "counter",
    "nv_cache_hit_duration_per_model": "counter",
    "nv_cache_num_misses_per_model": "counter",
    "nv_cache_miss_duration_per_model": "counter",
    "nv_cache_util": "gauge",
    "nv_cache_num_entries": "gauge",
    "nv_cache_num_hits": "gauge",
    "nv_cache_num_misses": "gauge",
    "nv_cache_num_lookups": "gauge",
    "nv_cache_num_evictions": "gauge",
    "nv_cache_lookup_duration": "gauge",
    "nv_cache_insertion_duration": "gauge",
}


def test_a_cache_has_families_for_the_models_that_use_it_and_for_the_server() -> None:
    model, cache = ModelStatistics("m", 1, cached=True), CacheStatistics(1000, used=250, entries=1, hits=2, misses=3)
    model.count_hit(9999, 1500)
    model.count_hit(9999, 1500)
    model.cache_miss.add(5000)
    cache.lookup_ns = 7000
    metrics = Metrics(
        statistics=lambda: [model, ModelStatistics("uncached", 1)], samples=list, options=ServerOptions(), cache=cache
    )
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    assert {name: family.type for name, family in families.items() if "cache" in name} == CACHED
    labels = {"model": "m", "version": "1"}
    assert value(families, "nv_cache_num_hits_per_model", **labels) == 2
    assert value(families, "nv_cache_hit_duration_per_model", **labels) == 3
    assert value(families, "nv_cache_miss_duration_per_model", **labels) == 5
    assert value(families, "nv_inference_request_success", **labels) == 2
    assert value(families, "nv_inference_count", **labels) == 0
    assert {sample.labels["model"] for sample in families["nv_cache_num_misses_per_model"].samples} == {"m"}
    server = ("util", "num_entries", "num_hits", "num_misses", "num_lookups", "num_evictions", "lookup_duration")
    assert [value(families, f"nv_cache_{name}") for name in server] == [0.25, 1, 2, 3, 5, 0, 7]


def test_metric_tags_become_labels_with_an_underscore() -> None:
    families = scrape([ModelStatistics("m", 1, {"team": "vision", "cost-center": "7"})])
    labels = {"model": "m", "version": "1", "_team": "vision", "_cost_center": "7"}
    assert value(families, "nv_inference_count", **labels) == 0
    assert value(families, "nv_inference_request_failure", reason="OTHER", **labels) == 0


def test_series_vanish_with_their_model() -> None:
    models = [ModelStatistics("m", 1)]
    metrics = Metrics(statistics=lambda: models, samples=list, options=ServerOptions(allow_cpu_metrics=False))
    assert b'model="m"' in metrics.render()
    models.clear()
    assert b'model="m"' not in metrics.render()


def test_latency_counters_can_be_switched_off() -> None:
    options = ServerOptions(metrics_config=(("counter_latencies", False),))
    model = busy()
    model.cached = True
    counters = ("_duration_us", "_per_model")
    assert len([name for name in scrape([model]) if name.endswith(counters)]) == 9
    assert not [name for name in scrape([model], options=options) if name.endswith(counters)]


def test_metrics_of_the_machine_can_be_switched_off() -> None:
    assert scrape(options=ServerOptions(allow_cpu_metrics=False)) == {}


# ---- first responses -------------------------------------------------------------------------------------------------


def test_first_responses_are_asked_for_and_of_the_models_that_keep_them() -> None:
    decoupled, plain = ModelStatistics("d", 1), ModelStatistics("p", 1)
    decoupled.set_buckets({}, first_response=True)
    assert decoupled.first_response is not None
    for milliseconds in (1, 100, 101, 7000.7):
        decoupled.first_response.add(int(milliseconds * MS))
    name = "nv_inference_first_response_histogram_ms"
    assert name not in scrape([decoupled, plain])
    family = scrape([decoupled, plain], options=ServerOptions(metrics_config=(("histogram_latencies", True),)))[name]
    assert family.type == "histogram"
    assert {sample.labels["model"] for sample in family.samples} == {"d"}
    assert [(s.labels["le"], s.value) for s in family.samples if s.name.endswith("_bucket")] == [
        ("100", 2),
        ("500", 3),
        ("2000", 3),
        ("5000", 3),
        ("+Inf", 4),
    ]
    assert [s.value for s in family.samples if s.name.endswith("_sum")] == [7202]


# ---- what models measure themselves ----------------------------------------------------------------------------------


def sample(family: str = "requests", kind: str = "counter", count: float = 1, **labels: str) -> MetricSample:
    return MetricSample(family, "Of a model.", kind, labels, count)  # type: ignore[arg-type]


def test_custom_metrics_have_their_labels_only() -> None:
    families = scrape(samples=[sample(count=2.5, model="m"), sample("level", "gauge", -1)])
    assert (families["requests"].type, families["level"].type) == ("counter", "gauge")
    assert value(families, "requests", model="m") == 2.5
    assert value(families, "level") == -1


def test_a_custom_histogram_has_its_buckets() -> None:
    histogram = MetricSample("sizes", "Of a model.", "histogram", {"l": "x"}, 5.0, ((1.0, 2.0), (math.inf, 3.0)))
    families = scrape(samples=[histogram])
    assert value(families, "sizes_bucket", l="x", le="1") == 2
    assert value(families, "sizes_bucket", l="x", le="+Inf") == 3
    assert value(families, "sizes_count", l="x") == 3
    assert value(families, "sizes_sum", l="x") == 5


@pytest.mark.parametrize(
    "bad",
    [
        sample("no name"),
        sample("", "gauge"),
        sample("nv_inference_count"),
        sample("good", "gauge"),
        sample("good", **{"no-label": "x"}),
        sample("good", count=2),
    ],
    ids=["name", "empty name", "a name of the server", "another kind", "label", "labels twice"],
)
def test_a_sample_that_would_spoil_the_scrape_is_left_out(bad: MetricSample) -> None:
    families = scrape([busy()], [sample("good"), bad])
    assert set(families) == {*TRITONS, *OF_SERVER, "good"}
    assert [sample.value for sample in families["good"].samples] == [1]
    assert value(families, "nv_inference_count", model="m", version="3") == 9


def dropped(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.labels["reason"]: sample.value
        for family in families
        for sample in family.samples
        if family.name == "conch_custom_series_dropped"
    }


def test_ten_thousand_label_values_are_bounded_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    samples = [sample("users", user=str(number)) for number in range(10_000)]
    metrics = Metrics(statistics=list, samples=lambda: samples, options=ServerOptions(allow_cpu_metrics=False))
    for _ in range(2):
        text = metrics.render().decode()
    assert text.count("\nusers{") == MAX_SERIES
    assert dropped(metrics) == {"name": 0, "kind": 0, "labels": 0, "limit": 10_000 - MAX_SERIES}
    assert len([message for message in caplog.messages if "more than 1000 combinations" in message]) == 1


def test_clashes_are_reported_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    samples = [sample("nv_inference_count"), sample("a"), sample("a", "gauge", x="y"), sample("a", x="1"), sample("a")]
    metrics = Metrics(statistics=list, samples=lambda: samples, options=ServerOptions(allow_cpu_metrics=False))
    assert dropped(metrics) == {"name": 1, "kind": 1, "labels": 1, "limit": 0}
    assert sorted(message.split('"')[1] for message in caplog.messages) == ["a", "a", "nv_inference_count"]


# ---- the state of models ---------------------------------------------------------------------------------------------


def test_the_state_of_a_model() -> None:
    model, ensemble = busy(), ModelStatistics("e", 1)
    now = time.monotonic_ns()
    model.state = lambda: ModelState(True, 2, 7, now - 3_000_000_000, 1_500_000_000, 4)
    ensemble.state = lambda: ModelState(False)
    families = scrape([model, ensemble])
    labels = {"model": "m", "version": "3"}
    assert value(families, "conch_instances", **labels) == 2
    assert value(families, "conch_queue_depth", **labels) == 7
    assert value(families, "conch_queue_oldest_request_seconds", **labels) >= 3
    assert value(families, "conch_instance_busy_seconds", **labels) == 1.5
    assert value(families, "conch_process_restarts", **labels) == 4
    assert [sample.value for sample in families["conch_model_ready"].samples] == [1, 0]
    assert {sample.labels["model"] for sample in families["conch_queue_depth"].samples} == {"m"}


def test_histograms_of_durations_and_batch_sizes() -> None:
    families = scrape([busy()])
    labels = {"model": "m", "version": "3"}
    assert value(families, "conch_request_duration_seconds_count", **labels) == 2
    assert value(families, "conch_request_duration_seconds_bucket", le="0.001", **labels) == 2
    assert value(families, "conch_batch_size_bucket", le="8", **labels) == 0
    assert value(families, "conch_batch_size_bucket", le="16", **labels) == 1
    assert value(families, "conch_batch_size_sum", **labels) == 9


def test_export_without_the_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "conch.server.observability.metrics.otlp", None)
    options = ServerOptions(metrics_config=(("otlp_endpoint", "http://collector:4318/v1/metrics"),))
    metrics = Metrics(statistics=list, samples=list, options=options)
    with pytest.raises(ConfigError, match=re.escape(install_command("opentelemetry"))):
        otlp_exporter(options, metrics)


def test_a_collector_that_raises_costs_its_own_metrics_only(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> Iterator[Family]:
        raise OSError("the driver is gone")
        yield

    good = Family("good", "gauge", "A gauge.", [Point(1)])
    metrics = Metrics(statistics=list, samples=list, options=ServerOptions(), collectors=[failing, lambda: [good]])
    text = metrics.render().decode()
    assert "good 1" in text
    assert "conch_custom_series_dropped" in text
    assert "a metrics collector failed" in caplog.text


def test_no_piece_of_a_scrape_of_a_thousand_models_is_large() -> None:
    models = [busy(f"model_{number}") for number in range(1000)]
    for model in models:
        model.state = lambda: ModelState(True, 1)
    metrics = Metrics(statistics=lambda: models, samples=list, options=ServerOptions(allow_cpu_metrics=False))
    for pieces in (metrics.pieces, metrics.openmetrics_pieces):
        lines = [piece.count(b"\n") for piece in pieces()]
        assert sum(lines) > 60_000
        assert max(lines) <= 32 * 18 + 2  # a piece is rendered between two looks at the clock
