"""`conch trace view` with the traces of a running server: files, and spans that a collector received."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.server.clients import Client
from tests.server.collector import Collector
from tests.support.models import tensor, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

INPUT = f"input [{tensor('INPUT0', 'FP32', -1)}]"
OUTPUT = f"output [{tensor('OUTPUT0', 'FP32', -1)}]"
ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
CALLER = """
call = pb_utils.InferenceRequest(
    model_name="slow", requested_output_names=["OUTPUT0"], inputs=request.inputs(), trace=request.trace()
)
return pb_utils.InferenceResponse(call.exec().output_tensors())
"""
SLOW = """
time.sleep(0.3)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""
TREE = [(0, "pipeline"), (1, "copy"), (1, "caller"), (2, "slow")]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("viewed") / "models"
    write_identity(root, "copy")
    write_python(root, "slow", f"{INPUT} {OUTPUT}", SLOW)
    write_python(root, "caller", f"{INPUT} {OUTPUT}", CALLER)
    steps = (
        ("copy", {"INPUT0": "INPUT0"}, {"OUTPUT0": "copied"}),
        ("caller", {"INPUT0": "copied"}, {"OUTPUT0": "OUTPUT0"}),
    )
    write_ensemble(root, "pipeline", INPUT, OUTPUT, *steps)
    return root


def view(*arguments: str) -> str:
    command = [sys.executable, "-m", "conch", "trace", "view", *arguments]
    environment = {**os.environ, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert done.stderr == ""
    return done.stdout


def tree(request: dict[str, Any]) -> list[tuple[int, str]]:
    depths: dict[str, int] = {}
    for span in request["spans"]:
        depths[span["id"]] = depths.get(span["parent_id"], -1) + 1
    return [(depths[span["id"]], span["model"]) for span in request["spans"]]


def exemplar(conch: ConchProcess) -> str:
    """The trace id at the bucket of the pipeline's request."""
    url = f"http://127.0.0.1:{conch.ports['metrics']}/metrics"
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        text = reply.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("conch_request_duration_seconds_bucket{")]
    [line] = [line for line in lines if 'model="pipeline"' in line and "trace_id=" in line]
    return line.partition('trace_id="')[2].partition('"')[0]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_trace_file_of_a_pipeline(models: Path, tmp_path: Path, protocol: str) -> None:
    path = tmp_path / "trace.json"
    flags = (f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, protocol) as client:
        client.ask("copy", ARRAY, request_id="fast")
        client.ask("pipeline", ARRAY, request_id="slow one")
        example = exemplar(conch)
    text = view(str(path), "--html", str(tmp_path / "page.html")) + view(str(path))
    assert 'the execution of "slow"' in text
    assert "request slow one" in text
    [request] = json.loads(view(str(path), "--id", "slow one", "--json"))["requests"]
    assert tree(request) == TREE
    assert 'the execution of "slow"' in request["reason"]
    phases = {span["model"]: [phase["phase"] for phase in span["phases"]] for span in request["spans"]}
    assert {"queue", "input", "infer"} <= set(phases["slow"])
    assert "steps" in phases["pipeline"]
    [request] = json.loads(view(str(path), "--id", example, "--json"))["requests"]
    assert request["request_id"] == "slow one"
    assert "<svg" in (tmp_path / "page.html").read_text()


class KeepingCollector(Collector):
    """Keeps the requests as a collector's file exporter writes them, one JSON object each."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def take(self, body: bytes, coding: str) -> None:
        self.lines.append(json.dumps(MessageToDict(ExportTraceServiceRequest.FromString(body))))
        super().take(body, coding)


def test_spans_of_a_pipeline_by_the_trace_id_of_an_exemplar(models: Path, tmp_path: Path) -> None:
    with KeepingCollector() as collector:
        flags = ("--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
        flags += (f"--trace-config=opentelemetry,url={collector.url}",)
        with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, "http") as client:
            client.ask("copy", ARRAY)
            client.ask("pipeline", ARRAY, headers={"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"})
            assert exemplar(conch) == TRACE_ID
    (tmp_path / "spans.jsonl").write_text("\n".join(collector.lines))
    [request] = json.loads(view(str(tmp_path / "spans.jsonl"), "--id", TRACE_ID, "--json"))["requests"]
    assert request["trace_id"] == TRACE_ID
    assert tree(request) == TREE
    assert 'the execution of "slow"' in request["reason"]
    assert f"trace {TRACE_ID}" in view(str(tmp_path / "spans.jsonl"), "--id", TRACE_ID)
