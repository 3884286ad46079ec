"""Limits of a real server: admission on every protocol, sources, changes, roll back and metrics."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from conch.server.commands.audit import audit
from tests.support.models import tensor, write_ensemble, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
FILE = """
limits:
  - {model: limited, requests_per_second: 5, enforced: true}
  - {model: limited, requests_per_second: 3}
  - {model: llm, tenant: "*", requests_per_second: 2, enforced: true}
  - {model: stage, requests_per_second: 6, enforced: true}
"""
Answer = tuple[int, dict[str, Any], dict[str, str]]


def call(url: str, body: bytes | None = None, method: str = "POST", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"{}"), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}"), dict(error.headers)


def until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "not within the time allowed"
        time.sleep(0.05)


def value(server: ConchProcess, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(server.metrics()):
        for sample in family.samples:
            if sample.name == name and all(sample.labels.get(key) == wanted for key, wanted in labels.items()):
                return sample.value
    return None


class Limited:
    """A server with limits."""

    def __init__(self, folder: Path, server: ConchProcess) -> None:
        self.folder = folder
        self.server = server
        self.admin = f"http://{server.http}/v2/limits"

    def infer(self, model: str, **headers: str) -> Answer:
        return call(f"http://{self.server.http}/v2/models/{model}/infer", BODY, **headers)

    def answers(self, model: str, number: int, **headers: str) -> list[Answer]:
        """The answers to requests within one second."""
        while True:
            started = time.monotonic()
            answers = [self.infer(model, **headers) for _ in range(number)]
            if time.monotonic() - started < 0.95:
                return answers
            time.sleep(1.1)  # the machine is busy

    def statuses(self, model: str, number: int, **headers: str) -> list[int]:
        """The statuses of requests within one second."""
        return [status for status, _, _ in self.answers(model, number, **headers)]

    def set(self, *limits: dict[str, Any]) -> dict[str, Any]:
        status, document, _ = call(self.admin, json.dumps({"limits": limits}).encode(), "PUT")
        assert status == 200, document
        return document

    def document(self) -> dict[str, Any]:
        return call(self.admin, None, "GET")[1]


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "frontend-processes"])
def limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("limits")
    models = folder / "models"
    for name in ("free", "limited", "stage", "filed", "set"):
        write_identity(models, name, "FP32", -1)
    write_scripted(models, "llm", {"reply": "one two three four five", "chat_template": "{{ messages[0].content }}"})
    ends = [f"input {tensor('INPUT0', 'FP32', -1)}", f"output {tensor('OUTPUT0', 'FP32', -1)}"]
    steps = [
        ("stage", {"INPUT0": "INPUT0"}, {"OUTPUT0": "middle"}),
        ("stage", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    write_ensemble(models, "chain", *ends, *steps)
    (folder / "limits.yaml").write_text(FILE)
    flags = [
        f"--limits-file={folder / 'limits.yaml'}",
        f"--limits-audit-log={folder / 'audit.jsonl'}",
        "--limits-tenant-header=x-tenant",
        f"--frontend-processes={request.param}",
    ]
    with ConchProcess(models, *flags, log=folder / "log") as server:
        yield Limited(folder, server)


def test_http_requests_over_a_limit_get_429_with_the_time_to_retry(limited: Limited) -> None:
    answers = limited.answers("limited", 9)
    assert [status for status, _, _ in answers] == [200] * 5 + [429] * 4
    _, document, headers = answers[-1]
    assert document == {"error": "model 'limited' exceeds its limit of 5 requests per second"}
    assert headers["Retry-After"] == "1"
    assert value(limited.server, "conch_limit_exceeded_total", model="limited", enforced="false")
    assert value(limited.server, "conch_limit_exceeded_total", model="limited", enforced="true")
    assert value(limited.server, "conch_request_rate_limit", model="limited", enforced="true") == 5
    assert value(limited.server, "conch_request_rate_limit", model="limited", enforced="false") == 3
    assert value(limited.server, "conch_request_rate_peak", model="limited", version="1", tenant="") == 5
    assert value(limited.server, "nv_inference_request_failure_total", model="limited", reason="REJECTED")
    until(lambda: limited.infer("limited")[0] == 200)
    assert limited.statuses("free", 20) == [200] * 20


def rejected(server: ConchProcess, model: str) -> tuple[float, float]:
    """How many requests were refused over an enforced limit, and how many of the model for any reason of that kind."""
    counted = value(server, "conch_limit_exceeded_total", model=model, enforced="true") or 0.0
    return counted, value(server, "nv_inference_request_failure_total", model=model, reason="REJECTED") or 0.0


def test_a_flood_over_a_limit_is_refused_unread_counted_and_over_when_limits_change(limited: Limited) -> None:
    """A refused request is not decoded: a malformed body gets 429, too."""
    limited.set({"model": "set", "tenant": "flood", "requests_per_second": 3, "enforced": True})
    before = rejected(limited.server, "set")
    connection = http.client.HTTPConnection(limited.server.http, timeout=60)

    def posted(body: bytes) -> int:
        connection.request("POST", "/v2/models/set/infer", body, {"X-Tenant": "flood"})
        with connection.getresponse() as answer:
            assert answer.headers["Retry-After"] == "1" or answer.status != 429
            assert answer.read()
            return answer.status

    statuses = list[int]()
    for _ in range(3):
        until(lambda: posted(BODY) == 429)  # over this connection: each frontend process knows what it has refused
        statuses += [posted(b"{") for _ in range(40)]
    connection.close()
    assert {*statuses} <= {429, 400}
    assert statuses.count(429) > 60
    assert limited.infer("set", x_tenant="other")[0] == 200
    until(lambda: limited.infer("set", x_tenant="flood")[0] == 429)
    after = rejected(limited.server, "set")
    assert after[0] - before[0] == after[1] - before[1] >= statuses.count(429)
    limited.set()
    assert limited.statuses("set", 9, x_tenant="flood") == [200] * 9


def test_generate_is_limited_too(limited: Limited) -> None:
    limited.set({"model": "llm", "requests_per_second": 0, "enforced": True})
    url = f"http://{limited.server.http}/v2/models/llm/"
    body = json.dumps({"text_input": "hi"}).encode()
    assert call(f"{url}generate", body)[0] == 429
    assert call(f"{url}generate_stream", body)[0] == 429
    limited.set()
    assert call(f"{url}generate", body)[0] == 200


def test_grpc_calls_over_a_limit_get_resource_exhausted(limited: Limited) -> None:
    inputs = [triton.InferInput("INPUT0", [1], "FP32")]
    inputs[0].set_data_from_numpy(np.ones(1, np.float32))
    limited.set({"model": "set", "tenant": "over", "requests_per_second": 0, "enforced": True})
    with triton.InferenceServerClient(limited.server.grpc) as client:
        client.infer("set", inputs)
        with pytest.raises(InferenceServerException, match="exceeds its limit of 0 requests per second") as raised:
            client.infer("set", inputs, headers={"x-tenant": "over"})
        assert "RESOURCE_EXHAUSTED" in raised.value.status()
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result), headers={"x-tenant": "over"})
        client.async_stream_infer("set", inputs)
        until(lambda: len(answers) == 1)
        client.stop_stream()
        assert "exceeds its limit" in str(answers[0])
    limited.set()
    channel = grpc.insecure_channel(limited.server.grpc)
    channel.close()


def test_the_openai_client_gets_a_rate_limit_error(limited: Limited) -> None:
    with openai.OpenAI(base_url=f"http://{limited.server.http}/v1", api_key="none", max_retries=0) as client:
        asked: list[Any] = [{"role": "user", "content": "hi"}]

        def ask(tenant: str) -> None:
            client.chat.completions.create(model="llm", messages=asked, extra_headers={"x-tenant": tenant})

        limited.set({"model": "llm", "tenant": "a", "requests_per_second": 0, "enforced": True})
        with pytest.raises(openai.RateLimitError) as raised:
            ask("a")
        assert raised.value.code == "rate_limit_exceeded"
        assert raised.value.type == "requests"
        assert raised.value.response.headers["retry-after"] == "60"
        ask("b")
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="llm", prompt="hi", extra_headers={"x-tenant": "a"})
    limited.set()


def test_tokens_are_counted_and_limited(limited: Limited) -> None:
    limited.set({"model": "llm", "tenant": "t", "tokens_per_second": 2, "enforced": True})
    with openai.OpenAI(base_url=f"http://{limited.server.http}/v1", api_key="none", max_retries=0) as client:
        headers = {"x-tenant": "t"}
        used = client.completions.create(model="llm", prompt="hi", extra_headers=headers).usage
        with pytest.raises(openai.RateLimitError, match="limit of 2 tokens per second") as raised:
            client.completions.create(model="llm", prompt="hi", extra_headers=headers)
    assert raised.value.type == "tokens"
    assert used is not None
    peak = value(limited.server, "conch_token_rate_peak", model="llm", version="1", tenant="t")
    assert peak is not None
    assert 0 < peak <= used.total_tokens
    assert value(limited.server, "conch_token_rate_limit", model="llm", tenant="t", enforced="true") == 2
    limited.set()


def test_an_ensemble_counts_towards_its_stages(limited: Limited) -> None:
    until(lambda: value(limited.server, "conch_request_rate", model="stage", version="1", tenant="") == 0)
    assert limited.statuses("chain", 5) == [200] * 3 + [429] * 2
    assert value(limited.server, "conch_request_rate_peak", model="stage", version="1", tenant="") == 6
    assert value(limited.server, "conch_ensemble_stage_requests", model="chain", stage="stage") == 2
    (chain,) = [model for model in limited.document()["models"] if model["model"] == "chain"]
    (stage,) = chain["stages"]
    assert (stage["model"], stage["requests_per_request"], stage["exact"]) == ("stage", 2, True)
    assert stage["requests_per_second"] == {"soft": None, "enforced": 6}
    assert chain["effective_requests_per_second"] == {"soft": None, "enforced": 3}


def test_the_file_is_read_again_and_a_broken_one_keeps_the_last_limits(limited: Limited) -> None:
    path, server = limited.folder / "limits.yaml", limited.server
    changes = value(server, "conch_limit_changes_total", source="file") or 0
    path.write_text(FILE + "  - {model: filed, requests_per_second: 0, enforced: true}\n")
    started = time.monotonic()
    until(lambda: limited.infer("filed")[0] == 429)
    print(f"in force after {time.monotonic() - started:.2f} s")
    assert value(server, "conch_limit_changes_total", source="file") == changes + 1
    path.write_text(FILE + "  - {model: filed, requests_per_second: 80qps}\n")
    until(lambda: value(server, "conch_limit_source_up", source="file") == 0)
    assert limited.infer("filed")[0] == 429
    assert "limit 5: 'requests_per_second': '80qps' is not a number per second; write 80" in server.text
    assert "80qps" in limited.document()["sources"]["file"]["error"]
    path.unlink()
    until(lambda: "cannot read" in limited.document()["sources"]["file"]["error"])
    assert limited.infer("filed")[0] == 429
    path.write_text(FILE)
    until(lambda: limited.infer("filed")[0] == 200)
    assert value(server, "conch_limit_source_up", source="file") == 1
    server.until_logged(r'limits of source \\"file\\" are valid again: \d+ limits')


def test_the_administrator_overrides_rolls_back_and_removes(limited: Limited) -> None:
    over = {"model": "limited", "requests_per_second": 2, "enforced": True}
    document = limited.set(over)
    assert (document["changed"], document["audited"]) == (True, True)
    assert document["precedence"] == ["admin", "kubernetes", "file"]
    assert {**over, "source": "admin", "overrides": {"file": 5}} in document["limits"]
    time.sleep(1.1)
    assert limited.statuses("limited", 4) == [200, 200, 429, 429]
    limited.set({**over, "requests_per_second": "unlimited"})
    assert limited.statuses("limited", 9) == [200] * 9
    status, document, _ = call(f"{limited.admin}/rollback")
    assert status == 200
    assert {**over, "source": "admin", "overrides": {"file": 5}} in document["limits"]
    until(lambda: limited.infer("limited")[0] == 429)
    assert call(limited.admin, None, "DELETE")[1]["sources"]["admin"]["limits"] == []
    assert value(limited.server, "conch_request_rate_limit", model="limited", enforced="true") == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "expected one key 'limits'"),
        (
            b'{"limits": [{"model": "m", "requests_per_second": -1}]}',
            "body: limit 1: 'requests_per_second': -1 is negative",
        ),
    ],
)
def test_invalid_limits_are_refused_and_change_nothing(limited: Limited, body: bytes, message: str) -> None:
    before = limited.document()["limits"]
    status, document, _ = call(limited.admin, body, "PUT")
    assert status == 400
    assert message in document["error"]
    assert limited.document()["limits"] == before


def test_clients_behind_a_proxy_may_not_change_limits(limited: Limited) -> None:
    status, document, _ = call(limited.admin, None, "GET", x_forwarded_for="10.0.0.1")
    assert status == 403
    assert "--limits-admin-remote" in document["error"]


def test_every_change_is_in_the_audit_log(limited: Limited, capsys: pytest.CaptureFixture[str]) -> None:
    limited.set({"tenant": "acme", "requests_per_second": 1000})
    limited.set()
    path = limited.folder / "audit.jsonl"
    assert audit(["verify", str(path)]) == 0
    *_, before, last = [json.loads(line) for line in path.read_text().splitlines()]
    acme = [{"tenant": "acme", "requests_per_second": 1000, "enforced": False}]
    assert (before["who"], before["source"], before["before"], before["after"]) == (
        "client:127.0.0.1",
        "admin",
        [],
        acme,
    )
    assert (last["before"], last["after"]) == (acme, [])
    assert value(limited.server, "conch_limit_audit_records") == last["seq"]
    assert value(limited.server, "conch_limit_last_change_timestamp_seconds") == pytest.approx(time.time(), abs=60)


def test_many_tenants_are_bounded(limited: Limited) -> None:
    for number in range(30):
        limited.infer("free", x_tenant=f"tenant-{number}")
    assert (value(limited.server, "conch_limit_tenants") or 0) >= 30
    limited.infer("free", x_tenant="_all")
    assert value(limited.server, "conch_request_rate_peak", model="free", version="1", tenant="_all") is None


@pytest.mark.slow
def test_keys_are_tenants_and_limits_of_the_administrator_survive_a_restart(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "echo", "FP32", -1)
    (tmp_path / "keys").write_text("alice infer secret-a\nbob infer secret-b\nops manage secret-o\n")
    (tmp_path / "keys").chmod(0o600)
    flags = [f"--api-key-file={tmp_path / 'keys'}", f"--limits-audit-log={tmp_path / 'audit.jsonl'}"]
    flags.append("--metrics-port=0")
    limits = json.dumps({"limits": [{"tenant": "alice", "requests_per_second": 0, "enforced": True}]}).encode()
    for start in range(2):
        with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
            limited = Limited(tmp_path, server)
            if not start:
                assert limited.infer("echo", authorization="Bearer secret-a")[0] == 200
                assert call(limited.admin, limits, "PUT")[0] == 401
                assert call(limited.admin, limits, "PUT", authorization="Bearer secret-a")[0] == 403
                assert call(limited.admin, limits, "PUT", authorization="Bearer secret-o")[0] == 200
            assert limited.infer("echo", authorization="Bearer secret-a")[0] == 429
            assert limited.infer("echo", authorization="Bearer secret-b")[0] == 200
    text = (tmp_path / "audit.jsonl").read_text()
    assert '"who":"key:ops"' in text
    assert "secret" not in text
    assert "secret-" not in (tmp_path / "log").read_text()


CALLS = """
counts, error = [0], ""
for _ in range(int(request.inputs()[0].as_numpy()[0])):
    call = pb_utils.InferenceRequest(
        model_name="callee",
        inputs=[pb_utils.Tensor("INPUT0", np.ones(1, np.float32))],
        requested_output_names=["OUTPUT0"],
    )
    answer = call.exec()
    if answer.has_error():
        error = answer.error().message()
    else:
        counts[0] += 1
