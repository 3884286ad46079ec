"""The metrics of a running server under mixed load, held against the catalogue and against what has happened."""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from time import monotonic, sleep

import numpy as np
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from conch.domain.metrics.catalog import all_metrics, areas
from tests.server.clients import Client
from tests.support.models import ECHO, tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
IO = f"input [{tensor('INPUT0', 'FP32', -1)}] output [{tensor('OUTPUT0', 'FP32', -1)}]"
SLOW = "time.sleep(float(request.inputs()[0].as_numpy()[0]))\n" + ECHO
LEAKING = "self.leak = getattr(self, 'leak', []) + [b'x' * 20_000_000]\n" + ECHO
DYING = "os.kill(os.getpid(), 9)"
BUCKETS = """
model_metrics {
  metric_control {
    metric_identifier { family: "conch_request_duration_seconds" }
    histogram_options { buckets: [ 0.5, 7 ] }
  }
}
"""
PAST = "2020-01-01T00:00:00Z"
# Labels that any series may have, besides those of its definition.
OF_PARTS = {"le", "quantile"}


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("metrics")
    models = root / "models"
    write_identity(models, "copy", extra="metric_tags { key: 'team' value: 'a' }" + BUCKETS)
    write_python(models, "cached", f"response_cache {{ enable: true }} {IO}", ECHO)
    write_python(models, "slow", IO, SLOW)
    write_python(models, "leaking", IO, LEAKING)
    write_python(models, "dying", IO, DYING)
    write_ensemble(
        models,
        "pipeline",
        f"input [{tensor('INPUT0', 'FP32', -1)}]",
        f"output [{tensor('OUTPUT0', 'FP32', -1)}]",
        ("copy", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}),
    )
    write_scripted(models, "talker", {"rules": [], "max_adapters": 1})
    flags = [
        "--cache-config=local,size=100000",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=summary_latencies=true",
        "--metrics-interval-ms=100",
        "--http-restricted-api=statistics:admin-key=secret",
        "--grpc-restricted-protocol=statistics:admin-key=secret",
    ]
    with ConchProcess(models, *flags, log=root / "log") as running:
        load(running)
        yield running


