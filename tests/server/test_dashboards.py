"""Every query of every panel has data, from a real Prometheus that scrapes a real server under load."""

import json
import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.dashboards.catalog import DashboardPanel, GrafanaDashboard, PanelQuery, all_dashboards
from tests.machine.accelerators.exporter import GpuExporter
from tests.machine.accelerators.nvml import GPM, H100, VALUES, compile_library, gpu, machine_with
from tests.server.backends.onnxruntime.onnx_models import FP32
from tests.server.backends.onnxruntime.onnx_models import write_identity as write_onnx
from tests.server.exporters import exporter
from tests.server.third_party_dashboards import DASHBOARDS, PAGE, ForeignPanel, page
from tests.support.models import ECHO, tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.prometheus import Prometheus, Value
from tests.support.server_process import ConchProcess

pytestmark = [pytest.mark.slow]

VARIABLES = {"__rate_interval": "10s", "__interval": "10s", "__range": "1m", "objective": "0.999"}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")
DATA_TIMEOUT_S = 90.0
FLAKY = (
    """
if request.inputs()[0].as_numpy()[0] % 3 == 0:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("every third fails"))
"""
    + ECHO
)
LIMITS = """
limits:
  - {model: plain, requests_per_second: 5}
  - {model: onnx, requests_per_second: 5, enforced: true}
  - {model: words, requests_per_second: 1000, tokens_per_second: 100}
"""
NUMBERS = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"


def repository(root: Path) -> Path:
    """Write models of each kind."""
    batching = "dynamic_batching { max_queue_delay_microseconds: 2000 }"
    write_identity(root, "plain", "FP32", 1, batch=8, extra=batching)
    write_identity(root, "cached", "FP32", 1, extra="response_cache { enable: true }")
    write_onnx(root / "onnx", FP32, [1])
    write_python(root, "flaky", NUMBERS, FLAKY)
    write_python(root, "slow", NUMBERS, f"time.sleep(0.01)\n{ECHO}")
    write_ensemble(
        root,
        "pipeline",
        f"input {tensor('INPUT0', 'FP32', 1)}",
        f"output {tensor('OUTPUT0', 'FP32', 1)}",
        ("slow", {"INPUT0": "INPUT0"}, {"OUTPUT0": "between"}),
        ("onnx", {"IN": "between"}, {"OUT": "OUTPUT0"}),
    )
    write_scripted(root, "words", {"reply": "one two three four five", "step_ms": 2})
    return root


@contextmanager
def load(conch: ConchProcess) -> Iterator[None]:
    """Send requests of all kinds until the end."""
    stopping = threading.Event()
    threads = [threading.Thread(target=_client, args=(conch, stopping, index)) for index in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _client(conch: ConchProcess, stopping: threading.Event, index: int) -> None:
    number = 0
    with triton_grpc.InferenceServerClient(conch.grpc) as grpc:
        while not stopping.is_set():
            number += 1
            _post(conch, "/v2/models/plain/infer", _inference("INPUT0", number, 1, 1))
            for model in ("flaky", "pipeline", "slow", "cached"):
                value = number % 2 if model == "cached" else number
                _post(conch, f"/v2/models/{model}/infer", _inference("INPUT0", value, 1))
            _post(conch, "/v2/models/onnx/infer", _inference("IN", number, 1))
            _post(conch, "/v2/models/plain/infer", {"inputs": [{"name": "INPUT0", "shape": [-1]}]})
            body = {"model": "words", "prompt": f"{number} {index}", "max_tokens": 5, "n": 1}
            _post(conch, "/v1/completions", body)
            sent = triton_grpc.InferInput("INPUT0", [1, 1], "FP32")
            sent.set_data_from_numpy(np.array([[number]], np.float32))
            grpc.infer("plain", [sent])


def _inference(name: str, value: float, *shape: int) -> dict[str, object]:
    return {"inputs": [{"name": name, "datatype": "FP32", "shape": list(shape), "data": [value]}]}


def _post(conch: ConchProcess, path: str, body: dict[str, object]) -> None:
    headers = {"x-tenant": "blue"}
    request = urllib.request.Request(f"http://{conch.http}{path}", json.dumps(body).encode(), headers)
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=30) as response:
        response.read()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("dashboards")
    (folder / "limits.yaml").write_text(LIMITS)
    flags = (
        "--cache-config=local,size=1000000",
        "--metrics-interval-ms=500",
        f"--limits-file={folder / 'limits.yaml'}",
        f"--limits-audit-log={folder / 'audit.jsonl'}",
        "--limits-tenant-header=x-tenant",
    )
    conch = ConchProcess(repository(folder / "models"), *flags, log=folder / "conch.log")
    machine = machine_with(compile_library(folder), folder, gpu(H100, "xid 79", **VALUES, **GPM))
    gpus = GpuExporter(machine, "--dcgm-names=both", log=folder / "gpu.log")
    # No model computes on the fake GPU, and of the engines only vLLM reports a prefix cache.
    static = (
        "conch_accelerator_model_memory_bytes",
        "conch_accelerator_model_utilization_ratio",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
    )
    with conch, gpus, exporter(*(all_metrics()[name] for name in static)) as static_port:
        ports = {"conch": conch.ports["metrics"], "gpu-exporter": gpus.port, "static": static_port}
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in ports.items()
        ]
        with Prometheus(folder / "prometheus", jobs=jobs) as server, load(conch):
            server.until("rate(vllm:generation_tokens_total[10s]) > 0", DATA_TIMEOUT_S)
            yield server


