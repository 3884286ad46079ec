"""`conch bench` on real servers, as a user runs it."""

import csv
import json
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.measure.bench.cli.bench_command import RunningBench, run_bench
from tests.measure.bench.load.servers import answering, serving
from tests.measure.bench.targets.odd_servers import Route, as_json, scripted
from tests.support.models import tensor, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

QUICK = ("--concurrency=2", "--warm-up=100ms", "--duration=500ms")
BRIEF = ("--concurrency=1", "--think-time=5ms", "--warm-up=50ms", "--requests=10")
LONG = ("--concurrency=2", "--warm-up=100ms", "--duration=10m")
SUMS = """
value = int(request.inputs()[0].as_numpy().reshape(-1)[0])
if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
    self.sums[request.correlation_id()] = 0
total = self.sums[request.correlation_id()] = self.sums[request.correlation_id()] + value
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))])
"""
INITIALIZE = """
def initialize(self, args):
    self.sums = {}
"""
RANDOM = """
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.random.rand(1).astype(np.float32))])
"""

DRIFT = """
self.sums["all"] = self.sums.get("all", 0) + 1  # so that the second response is never as before
sender = request.get_response_sender()
for number in (0, self.sums["all"]):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([number], np.int32))]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DRIFTING_SUM = """
self.sums["all"] = self.sums.get("all", 0) + 1
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([self.sums["all"]], np.int32))])
"""
HOLD = """
folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
open(os.path.join(folder, "holds"), "w").close()
while not os.path.exists(os.path.join(folder, "released")):
    time.sleep(0.05)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.zeros(1, np.float32))])
"""
REPEAT = """
sender = request.get_response_sender()
for number in range(3):
    time.sleep(0.001)
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([number], np.int32))]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("bench")
    models = folder / "models"
    write_identity(models, "echo", "FP32", 4, batch=8)
    write_scripted(models, "words", {"reply": "one two three four", "step_ms": 1})
    write_scripted(models, "endless", {"reply": "word " * 3000, "step_ms": 20, "context_length": 100000})
    write_python(
        models,
        "sums",
        f"max_batch_size: 4 input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)} "
        "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 4 } }",
        SUMS,
        more=INITIALIZE,
    )
    write_python(
        models,
        "repeat",
        "model_transaction_policy { decoupled: true } "
        f"input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)}",
        REPEAT,
    )
    write_python(
        models,
        "drifting",
        "model_transaction_policy { decoupled: true } "
        f"input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)}",
        DRIFT,
        more=INITIALIZE,
    )
    write_python(
        models,
        "drifting_sums",
        f"input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)} "
        "sequence_batching { max_sequence_idle_microseconds: 60000000 }",
        DRIFTING_SUM,
        more=INITIALIZE,
    )
    write_python(models, "dice", f"input {tensor('INPUT', 'FP32', 1)} output {tensor('OUTPUT', 'FP32', 1)}", RANDOM)
    write_python(
        models,
        "broken",
        f"input {tensor('INPUT', 'FP32', 1)} output {tensor('OUTPUT', 'FP32', 1)}",
        "raise ValueError('out of paper')",
    )
    with ConchProcess(models, log=folder / "log") as process:
        yield process


@pytest.fixture
def dying_server(tmp_path: Path) -> Iterator[ConchProcess]:
    """A server that a test may kill."""
    write_identity(tmp_path / "models", "echo", "FP32", 4)
    process = ConchProcess(
        tmp_path / "models", "--model-control-mode=explicit", "--load-model=echo", log=tmp_path / "log"
    )
    with process:
        yield process
        if process.process.poll() is not None:
            process.process.returncode = 0  # killed by the test


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def post(server: ConchProcess, path: str, body: bytes = b"{}") -> None:
    request = urllib.request.Request(f"http://{server.http}/v2/{path}", body, method="POST")
    with urllib.request.urlopen(request, timeout=60):
        pass


