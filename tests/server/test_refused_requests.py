"""Refused and failed requests in the request log and in trace files of a real server."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from conch.operate.traces.read import read_traces
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"
REQUEST = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
KEY = {"Authorization": "Bearer key-of-a"}
INFER, CHAT = "/v2/models/m/infer", "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("refused")
    write_python(folder / "models", "m", TENSORS, 'raise ValueError("no luck")')
    write_scripted(folder / "models", "words", {"reply": "Good."})
    (folder / "keys").write_text("a infer key-of-a\nb manage key-of-b\n")
    (folder / "keys").chmod(0o600)
    flags = (
        f"--api-key-file={folder / 'keys'}",
        "--log-requests=errors",
        "--log-format=json",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={folder / 'traces.json'}",
    )
    with ConchProcess(folder / "models", *flags, log=folder / "log", wait="live") as process:
        process.until_logged('"models": ')
        yield process


def post(server: ConchProcess, path: str, body: Any, headers: dict[str, str]) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}{path}", data, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def logged(server: ConchProcess, count: int) -> list[dict[str, Any]]:
    """Return the lines of the request log, from line `count` on, when there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = [json.loads(line) for line in server.text.splitlines() if '"message": "request"' in line]
        if len(lines) > count:
            return lines[count:]
        time.sleep(0.02)
    raise AssertionError(server.text)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "expected"),
    [
        (INFER, REQUEST, {}, 401, {"path": INFER, "status": "UNAUTHENTICATED", "error": "You didn't provide an API"}),
        (INFER, REQUEST, {"Authorization": "Bearer x"}, 401, {"error": "Incorrect API key provided."}),
        (INFER, REQUEST, {"Authorization": "Bearer key-of-b"}, 403, {"status": "PERMISSION_DENIED"}),
        (CHAT, MESSAGES, {}, 401, {"path": CHAT, "status": "UNAUTHENTICATED", "reason": "REJECTED"}),
        (CHAT, b"{", KEY, 400, {"path": CHAT, "status": "INVALID_ARG"}),
        ("/v1/completions", {"prompt": 5}, KEY, 400, {"path": "/v1/completions", "status": "INVALID_ARG"}),
        ("/v1/embeddings", {"model": "m"}, KEY, 400, {"path": "/v1/embeddings", "status": "INVALID_ARG"}),
        (CHAT, {"model": "nope", **MESSAGES}, KEY, 404, {"model": "nope", "status": "NOT_FOUND"}),
        ("/v2/models/nope/infer", REQUEST, KEY, 404, {"model": "nope", "status": "NOT_FOUND"}),
        (INFER, b"{", KEY, 400, {"model": "m", "status": "INVALID_ARG"}),
        (INFER, {"inputs": []}, KEY, 400, {"model": "m", "status": "INVALID_ARG"}),
        (INFER, REQUEST, KEY, 500, {"model": "m", "reason": "BACKEND", "error": "Failed to process the request(s)"}),
    ],
)
def test_a_refused_request_has_a_line(
    server: ConchProcess, path: str, body: Any, headers: dict[str, str], status: int, expected: dict[str, str]
) -> None:
    before = server.text.count('"message": "request"')
    assert post(server, path, body, headers) == status
    (line,) = logged(server, before)
    assert {name: line[name][: len(value)] for name, value in expected.items()} == expected
    assert "key-of" not in server.text


def test_a_refused_call_over_grpc_has_a_line_each_time(server: ConchProcess) -> None:
    wanted = grpc.InferInput("INPUT0", [1], "FP32")
    wanted.set_data_from_numpy(np.ones(1, np.float32))
    before = server.text.count('"message": "request"')
    with grpc.InferenceServerClient(server.grpc) as client:
        for number in range(3):
            with pytest.raises(InferenceServerException, match="You didn't provide an API key"):
                client.infer("m", [wanted])
            lines = logged(server, before + number)
            assert [(line["protocol"], line["status"]) for line in lines] == [("grpc", "UNAUTHENTICATED")]


def test_trace_files_show_refused_and_failed_requests(server: ConchProcess) -> None:
    file = server.log.parent / "traces.json"
    assert post(server, "/v2/models/unknown/infer", REQUEST, KEY) == 404
    assert post(server, INFER, REQUEST, KEY) == 500
    deadline = time.monotonic() + 60
    while True:
        entries = json.loads(file.read_text()) if file.exists() else []
        errors = {entry["id"]: entry["error"] for entry in entries if "error" in entry}
        models = {entry["id"]: entry["model_name"] for entry in entries if "model_name" in entry}
        by_model = {models[number]: error for number, error in errors.items()}
        if {"unknown", "m"} <= by_model.keys():
            break
        assert time.monotonic() < deadline, entries
        time.sleep(0.05)
    assert by_model["unknown"] == {
        "code": "NOT_FOUND",
        "reason": "OTHER",
        "message": "Request for unknown model: 'unknown' is not found",
    }
    assert (by_model["m"]["code"], by_model["m"]["reason"]) == ("INTERNAL", "BACKEND")
    recorded = read_traces([str(file)])
    assert any("no luck" in span.error for span in recorded.requests)
