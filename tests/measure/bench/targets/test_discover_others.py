"""What `discover` says of servers that are not Conch, and of what is not an inference server."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from conch.measure.bench.generator import Tls
from conch.measure.bench.input_settings import Amount, InputError, InputSettings
from conch.measure.bench.inputs.build import prepare_inputs
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import ModelKind, Protocol, TargetError, is_address, parse_address
from tests.measure.bench.targets.odd_servers import Route, as_json, scripted, speaking

V2 = as_json({"name": "triton", "version": "2.51.0", "extensions": ["model_repository"]})
FORM = {"name": "IN", "datatype": "FP32", "shape": [-1, 4]}
MODEL = as_json(
    {"name": "m", "versions": ["1"], "platform": "x", "inputs": [FORM], "outputs": [{**FORM, "name": "OUT"}]}
)
CONFIG = as_json({"name": "m", "max_batch_size": 8, "input": [{"name": "IN", "dims": ["4"]}]})
VLLM = {"object": "list", "data": [{"id": "qwen", "owned_by": "vllm", "max_model_len": 512}]}


def index(*rows: dict[str, str]) -> Route:
    return as_json(list(rows))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({"/v2": (404, {"server": "nginx/1.22"}, b"<html>404 Not Found")}, "Server: nginx/1.22, .*looks like nginx"),
        ({"/": (200, {"content-type": "text/html"}, b"<title>My shop</title>")}, "HTML page with the title 'My shop'"),
        (
            {"/": (302, {"location": "/graph"}, b"")},
            "/v2 answers 404 Not Found, without a body; .*looks like Prometheus",
        ),
        ({"/": (302, {"location": "/query"}, b"")}, "looks like Prometheus"),
        ({"/metrics": (200, {}, b"# HELP up Up.\nup 1\n")}, "looks like a metrics port"),
        ({"/v2": (200, {}, b"hello\nworld")}, "/v2 answers 200 OK, 'hello'"),
        ({"/v2": as_json({"error": "no"}, 500)}, "/v2 answers 500 .*: no"),
    ],
)
def test_what_answers_instead_is_described(routes: dict[str, Route], message: str) -> None:
    with scripted(routes) as url, pytest.raises(TargetError, match=message):
        discover(url)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "looks like an SSH server"),
        (b"-ERR unknown command\r\n", "looks like Redis"),
        (b"\x00\x01\x02binary\n", "does not speak HTTP/1.1"),
        (b"", "closes the connection without an answer"),
    ],
)
def test_other_protocols(first: bytes, message: str) -> None:
    with speaking(first) as url:
        with pytest.raises(TargetError, match=message):
            discover(url)
        with pytest.raises(TargetError):
            discover(f"grpc://{url}")


def test_nothing_listens() -> None:
    with pytest.raises(TargetError, match=r"nothing listens at 127\.0\.0\.1:1: connection refused"):
        discover("127.0.0.1:1")
    with pytest.raises(TargetError, match="nothing listens"):
        discover("grpc://127.0.0.1:1")


def test_tls_and_its_mistakes(tls: ssl.SSLContext, ca_file: str) -> None:
    routes = {"/v2": V2, "/v2/repository/index": index({"name": "m", "state": "READY"}), "/v2/models/m": MODEL}
    with scripted(routes, tls) as url:
        assert discover(f"https://{url}", tls=Tls(ca_file)).model.name == "m"
        assert discover(f"https://{url}", tls=Tls(verify=False)).endpoint.tls == Tls(verify=False)
        with pytest.raises(TargetError, match=r"certificate of .* is not trusted.*--ca-file"):
            discover(f"https://{url}")
        with pytest.raises(TargetError, match="expects TLS; use https://"):
            discover(url)
        with pytest.raises(TargetError, match="expects TLS; use https://"):
            discover(f"grpc://{url}")
    with scripted(routes) as url, pytest.raises(TargetError, match="does not speak TLS"):
        discover(f"https://{url}")


def test_a_key_is_needed() -> None:
    def answer(path: str, headers: dict[str, str], body: bytes) -> Route | None:
        if headers.get("authorization") != "Bearer good":
            return as_json({"error": {"message": "Invalid API key"}}, 401)
        return as_json(VLLM) if path == "GET /v1/models" else None

    with scripted(answer) as url:
        with pytest.raises(TargetError, match=r"needs a key .HTTP 401: Invalid API key.; give it with --api-key-file"):
            discover(url)
        target = discover(url, headers=[("Authorization", "Bearer good")])
        assert target.endpoint.headers == (("authorization", "Bearer good"),)
        assert "good" not in repr(target)


def test_vllm() -> None:
    routes = {
        "/v1/models": as_json(VLLM),
        "/version": as_json({"version": "0.11.0"}),
        "/metrics": (200, {}, b"# HELP vllm:num_requests_running x\nvllm:num_requests_running 0\n"),
    }
    with scripted(routes) as url:
        target = discover(url)
    assert (target.server_name, target.server_version) == ("vllm", "0.11.0")
    assert (target.protocol, target.model.name, target.model.context_length) == (Protocol.OPENAI, "qwen", 512)
    assert target.metrics_url == f"http://{url}/metrics"


def test_open_vino_model_server() -> None:
    """It has v2, the OpenAI API under /v3, no repository index and no configuration."""
    routes = {
        "/v2": as_json({"name": "OpenVINO Model Server", "version": "2026.1"}),
        "/v1/config": as_json({"m": {"model_version_status": [{"state": "AVAILABLE"}]}}),
        "/v2/models/m": MODEL,
        "/v3/models": as_json({"data": [{"id": "llm", "owned_by": "OVMS"}]}),
    }
    with scripted(routes) as url:
        with pytest.raises(TargetError, match="has 2 models; choose one with --model: llm, m"):
            discover(url)
        tensors = discover(url, model="m")
        assert (tensors.protocol, tensors.server_name) == (Protocol.HTTP, "OpenVINO Model Server")
        assert tensors.model.batched
        language = discover(url, model="llm")
        assert (language.protocol, language.base_path) == (Protocol.OPENAI, "/v3")
        assert language.model.kind is ModelKind.LANGUAGE


def test_a_prefix_before_the_paths() -> None:
    routes = {"/gate/v2": V2, "/gate/v2/models/m": MODEL, "/gate/v2/models/m/config": CONFIG}
    with scripted(routes) as url:
        target = discover(f"http://{url}/gate/", model="m")
        assert (target.base_path, target.model.max_batch_size) == ("/gate", 8)
        request = prepare_inputs(target, InputSettings()).source.fixed
        assert request is not None
        assert request[0].head.startswith(b"POST /gate/v2/models/m/infer HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"name": "m", "state": "UNAVAILABLE", "reason": "no file"},
            "model 'm' of .* is not ready: UNAVAILABLE: no file",
        ),
        (
            {"name": "m"},
            "model 'm' is in the repository of .* but not loaded; restart .* POST /v2/repository/models/m/load",
        ),
        ({"name": "models", "state": "READY"}, "no model 'm'.* Ready models: models"),
        ({"name": "m", "state": "READY", "version": "2"}, "has no version 9; it has 2"),
    ],
)
def test_models_that_cannot_be_measured(row: dict[str, str], message: str) -> None:
    with scripted({"/v2": V2, "/v2/repository/index": index(row)}) as url, pytest.raises(TargetError, match=message):
        discover(url, model="m", version="9" if "version" in row else "")


def test_fields_that_a_server_refuses_are_left_out() -> None:
    """A strict server: no ignore_eos, no min_tokens, no stream_options, and another name for max_tokens."""
    allowed = {"model", "messages", "stream", "max_completion_tokens"}
    paths: list[str] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> Route | None:
        if path == "GET /v1/models":
            return as_json(VLLM)
        if path != "POST /v1/chat/completions":
            return None
        paths.append(path)
        document: dict[str, Any] = json.loads(body)
        extra = [name for name in document if name not in allowed]
        if extra:
            return as_json({"error": {"message": f"Unrecognized request argument supplied: {extra[0]}"}}, 400)
        return as_json({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 4}})

    with scripted(answer) as url:
        prepared = prepare_inputs(discover(url), InputSettings(output_tokens=Amount(9)))
    assert prepared.source.fixed is not None
    assert b'"max_completion_tokens":9' in prepared.source.fixed[0].body
    assert b"ignore_eos" not in prepared.source.fixed[0].body
    assert [note.split(":")[0] for note in prepared.notes] == [
        f"the server refuses {name}" for name in ("min_tokens", "ignore_eos", "stream_options")
    ] or len(prepared.notes) == 3
    assert len(paths) <= 6


def test_tokens_are_counted_by_usage_without_a_tokenizer() -> None:
    """Chat with three tokens of a template; "answer" and longer words have two tokens."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> Route | None:
        if path == "GET /v1/models":
            return as_json(VLLM)
        if path != "POST /v1/chat/completions":
            return None
        words = json.loads(body)["messages"][-1]["content"].split()
        tokens = 3 + sum(1 if len(word) < 6 else 2 for word in words)
        return as_json({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": tokens}})

    with scripted(answer) as url:
        prepared = prepare_inputs(discover(url), InputSettings(prompt_tokens=Amount(60), distinct=3))
        assert "exactly 60 tokens by usage.prompt_tokens of real requests" in prepared.description
        with pytest.raises(InputError, match="--prompt-tokens 3: the chat template alone have 3"):
            prepare_inputs(discover(url), InputSettings(prompt_tokens=Amount(3)))
    assert prepared.source.fixed is not None
    for request in prepared.source.fixed:
        words = json.loads(request.body)["messages"][0]["content"].split()
        assert 3 + sum(1 if len(word) < 6 else 2 for word in words) == 60


def test_counts_that_are_unknown_are_noted() -> None:
    def answer(path: str, headers: dict[str, str], body: bytes) -> Route | None:
        chats = path == "POST /v1/chat/completions"
        return as_json(VLLM) if path == "GET /v1/models" else as_json({"choices": []}) if chats else None

    with scripted(answer) as url:
        prepared = prepare_inputs(discover(url), InputSettings(prompt_tokens=Amount(60)))
    assert "of about 60 tokens" in prepared.description
    assert any("not exact" in note for note in prepared.notes)


def test_a_server_that_refuses_everything_is_quoted() -> None:
    def answer(path: str, headers: dict[str, str], body: bytes) -> Route | None:
        return as_json(VLLM) if path == "GET /v1/models" else as_json({"error": {"message": "closed today"}}, 400)

    with scripted(answer) as url:
        target = discover(url)
        with pytest.raises(InputError, match="refuses a request to /v1/chat/completions: 400 closed today"):
            prepare_inputs(target, InputSettings())


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("localhost:8000", "localhost", 8000, ""),
        ("localhost", "localhost", 8000, ""),
        ("http://a.example/x/", "a.example", 80, "/x"),
        ("https://a.example", "a.example", 443, ""),
        ("grpc://a.example", "a.example", 8001, ""),
        ("[::1]:9", "::1", 9, ""),
        ("::1", "::1", 8000, ""),
    ],
)
def test_urls(url: str, host: str, port: int, path: str) -> None:
    address = parse_address(url)
    assert (address.host, address.port, address.path) == (host, port, path)
    assert is_address(url)


@pytest.mark.parametrize("name", ["resnet50", "my_model", "org/model-7b", "a.b"])
def test_names_of_models_are_not_addresses(name: str) -> None:
    assert not is_address(name)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://x", "unknown scheme ftp://"),
        ("http://user:secret@x", r"credentials in URLs are not supported"),
        ("http://", "has no host"),
        ("x:99999", "is not a valid URL"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as raised:
        discover(url)
    assert "secret" not in str(raised.value)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # discover does not use proxies