def evaluated(query: str) -> str:
    """Return a query as Grafana sends it, with all values of the variables chosen, for a server just started."""
    return _VARIABLE.sub(lambda match: VARIABLES.get(match[1], ".*"), query).replace("[10m:15s]", "[10m:1s]")


def problem(panel: DashboardPanel, query: PanelQuery, result: list[Value]) -> str:
    """Return what is wrong with a result, "" if nothing is."""
    if not result:
        return "no data"
    least, greatest = panel.bounds
    for series in result:
        if math.isnan(series.value):
            return f"NaN for {series.labels}"
        if not least <= series.value <= (math.inf if greatest is None else greatest):
            return f"{series.value} for {series.labels} is not within {panel.bounds}"
    # A label may be empty, but not in all series.
    if missing := set(_LEGEND_LABEL.findall(query.legend)) - {label for series in result for label in series.labels}:
        return f"no label {missing} for the legend"
    return ""


PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}/{panel.title}")
    for names in ("legacy", "4.7")
    for dashboard in all_dashboards(names)  # type: ignore[arg-type]
    if names == "legacy" or dashboard.uid == "conch-gpu"
    for panel in dashboard.panels
]


@pytest.mark.parametrize("panel", PANELS)
def test_every_query_of_a_panel_has_data_in_range(prometheus: Prometheus, panel: DashboardPanel) -> None:
    for query in panel.queries:
        text = evaluated(query.expr)
        deadline = time.monotonic() + DATA_TIMEOUT_S
        while wrong := problem(panel, query, prometheus.query(text)):
            assert time.monotonic() < deadline, f"{text}: {wrong}"
            time.sleep(0.5)


@pytest.mark.parametrize("dashboard", all_dashboards(), ids=lambda dashboard: dashboard.uid)
def test_variables_have_values(prometheus: Prometheus, dashboard: GrafanaDashboard) -> None:
    for name, _, query in dashboard.variables:
        series, _, label = evaluated(query).removeprefix("label_values(").removesuffix(")").rpartition(", ")
        assert prometheus.get(f"label/{label}/values", **{"match[]": series}), name


FOREIGN = [
    pytest.param(panel, id=f"{dashboard}/{panel.title}") for dashboard, panels in DASHBOARDS.items() for panel in panels
]


@pytest.mark.parametrize("panel", FOREIGN)
def test_panels_of_other_dashboards_have_data_as_documented(prometheus: Prometheus, panel: ForeignPanel) -> None:
    for metric in panel.metrics:
        if panel.empty:
            assert prometheus.query(metric) == []
        else:
            assert prometheus.until(metric, DATA_TIMEOUT_S)


def test_the_page_lists_them() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.server.third_party_dashboards"
