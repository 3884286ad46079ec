"""Degradations of a real server: in the log, the console table, the metric, and refused by --strict."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from conch.base.build_info import is_compiled
from tests.support.models import ECHO, tensor, write_config, write_python
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
ON_GPU = f"{TENSORS} instance_group {{ kind: KIND_GPU }}"
NOTICE = "has KIND_GPU, but no GPUs are available: it runs on the CPU"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_python(folder, "hopeful", ON_GPU, ECHO)
    write_python(folder, "plain", TENSORS, ECHO)
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    log = tmp_path_factory.mktemp("log") / "log"
    flags = ("--model-control-mode=explicit", "--load-model=*", "--http-thread-count=3")
    with ConchProcess(root, *flags, log=log) as process:
        yield process


def degraded(server: ConchProcess) -> list[str]:
    return [line for line in server.metrics().splitlines() if line.startswith("conch_degraded{")]


def load(server: ConchProcess, model: str, config: str = "") -> tuple[int, str]:
    body = json.dumps({"parameters": {"config": config}} if config else {}).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/repository/models/{model}/load", body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


def test_gpu_that_is_missing_is_the_first_line_of_the_table(server: ConchProcess) -> None:
    server.until_logged(rf"degraded: instance group .* of model 'hopeful' {NOTICE} .and \d more.")
    assert server.text.count(f"\"instance group 'hopeful_0' of model 'hopeful' {NOTICE}\"") == 1
    table = server.text.partition('"degraded: ')[2]
    assert "cure: install the driver and a backend with CUDA, or set KIND_CPU" in table
    interpreted = [] if is_compiled() else ["interpreted_build"]
    places = [table.index(reason) for reason in ("kind_gpu_on_cpu (hopeful)", *interpreted, "flag_ignored")]
    assert places == sorted(places)


def test_metric_appears_and_is_gone_when_the_cause_is_cured(root: Path, server: ConchProcess) -> None:
    on_gpu = 'conch_degraded{model="hopeful",reason="kind_gpu_on_cpu"} 1'
    assert on_gpu in degraded(server)
    assert 'conch_degraded{reason="flag_ignored"} 1' in degraded(server)
    write_python(root, "hopeful", TENSORS, ECHO)
    assert load(server, "hopeful")[0] == 200
    assert on_gpu not in degraded(server)


def test_model_that_is_kept_after_a_failed_load_is_marked_until_the_next(root: Path, server: ConchProcess) -> None:
    write_python(root, "plain", TENSORS, ECHO, more="def initialize(self, arguments): raise ValueError('broken')")
    stale = 'conch_degraded{model="plain",reason="previous_version_served"} 1'
    assert load(server, "plain")[0] == 400
    assert stale in degraded(server)
    write_python(root, "plain", TENSORS, ECHO)
    assert load(server, "plain")[0] == 200
    assert stale not in degraded(server)


def test_configuration_of_a_client_that_fails_marks_nothing(root: Path, server: ConchProcess) -> None:
    config = {"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/nowhere"}}}
    status, error = load(server, "plain", json.dumps(config))
    assert (status, "/nowhere" in error) == (400, True)
    assert not any("previous_version_served" in line for line in degraded(server))


def test_strict_refuses_the_model_with_the_cure_and_serves_the_others(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "hopeful", ON_GPU, ECHO)
    write_python(tmp_path / "models", "plain", TENSORS, ECHO)
    flags = ("--strict=kind_gpu_on_cpu", "--model-control-mode=explicit", "--load-model=plain")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        status, error = load(server, "hopeful")
        assert status == 400
        assert f"{NOTICE}; install the driver and a backend with CUDA, or set KIND_CPU" in error
        assert "(refused by --strict, reason kind_gpu_on_cpu)" in error
        assert not any("hopeful" in line for line in degraded(server))


def test_truncated_prompt_is_said_in_a_header_of_the_answer(tmp_path: Path) -> None:
    write_config(tmp_path / "models", "words", 'backend: "scripted"')
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:

        def header_of(**more: Any) -> str:
            body = {"model": "words", "prompt": "one two three four", "max_tokens": 8, **more}
            request = urllib.request.Request(f"http://{server.http}/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert b'"choices":[' in answer.read()
                return str(answer.headers["X-Conch-Degraded"])

        assert header_of() == "None"
        assert header_of(truncate_prompt_tokens=4) == "None"
        assert header_of(truncate_prompt_tokens=2) == "prompt_truncated"
        assert header_of(truncate_prompt_tokens=4, stream=True) == "None"
        assert header_of(truncate_prompt_tokens=2, stream=True) == "prompt_truncated"
        assert header_of(truncate_prompt_tokens=2, stream=True, echo=True) == "prompt_truncated"


def test_truncated_prompt_is_said_in_the_metadata_of_grpc(tmp_path: Path) -> None:
    write_config(tmp_path / "models", "words", 'backend: "scripted"')
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server, grpc.insecure_channel(server.grpc) as port:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(port)
        for size, expected in ((4, []), (2, ["prompt_truncated"])):
            stream = stub.ModelStreamInfer(iter([infer_request("words", size)]))
            assert not [answer.error_message for answer in stream if answer.error_message]
            assert [value for name, value in stream.trailing_metadata() if name == "x-conch-degraded"] == expected
            body = {"text_input": "one two three four", "truncate_prompt_tokens": size, "max_tokens": 4}
            url = f"http://{server.http}/v2/models/words/generate"
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as answer:
                assert answer.headers.get_all("X-Conch-Degraded", []) == expected


def infer_request(model: str, size: int) -> Any:
    """Return a request to generate from a prompt of at most `size` tokens."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, text in (
        ("text_input", b"one two three four"),
        ("sampling_parameters", b'{"truncate_prompt_tokens": %d, "max_tokens": 4}' % size),
    ):
        request.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(text)
    return request