return pb_utils.InferenceResponse([
    pb_utils.Tensor("COUNT", np.array(counts, np.int32)), pb_utils.Tensor("ERROR", np.array([error], object))
])
"""
ASKS = """
call = pb_utils.InferenceRequest(
    model_name="bls_llm",
    inputs=[pb_utils.Tensor("text_input", np.array(["hi"], object))],
    requested_output_names=["text_output"],
)
said = [answer.error().message() if answer.has_error() else "" for answer in call.exec(decoupled=True)]
return pb_utils.InferenceResponse([pb_utils.Tensor("ERROR", np.array(["".join(said)], object))])
"""
NESTED = """
limits:
  - {model: callee, requests_per_second: 5, enforced: true}
  - {model: counted, tenant: "*", requests_per_second: 100}
  - {tenant: "*", requests_per_second: 3, enforced: true}
  - {model: bls_llm, tenant: t, tokens_per_second: 1, enforced: true}
  - {model: step_llm, tokens_per_second: 1, enforced: true}
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("nested")
    models = folder / "models"
    write_identity(models, "callee", "FP32", -1)
    outputs = f"output {tensor('COUNT', 'INT32', 1)} output {tensor('ERROR', 'STRING', 1)}"
    write_python(models, "caller", f"input {tensor('CALLS', 'INT32', 1)} {outputs}", CALLS)
    for name in ("bls_llm", "step_llm"):
        write_scripted(models, name, {"reply": "one two three four five"})
    ends = f"input {tensor('TEXT', 'STRING', 1)} output {tensor('ERROR', 'STRING', 1)}"
    write_python(models, "asker", ends, ASKS)
    step = ("step_llm", {"text_input": "TEXT"}, {"text_output": "SAID"})
    write_ensemble(
        models, "chain", f"input {tensor('TEXT', 'STRING', 1)}", f"output {tensor('SAID', 'STRING', 1)}", step
    )
    (folder / "limits.yaml").write_text(NESTED)
    flags = [f"--limits-file={folder / 'limits.yaml'}", "--limits-tenant-header=x-tenant"]
    with ConchProcess(models, *flags, log=folder / "log") as server:
        yield Limited(folder, server)


