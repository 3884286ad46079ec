"""`/openapi.json` and `/docs` of a real server: schemathesis sends what the document describes."""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from schemathesis import Case, openapi
from schemathesis.checks import (
    not_a_server_error,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from conch.server.frontends.endpoints import API, ENDPOINTS, METRICS_PORT
from conch.server.frontends.openapi import paths_of
from tests.support.models import write_identity, write_scripted
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

SCRIPT = "<img src=x onerror=alert(1)>"
# What Triton answers with 500 as well.
OWN_500 = b"failed to parse the request JSON buffer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("openapi")
    write_identity(root / "models", "fixed", "FP32", 4)
    write_identity(root / "models", "open", "INT64", -1)
    write_identity(root / "models", SCRIPT.replace("/", ""), "FP32", 1)
    write_scripted(root / "models", "llm", {"reply": "hello"})
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true", "--openai-port=0")
    with ConchProcess(root / "models", *flags, log=root / "log") as running:
        yield running


def ask(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def document_of(port: int) -> dict[str, Any]:
    response, body = ask(port, "/openapi.json")
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    return json.loads(body)


@pytest.fixture(scope="module")
def document(server: ConchProcess) -> dict[str, Any]:
    return document_of(server.ports["http"])


def openai_port(server: ConchProcess) -> int:
    (port,) = re.findall(r"Started OpenAI Service at \S*:(\d+)", server.text)
    return int(port)


def test_the_document_is_valid_and_has_every_endpoint_of_its_port(
    server: ConchProcess, document: dict[str, Any]
) -> None:
    documents = {"http": document, "openai": document_of(openai_port(server))}
    for port in API:
        validate(documents[port])
        described = {(method, path) for path, item in documents[port]["paths"].items() for method in item}
        for endpoint in ENDPOINTS:
            served = endpoint.path.startswith("/api/") or endpoint.path == "/"  # Ollama's, with a flag only
            for path in paths_of(endpoint.path) if port in endpoint.ports and not served else ():
                assert {(method, path) for method in endpoint.methods.lower().split()} <= described
    assert METRICS_PORT not in documents
    assert "/v2/models/fixed/infer" not in documents["openai"]["paths"]


def test_inputs_and_outputs_of_models_have_types(document: dict[str, Any]) -> None:
    described = document["paths"]["/v2/models/fixed/infer"]["post"]["requestBody"]["content"]["application/json"]
    schema = described["schema"] | {"components": document["components"]}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4.5]}
    validator = Draft202012Validator(schema)
    validator.validate({"inputs": [tensor]})
    wrong = [{"shape": [5]}, {"datatype": "INT32"}, {"name": "x"}, {"data": ["a"]}, {"data": 1}, {"shape": ["4"]}]
    for change in wrong:
        assert not validator.is_valid({"inputs": [tensor | change]}), change
    assert not validator.is_valid({"inputs": []})
    generated = document["paths"]["/v2/models/open/generate"]["post"]["requestBody"]["content"]["application/json"]
    validator = Draft202012Validator(generated["schema"])
    validator.validate({"INPUT0": [1, 2]})
    assert not validator.is_valid({"INPUT0": 2**63})
    assert not validator.is_valid({})


def test_servers_do_what_the_document_says(server: ConchProcess) -> None:
    schema = openapi.from_url(f"http://127.0.0.1:{server.ports['http']}/openapi.json")
    tried = set()

    def send(case: Case) -> None:
        response = case.call()
        tried.add((case.method, case.path))
        checks = [content_type_conformance, response_schema_conformance, status_code_conformance]
        if not (response.status_code == 500 and OWN_500 in response.content) and response.status_code != 501:
            checks.append(not_a_server_error)
        case.validate_response(response, checks=checks)

    few = settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.endswith(("load", "unload")):
            seed(20261123)(few(given(case=operation.as_strategy())(send)))()
    assert len(tried) > 60