def test_a_sweep_prints_a_table_and_writes_a_certificate(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", *QUICK, "--concurrency=1:4:x2", f"--html={tmp_path / 'a.html'}")
    assert done.status in (0, 3), done.err
    assert [measurement["level"]["label"] for measurement in done.document["measurements"]] == ["1", "2", "4"]
    assert all(measurement["outcomes"]["ok"] > 0 for measurement in done.document["measurements"])
    assert "Concurrency" in done.out
    assert "concurrency 4: measured" in done.err
    assert done.document["verdict"]
    assert done.document["verdict"] in done.out
    assert "</html>" in (tmp_path / "a.html").read_text()


def test_server_metrics_and_cpu_stand_beside_the_latency(server: ConchProcess, tmp_path: Path) -> None:
    metrics = f"--metrics-url=http://127.0.0.1:{server.ports['metrics']}/metrics"
    done = run_bench(tmp_path, server.http, "echo", *QUICK, "--duration=2s", metrics)
    figures = done.measurement["server"]
    assert figures["requests"] > 0
    assert figures["queue_s"] >= 0
    assert figures["batch_size"] >= 1
    assert figures["memory_bytes"] > 1 << 20
    assert figures["cpu_cores"] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc-stream"])
def test_protocols_of_tensors(server: ConchProcess, tmp_path: Path, protocol: str) -> None:
    url = server.http if protocol == "http" else server.grpc
    done = run_bench(tmp_path, url, "echo", f"--protocol={protocol}", *QUICK)
    assert done.measurement["outcomes"].keys() == {"ok"}, done.document
    assert done.measurement["tokens"] is done.measurement["responses"] is None
    assert "Sent: 16 random requests: INPUT0 FP32[1, 4]" in done.out


@pytest.mark.parametrize("protocol", ["grpc-stream", "generate"])
def test_streams_of_tensors_have_responses_and_no_tokens(server: ConchProcess, tmp_path: Path, protocol: str) -> None:
    url = server.http if protocol == "generate" else server.grpc
    table = tmp_path / "a.csv"
    done = run_bench(
        tmp_path, url, "repeat", f"--protocol={protocol}", *BRIEF, f"--csv={table}", "--slo=ttft:60s,itl:60s"
    )
    figures, requests = done.measurement["responses"], done.measurement["requests"]
    assert done.measurement["tokens"] is None
    assert abs(figures["count"] - 3 * requests) <= 2 * 3
    assert figures["first"]["count"] == requests
    assert figures["gap"]["count"] == 2 * requests
    assert (
        0 < figures["first"]["percentiles"]["50"]["value"] < done.measurement["latency"]["percentiles"]["50"]["value"]
    )
    assert done.measurement["goodput_ratio"]["value"] == 1
    assert "Responses/s" in done.out
    assert "TTFR P50" in done.out
    assert not {"tok", "token", "tokens", "prompts"} & set(re.findall(r"\w+", (done.out + done.err).lower()))
    assert table.read_text().startswith("Concurrency,Inferences/Second,Response Throughput,Client Send,")


@pytest.mark.parametrize("protocol", ["openai", "generate"])
def test_protocols_of_language_models(server: ConchProcess, tmp_path: Path, protocol: str) -> None:
    done = run_bench(tmp_path, server.http, "words", f"--protocol={protocol}", *QUICK)
    assert done.measurement["outcomes"]["ok"] > 0, done.document
    assert done.measurement["tokens"]["first_token"]["count"] > 0


def test_an_open_loop_sends_at_its_rate(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(
        tmp_path, server.http, "echo", "--rate=50", "--arrivals=constant", "--warm-up=200ms", "--duration=2s"
    )
    assert done.measurement["level"]["kind"] == "rate"
    assert 80 <= done.measurement["requests"] <= 110


def test_the_highest_load_within_an_slo_is_found(server: ConchProcess, tmp_path: Path) -> None:
    quick = ("--warm-up=50ms", "--duration=200ms", "--concurrency=1:4")
    done = run_bench(tmp_path, server.http, "echo", *quick, "--find-max", "--slo=latency:60s")
    assert "slo-max" in done.codes, done.document
    assert [measurement["level"]["value"] for measurement in done.document["measurements"]] == [1, 2, 4]
    assert "Highest load that meets the SLO: concurrency 4 (99 % of requests" in done.out


def test_a_ramp_lasts_as_long_as_it_says(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", "--ramp=20:60:1s")
    assert done.measurement["window_s"] == pytest.approx(1.0, abs=0.2)
    assert "Efficiency" not in done.out


def test_a_cancellation_below_a_millisecond_is_refused(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", "--cancel=10%@200us")
    assert done.status == 2
    assert "200us is shorter than 1ms" in done.err


def test_two_servers_are_measured_in_turn(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", f"--against={server.http}", "--rounds=4", *QUICK)
    ab = done.document["ab"]
    assert len(done.document["measurements"]) == len(ab["measurements"]) == 1
    assert {"throughput", "p50"} <= {effect["quantity"] for effect in ab["effects"]}
    assert "Compared with" in done.out


def test_a_window_of_requests(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", "--concurrency=1", "--warm-up=0s", "--requests=100")
    assert done.measurement["requests"] == 100  # the window ends with the last of them
    assert done.measurement["server"] is not None  # however short it was
    assert done.measurement["window_s"] < 60


def test_progress_counts_cancelled_requests_apart_from_errors(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "words", "--cancel=50%@1ms", *QUICK)
    assert done.measurement["outcomes"]["cancelled"] > 0
    assert " cancelled" in done.err
    assert "errors/s" not in done.err
    assert "failed" not in done.err


def test_a_window_until_a_percentile_is_precise(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(
        tmp_path, server.http, "echo", "--concurrency=2", "--warm-up=0s", "--until=p50 ±30%", "--max-duration=30s"
    )
    assert done.measurement["outcomes"]["ok"] >= 200
    assert done.measurement["latency"]["percentiles"]["50"]["low"] is not None


def test_sequences_are_sent_where_the_model_needs_them(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "sums", *QUICK, "--sequence-length=5")
    assert done.measurement["outcomes"].keys() == {"ok"}, done.document


def test_flags_of_perf_analyzer(server: ConchProcess, tmp_path: Path) -> None:
    line = "-m echo -i grpc -b 2 --concurrency-range 1:2 -p 300 -s 10 --percentile=95"
    done = run_bench(tmp_path, "-u", server.grpc, *line.split())
    assert done.status in (0, 3), done.err
    assert "-s is ignored" in done.err
    assert [measurement["level"]["value"] for measurement in done.document["measurements"]] == [1, 2]


def test_inferences_of_batches_in_the_csv(server: ConchProcess, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    flags = f"-m echo -b 4 --request-rate-range 50 -p 1000 -f {path}"
    done = run_bench(tmp_path, "-u", server.http, *flags.split())
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert row["Request Rate"] == "50"
    assert float(row["Inferences/Second"]) == pytest.approx(4 * done.measurement["throughput"]["value"], rel=1e-5)


@pytest.mark.parametrize(("flag", "levels"), [("--concurrency=1:4", [1, 2, 4]), ("--rate=50:200", [50, 100, 200])])
def test_steps_are_at_equal_ratios(server: ConchProcess, tmp_path: Path, flag: str, levels: list[float]) -> None:
    done = run_bench(tmp_path, server.http, "echo", flag, "--steps=3", "--warm-up=50ms", "--duration=200ms")
    assert [measurement["level"]["value"] for measurement in done.document["measurements"]] == levels


def test_a_percentile_that_is_asked_for_is_a_column(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", *BRIEF, "--percentile=85", "--percentile=99.9")
    assert done.measurement["latency"]["percentiles"]["85"]["value"] > 0
    assert {"P85", "P99.9"} <= set(done.out.split())


def test_records_hold_each_request(server: ConchProcess, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    done = run_bench(tmp_path, server.grpc, "repeat", *BRIEF, "--profile-export-file", str(path))
    assert "--profile-export-file: a line of JSON for each request" in done.err
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["phase"] for line in lines} >= {"warm-up", "window"}
    counted = [line for line in lines if line["phase"] == "window" and line["outcome"] != "unfinished"]
    assert len(counted) == done.measurement["requests"]
    for record in counted:
        assert record["intended_s"] <= record["sent_s"] <= record["first_s"] <= record["done_s"]
        assert len(record["responses_s"]) == record["responses"] == 3
        assert record["responses_s"][0] == record["first_s"]
        assert record["output_tokens"] is None
    latency = sorted(record["done_s"] - record["intended_s"] for record in counted)
    assert latency[-1] == pytest.approx(done.measurement["latency"]["max"], abs=1e-6)


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_ends_the_run(dying_server: ConchProcess, tmp_path: Path) -> None:
    running = RunningBench(tmp_path, dying_server.http, "echo", *LONG)
    running.wait_until_measuring()
    dying_server.process.kill()
    done = running.end()
    assert done.status == 1
    assert "server-lost" in done.codes
    assert done.measurement["outcomes"]["ok"] > 0
    assert done.measurement["outcomes"]["connection_error"] > 0
    assert "the server is gone" in done.out


def test_a_model_that_is_reloaded_makes_the_level_invalid(dying_server: ConchProcess, tmp_path: Path) -> None:
    metrics = f"--metrics-url=http://127.0.0.1:{dying_server.ports['metrics']}/metrics"
    running = RunningBench(tmp_path, dying_server.http, "echo", *LONG, "--duration=6s", metrics)
    running.wait_until_measuring()
    post(dying_server, "repository/models/echo/unload")
    post(dying_server, "repository/models/echo/load")
    done = running.end()
    assert done.status == 3, done.err
    assert "server-restart" in done.codes
    assert done.measurement["outcomes"]["ok"] > 0


def test_a_server_that_rejects_everything(dying_server: ConchProcess, tmp_path: Path) -> None:
    running = RunningBench(tmp_path, dying_server.http, "echo", *LONG, "--duration=2s", "--warm-up=1s")
    running.wait_until_measuring()
    post(dying_server, "repository/models/echo/unload")
    done = running.end()
    outcomes = done.measurement["outcomes"]
    assert sum(outcomes.values()) > outcomes.get("ok", 0)
    assert done.measurement["errors"]


def test_a_server_that_stops_rejects_everything(tmp_path: Path) -> None:
    """While it drains, the server answers 503 and UNAVAILABLE on open connections."""
    models = tmp_path / "models"
    write_identity(models, "echo", "FP32", 4)
    write_scripted(models, "words", {"reply": "one two three"})
    write_python(models, "hold", f"input {tensor('INPUT', 'FP32', 1)} output {tensor('OUTPUT', 'FP32', 1)}", HOLD)
    flags = ("--concurrency=2", "--think-time=20ms", "--warm-up=100ms", "--duration=10m")
    held = {"inputs": [{"name": "INPUT", "shape": [1], "datatype": "FP32", "data": [0]}]}
    protocols = {"http": "echo", "grpc": "echo", "grpc-stream": "echo", "openai": "words"}
    with ConchProcess(models, log=tmp_path / "log") as process, ThreadPoolExecutor(1) as executor:
        running = {}
        for protocol, model in protocols.items():
            (tmp_path / protocol).mkdir()
            url = process.grpc if protocol.startswith("grpc") else process.http
            running[protocol] = RunningBench(tmp_path / protocol, url, model, f"--protocol={protocol}", *flags)
        for bench in running.values():
            bench.wait_until_measuring()
        answer = executor.submit(post, process, "models/hold/infer", json.dumps(held).encode())
        wait_for(lambda: (models / "holds").exists())
        process.process.send_signal(signal.SIGTERM)
        for bench in running.values():
            wait_for(lambda bench=bench: "Server is stopping" in bench.text)
            bench.interrupt()
        done = {protocol: bench.end() for protocol, bench in running.items()}
        (models / "released").touch()
        answer.result(timeout=60)
        assert process.process.wait(60) == 0
    for protocol, ended in done.items():
        kind = "server_error" if protocol == "grpc-stream" else "rejected"  # a stream's errors have no status
        assert ended.measurement["outcomes"].keys() - {"cancelled", "unfinished"} == {"ok", kind}, ended.document
        ((message, count),) = ended.measurement["errors"]
        assert count > 1
        assert "Server is stopping" in message
        assert {"http": "HTTP 503", "grpc": "UNAVAILABLE", "openai": "HTTP 503", "grpc-stream": ""}[protocol] in message
        assert "errors" in ended.codes


REJECTING = {"error": "the server is overloaded"}


@pytest.mark.parametrize("protocol", ["http", "openai"])
def test_a_server_that_only_rejects(tmp_path: Path, protocol: str) -> None:
    """What is asked before the load is answered, all inference is refused with 503."""
    metadata = {"name": "m", "inputs": [{"name": "I", "datatype": "FP32", "shape": [1]}], "outputs": []}

    def answer(request: str, _headers: dict[str, str], _body: bytes) -> Route | None:
        if request.startswith("POST"):
            return as_json(REJECTING, 503)
        known = {
            "http": {"/v2": {"name": "s", "version": "1", "extensions": []}, "/v2/models/m": metadata},
            "openai": {"/v1/models": {"object": "list", "data": [{"id": "m", "object": "model"}]}},
        }[protocol]
        document = known.get(request.removeprefix("GET "))
        return None if document is None else as_json(document)

    with scripted(answer) as url:
        done = run_bench(tmp_path, url, "m", f"--protocol={protocol}", *BRIEF)
    assert "the server is overloaded" in done.err + done.out
    if protocol == "openai":  # its prompts are sized by asking the server
        assert done.status == 2
        assert "503" in done.err
    else:
        assert done.status == 1
        assert done.measurement["outcomes"].keys() == {"rejected"}


def test_no_successful_request(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "broken", *QUICK)
    assert done.status == 1
    assert "ok" not in done.measurement["outcomes"]
    assert "out of paper" in done.measurement["errors"][0][0]
    assert done.measurement["latency"] is None


def test_wrong_answers_are_counted(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "dice", *QUICK, "--expect=first")
    assert done.measurement["outcomes"]["wrong_answer"] > 0, done.document


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        ("repeat", "grpc-stream"),
        ("words", "grpc-stream"),
        ("sums", "http"),
        ("sums", "grpc-stream"),
    ],
)
def test_streams_and_sequences_are_compared_with_their_first_answers(
    server: ConchProcess, tmp_path: Path, model: str, protocol: str
) -> None:
    url = server.grpc if protocol.startswith("grpc") else server.http
    done = run_bench(tmp_path, url, model, f"--protocol={protocol}", *BRIEF, "--expect=first")
    assert done.measurement["outcomes"].keys() == {"ok"}, done.document


@pytest.mark.parametrize(("model", "flags"), [("drifting", ()), ("drifting_sums", ("--sequence-length=3",))])
def test_wrong_answers_in_streams_and_sequences_are_counted(
    server: ConchProcess, tmp_path: Path, model: str, flags: tuple[str, ...]
) -> None:
    done = run_bench(tmp_path, server.grpc, model, "--protocol=grpc-stream", *BRIEF, "--expect=first", *flags)
    assert done.measurement["outcomes"].keys() == {"wrong_answer"}, done.document
    assert "output 'OUTPUT" in done.measurement["errors"][0][0]


def test_answers_of_a_file_for_grpc(server: ConchProcess, tmp_path: Path) -> None:
    zeros = {"outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]}
    (tmp_path / "right.json").write_text(json.dumps(zeros))
    for protocol, data, outcome in (("grpc", "zero", "ok"), ("grpc-stream", "random", "wrong_answer")):
        flags = (f"--protocol={protocol}", f"--expect={tmp_path / 'right.json'}", f"--input-data={data}")
        done = run_bench(tmp_path, server.grpc, "echo", *BRIEF, *flags)
        assert done.measurement["outcomes"].keys() == {outcome}, done.document


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("sums", ("--expect=/dev/null",), "for sequences use --expect first, or validation_data"),
        ("words", ("--expect=first", "--turns=2"), "--expect does not support conversations"),
        ("repeat", ("--expect=first",), "'repeat' answers without text; tensors are compared with"),
    ],
)
def test_answers_that_cannot_be_compared(
    server: ConchProcess, tmp_path: Path, model: str, flags: tuple[str, ...], message: str
) -> None:
    done = run_bench(tmp_path, server.http, model, *QUICK, *flags)
    assert done.status == 2
    assert message in done.err


def test_bytes_that_are_not_http_are_wrong(tmp_path: Path) -> None:
    with serving(answering(b"\x00\x01\x02 not a response")) as port:
        done = run_bench(tmp_path, f"127.0.0.1:{port}", "m", *QUICK)
    assert done.status == 2
    assert f"127.0.0.1:{port}" in done.err


def test_a_stream_that_does_not_end_times_out(server: ConchProcess, tmp_path: Path) -> None:
    flags = ("--protocol=openai", "--output-tokens=3000", "--timeout=300ms", "--grace=1s")
    done = run_bench(tmp_path, server.http, "endless", *QUICK, "--duration=1s", *flags)
    assert done.measurement["outcomes"].get("timeout", 0) > 0, done.document
    assert done.status == 1


def test_a_url_without_an_inference_server(tmp_path: Path) -> None:
    page = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>Shop</h1>"
    with serving(answering(page)) as port:
        done = run_bench(tmp_path, f"http://127.0.0.1:{port}", *QUICK)
    assert done.status == 2
    assert "is not an inference server" in done.err
    assert "Traceback" not in done.err


def test_nothing_listens(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "127.0.0.1:1", *QUICK)
    assert done.status == 2
    assert "nothing listens" in done.err


def test_a_full_disk_does_not_lose_the_result(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", *QUICK, "--html=/dev/full")
    assert done.status == 1
    assert "cannot write /dev/full: No space left on device" in done.err
    assert "Concurrency" in done.out
    assert done.document


def test_records_on_a_full_disk_do_not_lose_the_result(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", *BRIEF, "--records=/dev/full")
    assert done.status == 1
    assert "cannot write /dev/full: No space left on device" in done.err
    assert done.measurement["outcomes"]["ok"] > 0


def test_a_folder_that_is_missing_is_reported_before_the_run(server: ConchProcess, tmp_path: Path) -> None:
    done = run_bench(tmp_path, server.http, "echo", *LONG, f"--html={tmp_path}/missing/a.html")
    assert done.status == 2
    assert "does not exist" in done.err


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "localhost:1", "--rate=1", "--concurrency=1")
    assert done.status == 2
    assert "--concurrency and --rate exclude each other" in done.err


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_load_with_a_report(server: ConchProcess, tmp_path: Path, number: signal.Signals) -> None:
    running = RunningBench(tmp_path, server.http, "echo", *LONG)
    running.wait_until_measuring()
    running.interrupt(number)
    done = running.end()
    assert done.status == 128 + number
    assert done.measurement["outcomes"]["ok"] > 0
    assert "interrupted" in done.codes
    assert "Concurrency" in done.out
    assert "Traceback" not in done.err


@pytest.mark.parametrize("phase", ["warm-up", "measuring"])
def test_finished_levels_stay_when_a_later_one_is_interrupted(server: ConchProcess, tmp_path: Path, phase: str) -> None:
    times = ("--warm-up=2s", "--duration=1s") if phase == "warm-up" else ("--warm-up=100ms", "--duration=4s")
    running = RunningBench(tmp_path, server.http, "echo", "--concurrency=1,2,3", *times)
    while f"concurrency 2: {phase}" not in running.text:
        assert running.process.poll() is None, running.text
    running.interrupt()
    done = running.end()
    assert done.status == 130
    (note,) = (note for note in done.document["notes"] if note["code"] == "interrupted")
    assert "interrupted at concurrency 2, " in note["message"]
    assert "not measured: concurrency 3" in note["message"]
    labels = [measurement["level"]["label"] for measurement in done.document["measurements"]]
    finished = done.document["measurements"][0]
    assert finished["level"]["label"] == "1"
    assert finished["window_s"] == pytest.approx(float(times[1][11:-1]))
    assert not any("interrupted" in note["code"] for note in finished["notes"])
    assert "no-success" not in done.codes
    if phase == "warm-up":
        assert labels == ["1"]
        assert "which is left out" in note["message"]


def test_a_second_signal_ends_at_once(server: ConchProcess, tmp_path: Path) -> None:
    running = RunningBench(
        tmp_path, server.http, "endless", "--protocol=openai", "--output-tokens=3000", *LONG, "--grace=10m"
    )
    running.wait_until_measuring()
    running.interrupt()
    while "ending" not in running.text:
        assert running.process.poll() is None
    running.interrupt()
    done = running.end()
    assert done.status == 130
    assert "Traceback" not in done.err


def test_a_reader_that_ends_is_not_reported(server: ConchProcess, tmp_path: Path) -> None:
    running = RunningBench(tmp_path, server.http, "echo", *QUICK)
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.process.stdout = None
    assert "Traceback" not in running.end().err