def ask_caller(nested: Limited, calls: int, tenant: str) -> tuple[int, str]:
    body = json.dumps({"inputs": [{"name": "CALLS", "shape": [1], "datatype": "INT32", "data": [calls]}]}).encode()
    status, document, _ = call(f"http://{nested.server.http}/v2/models/caller/infer", body, x_tenant=tenant)
    assert status == 200, document
    count, error = (output["data"][0] for output in document["outputs"])
    return count, error


def test_calls_of_models_count_towards_the_limits_of_models(nested: Limited) -> None:
    """A refused call is an error that the model handles. Limits of clients count the client's request only."""
    counts = [ask_caller(nested, 4, "a"), ask_caller(nested, 4, "a")]
    assert counts[0] == (4, "")
    if counts[1] != (4, ""):  # on a machine that takes a second for four calls
        assert counts[1][1].endswith("model 'callee' exceeds its limit of 5 requests per second")
    assert ask_caller(nested, 40, "b")[0] < 40
    assert value(nested.server, "conch_limit_exceeded_total", model="callee", enforced="true")


def test_tokens_of_nested_language_models_count(nested: Limited) -> None:
    text = json.dumps({"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["hi"]}]}).encode()
    asker = f"http://{nested.server.http}/v2/models/asker/infer"
    said = [call(asker, text, x_tenant="t")[1]["outputs"][0]["data"][0] for _ in range(2)]
    assert said[0] == ""
    assert said[1].endswith("model 'bls_llm', tenant 't', exceeds its limit of 1 tokens per second")
    assert call(asker, text, x_tenant="other")[1]["outputs"][0]["data"][0] == ""

    chain = f"http://{nested.server.http}/v2/models/chain/generate_stream"
    first = urllib.request.urlopen(urllib.request.Request(chain, b'{"TEXT":"hi"}', {"x-tenant": "c"}), timeout=60)
    with first:
        assert b"one" in first.read()
    status, document, _ = call(chain, b'{"TEXT":"hi"}', x_tenant="d")
    assert (status, document["error"]) == (429, "model 'step_llm' exceeds its limit of 1 tokens per second")