def test_answers_and_queries_are_described(server: ConchProcess, document: dict[str, Any]) -> None:
    paths = document["paths"]
    for path in ("/v2", "/v2/models/{model}", "/v2/models/{model}/versions/{version}/stats", "/v2/limits", "/version"):
        schema = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema["required"], path
    files = paths["/v1/files"]["get"]["parameters"]
    assert {parameter["name"] for parameter in files} == {"limit", "after", "order", "purpose"}


def test_ports_of_cloud_platforms_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_identity(tmp_path / "models", "m", "FP32", 1)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/healthy")
    sagemaker, vertex = free_port(), free_port()
    flags = (f"--sagemaker-port={sagemaker}", f"--vertex-ai-port={vertex}")
    platforms = ("--allow-sagemaker=true", "--allow-vertex-ai=true")
    with ConchProcess(tmp_path / "models", *flags, *platforms, log=tmp_path / "log") as server:
        described = document_of(server.ports["http"])
        validate(described)
        paths = described["paths"]
        for path in ("/invocations", "/models", "/models/{model}", "/models/{model}/invoke"):
            assert paths[path]["servers"] == [{"url": f"http://localhost:{sagemaker}"}]
        for path in ("/predict", "/healthy"):
            assert paths[path]["servers"] == [{"url": f"http://localhost:{vertex}"}]
        assert "servers" not in paths["/ping"]
        assert ask(sagemaker, "/models")[0].status == ask(vertex, "/healthy")[0].status == 200


def test_the_page_loads_nothing_else_and_runs_no_other_script(server: ConchProcess) -> None:
    for port in (server.ports["http"], openai_port(server)):
        response, page = ask(port, "/docs")
        assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert b"http://" not in page
        assert b"https://" not in page
        assert b"innerHTML" not in page


@pytest.mark.parametrize(
    "headers",
    [{"Host": "rebound.example.com"}, {"Origin": "https://example.com"}, {"X-Forwarded-For": "10.0.0.1"}],
)
def test_the_page_is_for_this_machine(server: ConchProcess, headers: dict[str, str]) -> None:
    response, body = ask(server.ports["http"], "/docs", headers=headers)
    assert response.status == 403
    assert b"--docs-remote" in body
    assert b"--api-key-file" not in body


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_hostile_requests(server: ConchProcess, path: str) -> None:
    port = server.ports["http"]
    assert ask(port, path, headers={"Content-Length": "5"}, body=b"12345")[0].status == 413
    assert ask(port, path + "?" + "x" * 50_000)[0].status == 200
    assert ask(port, path + "?" + "x" * 70_000)[0].status == 431
    for method in ("POST", "PUT", "DELETE"):
        response, _ = ask(port, path, method)
        assert (response.status, response.headers["Allow"]) == (405, "GET")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n".encode()
        )
        assert raw.recv(64).startswith(b"HTTP/1.1 413")


def test_names_that_are_markup_are_in_no_page(server: ConchProcess, document: dict[str, Any]) -> None:
    assert any(
        "onerror" in name["name"] for name in json.loads(ask(server.ports["http"], "/v2/repository/index", "POST")[1])
    )
    assert "onerror" not in json.dumps(document["paths"])
    assert b"onerror" not in ask(server.ports["http"], "/docs")[1]


def test_keys_protect_the_document(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "FP32", 1)
    (tmp_path / "keys").write_text("user infer key-of-user\n")
    (tmp_path / "keys").chmod(0o600)
    flags = (f"--api-key-file={tmp_path / 'keys'}", "--docs-remote=true")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        port = server.ports["http"]
        assert ask(port, "/openapi.json")[0].status == 401
        response, body = ask(port, "/openapi.json", headers={"Authorization": "Bearer key-of-user"})
        assert response.status == 200
        paths = json.loads(body)["paths"]
        assert paths["/v2/repository/index"]["post"]["x-conch-scope"] == "manage"
        assert "security" not in paths["/v2/health/live"]["get"]
        assert ask(port, "/docs", headers={"Host": "conch.example.com"})[0].status == 200
