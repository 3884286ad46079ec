"""Metrics sent to an OpenTelemetry collector: the same names and values as a scrape; and a collector that is gone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.domain.metrics.catalog import all_metrics
from tests.server.clients import Client
from tests.server.collector import Collector
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
MODEL = {"model": "copy", "version": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("otlp") / "models"
    write_identity(root, "copy")
    return root


@pytest.fixture(scope="module")
def collector(models: Path) -> Iterator[Collector]:
    """A collector of the metrics of a server that has executed a request."""
    with Collector() as collector:
        url = collector.url.replace("/v1/traces", "/v1/metrics")
        flags = [f"--metrics-config=otlp_endpoint={url}", "--metrics-config=otlp_interval_ms=100"]
        flags += ["--metrics-config=summary_latencies=true", "--metrics-interval-ms=100"]
        flags += ["--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
        flags += [f"--trace-config=opentelemetry,url={collector.url}"]
        with ConchProcess(models, *flags, log=models.parent / "log") as conch:
            with Client(conch, "http") as client:
                client.ask("copy", ARRAY)
            collector.until_metric(lambda metrics: _has_request(metrics) and "process_open_fds" in metrics)
        yield collector


def _has_request(metrics: dict[str, Any]) -> bool:
    metric = metrics.get("nv_inference_request_success")
    return metric is not None and metric.sum.data_points[0].as_int == 1


def labels(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_counters_and_gauges_keep_names_and_labels(collector: Collector) -> None:
    assert set(collector.metrics) <= set(all_metrics())
    assert collector.resource["service.name"] == "triton-inference-server"
    success = collector.metrics["nv_inference_request_success"]
    assert (success.sum.is_monotonic, success.sum.aggregation_temporality, success.unit) == (True, 2, "")
    (point,) = success.sum.data_points
    assert labels(point) == MODEL
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    (point,) = collector.metrics["conch_queue_depth"].gauge.data_points
    assert (labels(point), point.as_int) == (MODEL, 0)
    assert collector.metrics["process_resident_memory_bytes"].unit == "By"


def test_a_histogram_has_buckets_and_the_trace_of_a_request(collector: Collector) -> None:
    metric = collector.metrics["conch_request_duration_seconds"]
    (point,) = metric.histogram.data_points
    assert (metric.unit, point.count, sum(point.bucket_counts)) == ("s", 1, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.explicit_bounds[0] == 0.001
    (exemplar,) = point.exemplars
    (span,) = {entry.trace for entry in collector.until(1)}
    assert exemplar.filtered_attributes[0].value.string_value == span
    assert exemplar.as_double == point.sum


def test_quantiles_become_gauges(collector: Collector) -> None:
    points = collector.metrics["nv_inference_request_summary_us"].gauge.data_points
    assert {labels(point)["quantile"] for point in points} == {"0.5", "0.9", "0.95", "0.99", "0.999"}


def test_a_collector_that_is_gone_costs_one_warning_and_no_request(models: Path, tmp_path: Path) -> None:
    flags = ["--metrics-config=otlp_endpoint=http://127.0.0.1:9/v1/metrics", "--metrics-config=otlp_interval_ms=20"]
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, "grpc") as client:
        client.ask("copy", ARRAY)
        conch.until_logged("cannot send metrics to 'http://127.0.0.1:9/v1/metrics'")
        client.ask("copy", ARRAY)
    assert conch.text.count("cannot send metrics") == 1
