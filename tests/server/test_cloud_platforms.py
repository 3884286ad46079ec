"""The ports of SageMaker and Vertex AI, against replies that Triton 2.51 sent to the same requests."""

import http.client
import json
import os
import re
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import tensor, write_config, write_ensemble, write_identity
from tests.support.server_process import ConchProcess

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_AI = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
NUMBERS = struct.pack("<4f", 1, 2, 3, 4)
IN_JSON = b'{"id":"7","inputs":[{"name":"IN","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
HEAD = (
    b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}],'
    b'"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]}'
)
# Triton's replies.
OUT_JSON = (
    b'{"id":"7","model_name":"%b","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[4],'
    b'"data":[1.0,2.0,3.0,4.0]}]}'
)
OUT_HEAD = (
    b'{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[4],'
    b'"parameters":{"binary_data_size":16}}]}'
)
MODEL = f"input {tensor('IN', 'FP32', 4)} output {tensor('OUT', 'FP32', 4)}"
_STARTED = re.compile(r"Started (Sagemaker HTTPService|Vertex AI HTTPService) at \S*:(\d+)")


class Ports(dict[str, int]):
    """The ports of one server with both platforms, and the folder in which SageMaker unpacks archives."""

    places: Path


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("cloud")
    write_config(folder / "models", "m", f'backend: "identity" {MODEL}')
    places = folder / "places"
    for name in ("h1", "h2"):
        write_config(places / name / "model", "inner", f'backend: "identity" {MODEL}')
    write_config(places, "h3", f'backend: "identity" {MODEL}')
    write_config(places, "broken", 'backend: "identity" input { name: "IN" }')
    for name in ("first", "second"):
        write_identity(places / "steps", name, "FP32", 4)
    write_ensemble(
        *(places / "steps", "both"),
        f"input {tensor('A', 'FP32', 4)}",
        f"output {tensor('C', 'FP32', 4)}",
        ("first", {"INPUT0": "A"}, {"OUTPUT0": "B"}),
        ("second", {"INPUT0": "B"}, {"OUTPUT0": "C"}),
    )
    write_config(folder / "outside", "m2", f'backend: "identity" {MODEL}')
    (places / "link").symlink_to(folder / "outside" / "m2")
    variables = {
        "AIP_PREDICT_ROUTE": "/predict",
        "AIP_HEALTH_ROUTE": "/health",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m",
    }
    os.environ.update(variables)
    try:
        server = ConchProcess(
            folder / "models",
            f"--model-repository={places}",
            *("--model-control-mode=explicit", "--load-model=m"),
            *("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0"),
            "--vertex-ai-default-model=m",
            log=folder / "log",
        )
        with server:
            ports = Ports({name.split()[0]: int(port) for name, port in _STARTED.findall(server.text)})
            ports.places = places
            yield ports
    finally:
        for name in variables:
            del os.environ[name]


