"""OpenMetrics of a running server: negotiation, exemplars that lead to traces, and a scrape by a real Prometheus."""

import gzip
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from conch.domain.metrics.catalog import all_metrics
from tests.server.clients import Client
from tests.server.collector import Collector
from tests.support.models import tensor, write_ensemble, write_identity
from tests.support.prometheus import Prometheus
from tests.support.server_process import ConchProcess

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def conch(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("openmetrics")
    write_identity(root / "models", "copy")
    write_ensemble(
        root / "models",
        "pipeline",
        f"input [{tensor('INPUT0', 'FP32', -1)}]",
        f"output [{tensor('OUTPUT0', 'FP32', -1)}]",
        ("copy", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}),
    )
    settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={collector.url}")
    settings += ("opentelemetry,bsp_schedule_delay=50",)
    flags = [*(f"--trace-config={setting}" for setting in settings), "--metrics-config=summary_latencies=true"]
    with ConchProcess(root / "models", *flags, log=root / "log") as running:
        with Client(running, "http") as client:
            client.ask("pipeline", ARRAY)
        yield running


def get(conch: ConchProcess, **headers: str) -> tuple[str, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{conch.ports['metrics']}/metrics", headers=names)
    with urllib.request.urlopen(request, timeout=30) as response:
        body = response.read()
        if response.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return response.headers["Content-Type"], body


def test_the_format_is_chosen_by_the_client(conch: ConchProcess) -> None:
    kind, body = get(conch, Accept=OPENMETRICS, Accept_Encoding="gzip")
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"nv_inference_count", "conch_rejected_requests", "conch_request_duration_seconds"} <= names
    kind, body = get(conch, Accept="*/*")
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body


def test_exemplars_are_traces_that_the_collector_has(conch: ConchProcess, collector: Collector) -> None:
    _, body = get(conch, Accept=OPENMETRICS)
    exemplars = {
        sample.labels["model"]: sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(body.decode())
        if family.name == "conch_request_duration_seconds"
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert set(exemplars) == {"copy", "pipeline"}
    traces = {span.trace for span in collector.until(4)}
    assert set(exemplars.values()) == traces


def test_prometheus_scrapes_every_family(conch: ConchProcess, tmp_path: Path) -> None:
    target = {"static_configs": [{"targets": [f"127.0.0.1:{conch.ports['metrics']}"]}], "job_name": "conch"}
    with Prometheus(tmp_path, jobs=[target]) as prometheus:
        (up,) = prometheus.until('up{job="conch"} == 1')
        assert up.value == 1
        (count,) = prometheus.until('nv_inference_count{model="copy"}')
        assert count.value == 1
        assert prometheus.until('conch_request_duration_seconds_bucket{le="1.0",model="copy"}')[0].value == 1
        assert prometheus.until('rate(conch_received_bytes_total{protocol="metrics"}[10s])')[0].value > 0
        metadata = prometheus.get("metadata")
    _, body = get(conch)
    shown = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    # Prometheus's metadata of OpenMetrics counters have the names of families, without `_total`.
    assert {name if name in metadata else name.removesuffix("_total") for name in shown} <= set(metadata)
    assert shown <= set(all_metrics())
