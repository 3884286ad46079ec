"""Traces and request lines of a running server: files, a collector of spans, and what happens without them."""

import json
import re
import signal
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from conch.base.extras import install_command
from tests.server.clients import Client
from tests.server.collector import Collector, Span
from tests.support.models import tensor, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

INPUT = f"input [{tensor('INPUT0', 'FP32', -1)}]"
OUTPUT = f"output [{tensor('OUTPUT0', 'FP32', -1)}]"
ARRAY = {"INPUT0": np.array([1.5, -2], np.float32)}
# Answers with its context, after two calls of which one is to be in the trace.
CALLER = """
given = request.inputs()[0]
for trace in (request.trace(), None):
    asked = {} if trace is None else {"trace": trace}
    answer = pb_utils.InferenceRequest(
        model_name="copy", requested_output_names=["OUTPUT0"], inputs=[given], request_id="call", **asked
    ).exec()
context = np.array([request.trace().get_context() or ""], dtype=object)
outputs = [pb_utils.Tensor("OUTPUT0", answer.output_tensors()[0].as_numpy()), pb_utils.Tensor("CONTEXT", context)]
return pb_utils.InferenceResponse(outputs)
"""
REFUSING = 'return pb_utils.InferenceResponse(error=pb_utils.TritonError("not today"))'
CONTEXT = tensor("CONTEXT", "STRING", 1)
REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traced") / "models"
    write_identity(root, "copy")
    write_python(root, "caller", f"{INPUT} output [{tensor('OUTPUT0', 'FP32', -1)}, {CONTEXT}]", CALLER)
    write_python(root, "refusing", f"{INPUT} {OUTPUT}", REFUSING)
    write_ensemble(
        root,
        "pipeline",
        INPUT,
        f"output [{tensor('OUTPUT0', 'FP32', -1)}, {CONTEXT}]",
        ("copy", {"INPUT0": "INPUT0"}, {"OUTPUT0": "copied"}),
        ("caller", {"INPUT0": "copied"}, {"OUTPUT0": "OUTPUT0", "CONTEXT": "CONTEXT"}),
    )
    return root


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- files -----------------------------------------------------------------------------------------------------------


class Traced:
    """What a trace file says of one request to one model."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.times: dict[str, int] = {}
        self.tensors: list[tuple[str, dict[str, str]]] = []

    def took(self, begin: str, end: str) -> int:
        """Return the nanoseconds between two activities."""
        assert self.times[begin] <= self.times[end]
        return self.times[end] - self.times[begin]


def read(path: Path) -> list[Traced]:
    """Put a file's entries together by their ids, in the order of the ids."""
    traced: dict[int, Traced] = defaultdict(Traced)
    for entry in json.loads(path.read_text()):
        trace = traced[entry["id"]]
        if "model_name" in entry:
            trace.head = entry
        for time in entry.get("timestamps", ()):
            trace.times[time["name"]] = time["ns"]
        if "activity" in entry:
            trace.tensors.append((entry["activity"], entry["tensor"]))
    return [traced[number] for number in sorted(traced)]