def call(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "reply"),
    [
        ("GET", "/ping", b"", "", 200, b""),
        ("POST", "/ping", b"", "", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/invocations", IN_JSON, "", 200, OUT_JSON % b"m"),
        ("GET", "/invocations", b"", "", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/invocations", HEAD + NUMBERS, f"{SAGEMAKER}{len(HEAD)}", 200, OUT_HEAD + NUMBERS),
        # Numbers are read as by atoi.
        ("POST", "/invocations", HEAD + NUMBERS, f"{SAGEMAKER} {len(HEAD)}", 200, OUT_HEAD + NUMBERS),
        ("POST", "/invocations", HEAD + NUMBERS, f"{SAGEMAKER}{len(HEAD)}x", 200, OUT_HEAD + NUMBERS),
        ("POST", "/invocations", NUMBERS, f"{SAGEMAKER}0", 200, OUT_HEAD + NUMBERS),
        (
            *("POST", "/invocations", HEAD + NUMBERS, f"{SAGEMAKER}-1", 400),
            b'{"error":"inference header size should be in range (0, %d), got: -1"}' % len(HEAD + NUMBERS),
        ),
        (
            *("POST", "/invocations", HEAD + NUMBERS, f"{SAGEMAKER}99999", 400),
            b'{"error":"inference header size should be in range (0, %d), got: 99999"}' % len(HEAD + NUMBERS),
        ),
        (
            *("POST", "/invocations", HEAD + NUMBERS, f"x{SAGEMAKER}1", 400),
            f'{{"error":"expect MIME type for binary data starts with \'{SAGEMAKER}\', got: x{SAGEMAKER}1"}}'.encode(),
        ),
        ("GET", "/models/x", b"", "", 404, b""),
        ("DELETE", "/models/x", b"", "", 404, b""),
        ("POST", "/models/x/invoke", b"", "", 404, b""),
        ("GET", "/models/x/invoke", b"", "", 404, b""),
        ("PUT", "/models", b"", "", 400, b""),
        ("GET", "/", b"", "", 400, b""),
        ("GET", "/v2", b"", "", 400, b""),
        ("GET", "/models//x", b"", "", 400, b""),
    ],
)  # fmt: skip
def test_sagemaker_as_recorded(
    ports: Ports, method: str, path: str, body: bytes, kind: str, status: int, reply: bytes
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    got, type_of_reply, text = call(ports["Sagemaker"], method, path, body, **headers)
    assert (got, text) == (status, reply)
    if text.startswith(OUT_HEAD):
        assert type_of_reply == f"{SAGEMAKER}{len(OUT_HEAD)}"


def test_the_header_of_the_http_port_does_not_count(ports: Ports) -> None:
    headers = {"Inference-Header-Content-Length": str(len(HEAD))}
    assert call(ports["Sagemaker"], "POST", "/invocations", HEAD + NUMBERS, **headers)[0] == 400


def load(ports: Ports, name: str, url: str, target: str = "") -> tuple[int, dict[str, Any]]:
    body = json.dumps({"model_name": name, "url": url}).encode()
    headers = {TARGET: target} if target else {}
    status, _, text = call(ports["Sagemaker"], "POST", "/models", body, **headers)
    return status, json.loads(text) if text else {}


def listed(ports: Ports) -> list[dict[str, str]]:
    models: list[dict[str, str]] = json.loads(call(ports["Sagemaker"], "GET", "/models")[2])["models"]
    return models


def test_an_endpoint_with_several_models(ports: Ports) -> None:
    port, url = ports["Sagemaker"], str(ports.places / "h1" / "model")
    assert load(ports, "h1", url) == (200, {})
    assert load(ports, "h1", url) == (409, {"error": f"model repository '{url}' has already been registered"})
    row = {"modelName": "h1", "modelUrl": url}
    assert listed(ports) == [row]
    assert json.loads(call(port, "GET", "/models/h1")[2]) == row
    assert call(port, "POST", "/models/h1/invoke", IN_JSON)[::2] == (200, OUT_JSON % b"h1")
    assert call(port, "DELETE", "/models/h1")[0] == 200
    assert call(port, "DELETE", "/models/h1")[0] == 404
    assert call(port, "POST", "/models/h1/invoke", IN_JSON)[0] == 404
    assert listed(ports) == []
    # Again, under the archive's name.
    assert load(ports, "h1", url, "t.tar.gz") == (200, {})
    assert call(port, "POST", "/models/h1/invoke", IN_JSON)[::2] == (200, OUT_JSON % b"t.tar.gz")
    assert load(ports, "h2", str(ports.places / "h2" / "model"), "t.tar.gz")[0] == 409
    assert load(ports, "h2", str(ports.places / "h2" / "model"), "m")[0] == 409  # another model of the server
    assert call(port, "POST", "/invocations", IN_JSON)[0] == 200
    assert call(port, "DELETE", "/models/h1", None, **{TARGET: "t.tar.gz"})[0] == 200


def test_a_folder_that_is_a_model_and_one_with_an_ensemble(ports: Ports) -> None:
    port = ports["Sagemaker"]
    assert load(ports, "h3", str(ports.places / "h3")) == (200, {})
    assert call(port, "POST", "/models/h3/invoke", IN_JSON)[::2] == (200, OUT_JSON % b"h3")
    assert load(ports, "e", str(ports.places / "steps"), "pipeline.tar.gz") == (200, {})
    body = IN_JSON.replace(b'"IN"', b'"A"')
    status, _, text = call(port, "POST", "/models/e/invoke", body)
    assert (status, json.loads(text)["model_name"], json.loads(text)["outputs"][0]["name"]) == (
        *(200, "pipeline.tar.gz"), "C"
    )  # fmt: skip
    for name in ("h3", "e"):
        assert call(port, "DELETE", f"/models/{name}")[0] == 200


def test_a_failed_load_leaves_the_server_ready(ports: Ports) -> None:
    status, answer = load(ports, "b", str(ports.places / "broken"))
    assert (status, "must specify 'data_type'" in answer["error"]) == (400, True)
    assert call(ports["Sagemaker"], "GET", "/ping")[0] == 200
    assert listed(ports) == []


@pytest.mark.parametrize(
    "url",
    ["", "/", "/proc/self", "/nonexistent", "models", "{places}", "{places}/../outside/m2", "{places}/link",
     "{places}/h1/../../outside/m2", "{places}/h1\0", "file://{places}/h1", "{places}/h1/model/inner/config.pbtxt"],
)  # fmt: skip
def test_folders_outside_of_the_repositories_are_refused(ports: Ports, url: str) -> None:
    status, answer = load(ports, "h", url.replace("{places}", str(ports.places)))
    assert status == 400
    assert "repository not found: expected a folder below a --model-repository" in answer["error"]


@pytest.mark.parametrize(
    "body", [b"x", b"[]", b'{"model_name":1,"url":"/x"}', b"{}", b'{"model_name":"a/b","url":"/x"}']
)
def test_malformed_loads_are_refused(ports: Ports, body: bytes) -> None:
    assert call(ports["Sagemaker"], "POST", "/models", body)[0] == 400  # Triton's process ends at some of these
    assert load(ports, "h1", str(ports.places / "h1" / "model"), "..")[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "redirect", "body", "status", "reply"),
    [
        ("GET", "/health", "", b"", 200, b""),
        ("POST", "/health", "", b"", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/predict", "", IN_JSON, 200, OUT_JSON % b"m"),
        ("GET", "/predict", "", b"", 405, b'{"error":"Method Not Allowed"}'),
        ("GET", "/", "", b"", 400, b""),
        ("GET", "/v2", "", b"", 400, b""),
        ("POST", "/predict/", "", b"", 400, b""),
        ("POST", "/predict", "v2/health/live", b"", 200, b""),
        ("POST", "/predict", "v2/models/m/ready", b"", 200, b""),
        ("POST", "/predict", "v2/models/m/infer", IN_JSON, 200, OUT_JSON % b"m"),
        ("POST", "/predict", "v2/models/m/versions/1/infer", IN_JSON, 200, OUT_JSON % b"m"),
        (
            *("POST", "/predict", "v2/models/none/infer", IN_JSON, 404),
            b'{"error":"Request for unknown model: \'none\' is not found"}',
        ),
        ("POST", "/predict", "v2/trace/setting", b"", 400, b""),
        ("POST", "/predict", "v2/logging", b"", 400, b""),
        ("POST", "/predict", "v2/limits", b"", 400, b""),
        ("POST", "/predict", "xx", b"", 400, b""),
        ("POST", "/predict", "/v2", b"", 400, b""),
        ("GET", "/predict", "v2", b"", 405, b""),
    ],
)  # fmt: skip
def test_vertex_ai_as_recorded(
    ports: Ports, method: str, path: str, redirect: str, body: bytes, status: int, reply: bytes
) -> None:
    headers = {REDIRECT: redirect} if redirect else {}
    assert call(ports["Vertex"], method, path, body, **headers)[::2] == (status, reply)


@pytest.mark.parametrize(
    ("redirect", "key"),
    [
        ("v2", "extensions"),
        ("v2/models/m", "inputs"),
        ("v2/models/m/config", "backend"),
        ("v2/models/stats", "model_stats"),
        ("v2/models/m/stats", "model_stats"),
    ],
)
def test_redirects_to_documents(ports: Ports, redirect: str, key: str) -> None:
    status, _, text = call(ports["Vertex"], "POST", "/predict", b"", **{REDIRECT: redirect})
    assert (status, key in json.loads(text)) == (200, True)


def test_redirects_to_the_repository_and_metrics(ports: Ports) -> None:
    port = ports["Vertex"]
    index = json.loads(call(port, "POST", "/predict", b"", **{REDIRECT: "v2/repository/index"})[2])
    assert {"name": "m", "version": "1", "state": "READY"} in index
    assert b"nv_inference_count" in call(port, "POST", "/predict", b"", **{REDIRECT: "metrics"})[2]
    assert call(port, "POST", "/predict", b"", **{REDIRECT: "v2/repository/models/h3/load"})[0] == 200
    assert call(port, "POST", "/predict", b"", **{REDIRECT: "v2/repository/models/h3/unload"})[0] == 200


def test_binary_data_over_vertex_ai(ports: Ports) -> None:
    kind = {"Content-Type": f"{VERTEX_AI}{len(HEAD)}"}
    for more in ({}, {REDIRECT: "v2/models/m/infer"}):
        status, type_of_reply, text = call(ports["Vertex"], "POST", "/predict", HEAD + NUMBERS, **kind, **more)
        assert (status, type_of_reply, text) == (200, "application/octet-stream", OUT_HEAD + NUMBERS)


def test_restrictions_and_keys_hold_on_both_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "models", "m", f'backend: "identity" {MODEL}')
    (tmp_path / "keys").write_text("caller infer secret-of-caller\n")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    flags = ("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0")
    keys = (f"--api-key-file={tmp_path / 'keys'}", "--http-restricted-api=metadata:x-key=1")
    with ConchProcess(tmp_path / "models", *flags, *keys, log=tmp_path / "log") as server:
        port = {name.split()[0]: int(port) for name, port in _STARTED.findall(server.text)}
        key = {"Authorization": "Bearer secret-of-caller"}
        for name, path, health in (("Sagemaker", "/invocations", "/ping"), ("Vertex", "/predict", "/health")):
            assert call(port[name], "POST", path, IN_JSON)[0] == 401
            assert call(port[name], "POST", path, IN_JSON, **key)[0] == 200
            assert call(port[name], "GET", health)[0] == 200
        assert call(port["Sagemaker"], "POST", "/models", b"{}")[0] == 401
        assert call(port["Sagemaker"], "GET", "/models", b"", **key)[0] == 403  # needs the scope manage
        assert call(port["Vertex"], "POST", "/predict", b"", **key, **{REDIRECT: "v2"})[0] == 403
        assert call(port["Vertex"], "POST", "/predict", b"", **key, **{REDIRECT: "v2/repository/index"})[0] == 403
        assert call(port["Vertex"], "POST", "/predict", b"", **key, **{REDIRECT: "metrics"})[0] == 403


def test_vertex_ai_by_its_variables(tmp_path: Path) -> None:
    write_config(tmp_path / "models", "only", f'backend: "identity" {MODEL}')
    variables = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "0",
        "AIP_PREDICT_ROUTE": "/p:predict",
        "AIP_HEALTH_ROUTE": "/h",
        "AIP_STORAGE_URI": str(tmp_path / "models"),
    }
    log = tmp_path / "log"
    command = [sys.executable, "-m", "conch", "serve", "--http-address=127.0.0.1", "--allow-metrics=false"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=os.environ | variables, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while not (match := _STARTED.search(log.read_text())) or not ready(int(match[2])):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert call(int(match[2]), "POST", "/p:predict", IN_JSON)[::2] == (200, OUT_JSON % b"only")
        assert "Started HTTPService" not in log.read_text()
        assert "GRPCInferenceService" not in log.read_text()
    finally:
        process.terminate()
        assert process.wait(60) == 0


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/h", timeout=60) as response:
            return bool(response.status == 200)
    except OSError:
        return False