def load(conch: ConchProcess) -> None:
    """Send requests that succeed, fail and are refused, by both protocols."""
    for protocol in ("http", "grpc"):
        with Client(conch, protocol) as client:
            for model in ("copy", "pipeline", "cached", "cached"):
                client.ask(model, ARRAY)
            for model in ("dying", "missing"):
                with pytest.raises(InferenceServerException):
                    client.ask(model, ARRAY)
            with pytest.raises(InferenceServerException):  # restricted
                client.client.get_inference_statistics("copy")
    body = b'{"model": "talker", "prompt": "x", "max_tokens": 3}'
    request = urllib.request.Request(f"http://{conch.http}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def families(conch: ConchProcess) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(conch.metrics())}


def value(conch: ConchProcess, name: str, **labels: str) -> float:
    """Return the sum of the series of this name that have these labels."""
    return sum(
        sample.value
        for family in families(conch).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline
        sleep(0.05)


def test_the_exposition_is_that_of_the_catalogue(conch: ConchProcess) -> None:
    until(lambda: value(conch, "conch_process_resident_memory_bytes") > 0)
    text = conch.metrics()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    catalogue = all_metrics()
    assert set(kinds) <= set(catalogue)
    assert {name: catalogue[name].kind for name in kinds} == kinds
    for family in text_string_to_metric_families(text):
        metric = catalogue[family.name if family.name in catalogue else f"{family.name}_total"]
        for sample in family.samples:
            labels = {name for name in sample.labels if not name.startswith("_")} - OF_PARTS
            assert set(metric.labels) <= labels <= {*metric.labels, *metric.optional_labels}, sample
        assert family.documentation == metric.help


def test_every_metric_of_the_server_appears(conch: ConchProcess) -> None:
    until(lambda: value(conch, "conch_process_resident_memory_bytes") > 0)
    body = json.dumps({"model": "talker", "prompt": "Hello", "unknown": 1}).encode()  # its counter begins with it
    with urllib.request.urlopen(f"http://{conch.http}/v1/completions", body, timeout=60) as answer:
        assert answer.headers["X-Conch-Ignored"] == "unknown"
    late = urllib.request.Request(f"http://{conch.http}/v1/completions", body, {"X-Request-Deadline": PAST})
    with pytest.raises(urllib.error.HTTPError, match="504"):
        urllib.request.urlopen(late, timeout=60)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", conch.metrics(), re.MULTILINE))
    expected = {metric.name for area in ("server", "triton", "vllm") for metric in areas()[area]}
    assert expected - set(kinds) == set()


def test_endpoint_pickers_of_gateways_find_their_metrics(conch: ConchProcess) -> None:
    """Names and labels are those of the model server protocol of the Gateway API inference extension."""
    by_name = families(conch)
    assert {"nv_inference_pending_request_count", "nv_inference_exec_count"} <= {*by_name}
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert by_name[f"vllm:{name}"].type == "gauge"
    (adapters,) = by_name["vllm:lora_requests_info"].samples
    assert {"max_lora", "running_lora_adapters", "waiting_lora_adapters"} <= {*adapters.labels}
    assert adapters.value > 1e9
    assert "vllm:cache_config_info" in by_name


def test_bytes_connections_and_refusals(conch: ConchProcess) -> None:
    before = {name: value(conch, f"conch_{name}_bytes_total", protocol="http") for name in ("received", "sent")}
    unavailable = value(conch, "conch_rejected_requests_total", reason="unavailable")
    with Client(conch, "http") as client:
        client.ask("copy", {"INPUT0": np.zeros(500_000, np.float32)})
        assert value(conch, "conch_connections", protocol="http") >= 1
    for name, bytes_before in before.items():
        more = value(conch, f"conch_{name}_bytes_total", protocol="http") - bytes_before
        assert 2_000_000 < more < 2_010_000, name
    assert value(conch, "conch_received_bytes_total", protocol="grpc") > 0
    assert value(conch, "conch_rejected_requests_total", reason="forbidden") == 2
    assert value(conch, "conch_rejected_requests_total", reason="unavailable") == unavailable


def test_a_queue_has_depth_and_age_while_the_instance_is_busy(conch: ConchProcess) -> None:
    def ask() -> None:
        with Client(conch, "http") as client:
            client.ask("slow", {"INPUT0": np.array([1.5], np.float32)})

    threads = [threading.Thread(target=ask) for _ in range(4)]
    busy = value(conch, "conch_instance_busy_seconds_total", model="slow")
    for thread in threads:
        thread.start()
    until(lambda: value(conch, "conch_queue_depth", model="slow") >= 1)
    until(lambda: value(conch, "conch_queue_oldest_request_seconds", model="slow") > 0.2)
    until(lambda: value(conch, "conch_instance_busy_seconds_total", model="slow") > busy + 0.2)
    for thread in threads:
        thread.join()
    assert value(conch, "conch_queue_depth", model="slow") == 0
    assert value(conch, "conch_queue_oldest_request_seconds", model="slow") == 0
    assert value(conch, "conch_instance_busy_seconds_total", model="slow") > busy + 5.9
    assert value(conch, "conch_request_duration_seconds_count", model="slow") == 4
    assert value(conch, "conch_queue_duration_seconds_bucket", model="slow", le="0.5") < 4
    assert value(conch, "conch_instances", model="slow") == 1
    assert value(conch, "conch_model_ready", model="slow") == 1


def test_a_leaking_python_model_is_visible(conch: ConchProcess) -> None:
    name = "conch_process_resident_memory_bytes"
    until(lambda: value(conch, name, model="leaking", instance="leaking_0") > 0)
    before = value(conch, name, model="leaking")
    with Client(conch, "grpc") as client:
        for _ in range(10):
            client.ask("leaking", ARRAY)
    until(lambda: value(conch, name, model="leaking") > before + 180_000_000)
    assert value(conch, name, model="copy") == 0
    assert value(conch, "conch_process_cpu_seconds_total", model="leaking") > 0
    assert value(conch, "process_resident_memory_bytes") > 0
    assert value(conch, "process_open_fds") > 10


def test_restarts_of_processes_are_counted(conch: ConchProcess) -> None:
    until(lambda: value(conch, "conch_process_restarts_total", model="dying") >= 1)
    assert value(conch, "conch_process_restarts_total", model="copy") == 0
    assert value(conch, "conch_instances", model="talker") == 1
    assert value(conch, "conch_process_resident_memory_bytes", model="talker", instance="engine") > 0


def test_engines_report_their_device_and_context(conch: ConchProcess) -> None:
    (info,) = families(conch)["conch_engine_info"].samples
    assert info.labels == {"model": "talker", "version": "1", "device": "CPU", "context_length": "4096"}


def test_the_configuration_sets_buckets(conch: ConchProcess) -> None:
    (family,) = [family for name, family in families(conch).items() if name == "conch_request_duration_seconds"]
    bounds = {
        model: [
            sample.labels["le"]
            for sample in family.samples
            if "le" in sample.labels and sample.labels["model"] == model
        ]
        for model in ("copy", "cached")
    }
    assert bounds["copy"] == ["0.5", "7", "+Inf"]
    assert len(bounds["cached"]) == 16