def test_a_pipeline_is_traced_into_a_file_that_agrees_with_the_statistics(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    levels = ("--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS")
    flags = (f"--trace-config=triton,file={path}", *levels, "--trace-config=rate=1", "--log-requests=all")
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch:
        for protocol in ("http", "grpc"):
            with Client(conch, protocol) as client:
                client.ask("pipeline", ARRAY, request_id=f"from {protocol}")
        with Client(conch, "http") as client:
            with pytest.raises(InferenceServerException, match="not today"):
                client.ask("refusing", ARRAY)
            books = {name: client.statistics(name)["inference_stats"] for name in ("copy", "caller", "pipeline")}
    traced = read(path)
    of = {name: [trace for trace in traced if trace.head["model_name"] == name] for name in (*books, "refusing")}

    for begin, end in (("HTTP_RECV", "HTTP_SEND"), ("GRPC_WAITREAD", "GRPC_SEND")):
        (whole,) = (trace for trace in of["pipeline"] if f"{begin}_START" in trace.times)
        order = [f"{begin}_START", f"{begin}_END", "REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE"]
        order += ["REQUEST_END", f"{end}_START", f"{end}_END"]
        assert set(whole.times) == set(order)
        assert [whole.times[name] for name in order] == sorted(whole.times.values())
        assert "parent_id" not in whole.head
        assert whole.head["request_id"] == f"from {begin.partition('_')[0].lower()}"
        (step,) = (trace for trace in of["caller"] if trace.head["parent_id"] == whole.head["id"])
        assert step.head["request_id"] == whole.head["request_id"]
        (call,) = (trace for trace in of["copy"] if trace.head["parent_id"] == step.head["id"])
        assert call.head["request_id"] == "call"
        assert step.times["COMPUTE_INPUT_END"] <= call.times["REQUEST_START"]
        assert call.times["REQUEST_END"] <= step.times["COMPUTE_OUTPUT_START"]
    # Two of the six requests to the copying model were calls without a trace.
    assert [len(of[name]) for name in ("pipeline", "caller", "copy")] == [2, 2, 4]
    for trace in of["caller"]:
        given = {"name": "INPUT0", "data": "1.5,-2", "shape": "2", "dtype": "FP32"}
        assert trace.tensors[0] == ("TENSOR_QUEUE_INPUT", given)
        assert trace.tensors[1] == ("TENSOR_BACKEND_OUTPUT", given | {"name": "OUTPUT0"})
    (failed,) = of["refusing"]
    assert "INFER_RESPONSE_COMPLETE" not in failed.times
    assert "REQUEST_END" in failed.times

    caller = books["caller"]
    for phase, begin, end in (
        ("queue", "QUEUE_START", "COMPUTE_START"),
        ("compute_input", "COMPUTE_START", "COMPUTE_INPUT_END"),
        ("compute_infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
        ("compute_output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
        ("success", "REQUEST_START", "REQUEST_END"),
    ):
        assert sum(trace.took(begin, end) for trace in of["caller"]) == caller[phase]["ns"]


def test_every_request_has_one_line_if_that_is_asked_for(models: Path, tmp_path: Path, protocol: str) -> None:
    headers = {"traceparent": f"{REMOTE}01", "authorization": "Bearer secret"}
    conch = ConchProcess(models, "--log-requests=all", "--log-format=json", log=tmp_path / "log")
    with conch, Client(conch, protocol) as client:
        client.ask("pipeline", ARRAY, request_id='a\n"b', headers=headers)
        for model, text in (("refusing", "not today"), ("nowhere", "unknown model")):
            with pytest.raises(InferenceServerException, match=text):
                client.ask(model, ARRAY, headers=headers)
        generate = f"http://{conch.http}/v2/models/copy/generate"
        with urllib.request.urlopen(generate, data=b'{"INPUT0": [1, 2, 3]}', timeout=60) as answer:
            assert json.load(answer)["OUTPUT0"] == [1, 2, 3]
    lines = [json.loads(line) for line in conch.text.splitlines()]
    whole, *failures, generated = [line for line in lines if line["message"] == "request"]
    assert whole["request_id"] == 'a\n"b'
    assert (whole["protocol"], whole["model"], whole["version"], whole["status"]) == (protocol, "pipeline", 1, "OK")
    assert [stage["model"] for stage in whole["stages"]] == ["copy", "caller", "copy"]
    assert whole["trace_id"] == REMOTE[3:35]
    assert whole["bytes_in"] == 8
    assert whole["total_us"] >= whole["compute_us"] > 0
    assert [(line["model"], line["status"], line["reason"]) for line in failures] == [
        ("refusing", "INTERNAL", "BACKEND"),
        ("nowhere", "NOT_FOUND", "OTHER"),
    ]
    assert (generated["protocol"], generated["model"], generated["bytes_out"]) == ("http", "copy", 12)
    assert "secret" not in conch.text


@pytest.mark.parametrize("place", ["/dev/full", "a directory"])
def test_without_a_place_for_traces_the_server_serves_on(models: Path, tmp_path: Path, place: str) -> None:
    path = tmp_path if place == "a directory" else Path(place)
    flags = (f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch, Client(conch, "http") as client:
        client.ask("copy", ARRAY)
        conch.until_logged("cannot write to trace file")
        client.ask("copy", ARRAY)
    assert len(re.findall("cannot write to trace file", conch.text)) == 1


def test_changes_of_the_count_leave_no_descriptor(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    flags = (f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    descriptors: list[int] = []
    with ConchProcess(models, *flags, log=tmp_path / "log") as conch:
        setting = f"http://{conch.http}/v2/trace/setting"
        with Client(conch, "http") as client:
            for number in range(12):
                change = json.dumps({"trace_count": str(1 + number % 2)}).encode()
                with urllib.request.urlopen(setting, data=change, timeout=60) as reply:
                    assert reply.status == 200
                client.ask("copy", ARRAY)
                deadline = monotonic() + 60
                while not Path(f"{path}.{number}").exists():
                    assert monotonic() < deadline
                    sleep(0.01)
                descriptors.append(len(list(Path(f"/proc/{conch.process.pid}/fd").iterdir())))
        # The connection of a change may be open for a moment longer.
        deadline = monotonic() + 60
        while len(list(Path(f"/proc/{conch.process.pid}/fd").iterdir())) > min(descriptors[6:]):
            assert monotonic() < deadline, descriptors
            sleep(0.01)


def test_a_killed_server_leaves_a_file_that_can_be_read(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    flags = ("--trace-level=TIMESTAMPS", "--trace-rate=1", f"--trace-file={path}", "--trace-count=2")
    numbered = Path(f"{path}.0")
    conch = ConchProcess(models, *flags, log=tmp_path / "log")
    conch.__enter__()
    try:
        with Client(conch, "http") as client:
            for _ in range(3):
                client.ask("copy", ARRAY)
        # Between being made and its first write it is empty.
        while not numbered.exists() or not numbered.stat().st_size or len(read(numbered)) < 2:
            conch.until("/v2/health/live")
    finally:
        conch.stop(signal.SIGKILL)
    assert len(read(numbered)) == 2
    assert not path.exists()
    assert "--trace-rate is deprecated; use --trace-config" in conch.text


# ---- spans -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def spanning(models: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    flags = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=2", f"opentelemetry,url={collector.url}")
    flags += ("opentelemetry,resource=place=lab", "opentelemetry,bsp_schedule_delay=50")
    log = tmp_path_factory.mktemp("spans") / "log"
    with ConchProcess(models, *(f"--trace-config={flag}" for flag in flags), log=log) as conch:
        yield conch


def below(spans: list[Span], parent: Span, name: str) -> Span:
    (span_below,) = (span for span in spans if span.parent == parent.id and span.name == name)
    assert span_below.trace == parent.trace
    return span_below


def test_a_request_becomes_spans_below_its_callers(spanning: ConchProcess, collector: Collector, protocol: str) -> None:
    before = len(collector.spans)
    with Client(spanning, protocol) as client:
        headers = {"traceparent": f"{REMOTE}01", "tracestate": "vendor=1"}
        result = client.ask("pipeline", ARRAY, request_id="7", headers=headers)
    # The request, the ensemble, three models, and the computing of each of these.
    spans = collector.until(before + 8)[before:]
    (root,) = (span for span in spans if span.name == "InferRequest")
    assert (root.trace, root.parent) == (REMOTE[3:35], REMOTE[36:52])
    assert root.resource["service.name"] == "triton-inference-server"
    assert root.resource["place"] == "lab"
    assert {"http": "HTTP_SEND_END", "grpc": "GRPC_SEND_END"}[protocol] in root.events
    ensemble = below(spans, root, "pipeline")
    assert ensemble.attributes["triton.model_name"] == "pipeline"
    assert ensemble.attributes["triton.model_version"] == 1
    assert ensemble.attributes["triton.request_id"] == "7"
    assert ensemble.attributes["triton.trace_parent_id"] == 0
    caller = below(spans, ensemble, "caller")
    assert caller.attributes["triton.trace_parent_id"] == ensemble.attributes["triton.trace_id"]
    assert caller.events == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    compute = below(spans, caller, "compute")
    assert compute.events == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    call = below(spans, caller, "copy")
    assert compute.start <= call.start <= call.end <= compute.end
    context = json.loads(result.as_numpy("CONTEXT")[0])
    assert context == {"traceparent": f"00-{root.trace}-{caller.id}-01", "tracestate": "vendor=1"}
    assert not any(span.failed for span in spans)


def test_one_of_n_requests_is_traced_and_none_whose_caller_is_not(spanning: ConchProcess, collector: Collector) -> None:
    before = len(collector.spans)
    with Client(spanning, "http") as client:
        client.client.update_trace_settings(None, {"trace_rate": "2"})  # which restarts the count
        for flags in ("00", "", "00", ""):
            headers = {"traceparent": f"{REMOTE}{flags}"} if flags else {}
            client.ask("copy", ARRAY, request_id=f"{flags}", headers=headers)
        with pytest.raises(InferenceServerException, match="not today"):
            client.ask("refusing", ARRAY, headers={"traceparent": f"{REMOTE}01"})
    spans = collector.until(before + 6)[before:]
    roots = [span for span in spans if span.name == "InferRequest"]
    assert [(root.parent, root.failed) for root in roots] == [("", False), (REMOTE[36:52], True)]


def test_a_refused_request_is_a_failed_span(spanning: ConchProcess, collector: Collector) -> None:
    before = len(collector.spans)
    with Client(spanning, "http") as client, pytest.raises(InferenceServerException, match="unknown model"):
        client.ask("nowhere", ARRAY, headers={"traceparent": f"{REMOTE}01"})
    spans = collector.until(before + 2)[before:]
    assert {(span.name, span.failed) for span in spans} == {("InferRequest", True), ("nowhere", True)}


def test_settings_are_reported_with_those_of_the_mode(spanning: ConchProcess, collector: Collector) -> None:
    with Client(spanning, "http") as client:
        settings = client.client.get_trace_settings()
    assert settings == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "2",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": collector.url,
        "resource": "place=lab",
        "bsp_max_queue_size": "2048",
        "bsp_max_export_batch_size": "512",
        "bsp_schedule_delay": "50",
    }


def test_without_a_collector_the_server_serves_on_and_says_so_once(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")  # for how long each batch is tried
    flags = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "opentelemetry,url=http://127.0.0.1:9/v1/traces")
    flags += ("opentelemetry,bsp_schedule_delay=10", "opentelemetry,bsp_max_export_batch_size=1")
    given = [f"--trace-config={flag}" for flag in flags]
    with ConchProcess(models, *given, log=tmp_path / "log") as conch, Client(conch, "http") as client:
        for _ in range(3):
            client.ask("copy", ARRAY)
        conch.until_logged("cannot send traces to")
        client.ask("copy", ARRAY)
    assert len(re.findall("cannot send traces to", conch.text)) == 1
    assert "Traceback" not in conch.text


def test_spans_need_their_packages(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    conch = ConchProcess(models, "--trace-config=mode=opentelemetry", log=tmp_path / "log")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    with pytest.raises(AssertionError, match="the server ended"):
        conch.__enter__()
    assert install_command("opentelemetry") in conch.text
