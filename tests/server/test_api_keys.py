"""Keys on every port of a real server, with the clients that people use."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import openai
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conch.clients.chat import chat
from conch.clients.client import client
from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

KEYS = """
user     infer         key-of-user
admin    manage,infer  key-of-admin
scraper  metrics       key-of-scraper
"""
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()


def write_models(root: Path) -> Path:
    write_identity(root, "echo", "FP32", -1)
    write_scripted(root, "llm", {"reply": "hello", "chat_template": "{{ messages[0].content }}"})
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys")
    write_models(root / "models")
    (root / "keys").write_text(KEYS)
    (root / "keys").chmod(0o600)
    return root


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[ConchProcess]:
    flags = [f"--api-key-file={place / 'keys'}", "--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(place / "models", *flags, log=place / "log") as server:
        yield server


@pytest.mark.parametrize("by", ["file", "file of the server", "CONCH_API_KEY", "OPENAI_API_KEY"])
def test_commands_that_are_clients(
    server: ConchProcess,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    by: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("hi\n")
    (tmp_path / "key").write_text("# mine\n\nkey-of-user\n")
    prompts = ["prompts", "-u", server.grpc, "-m", "llm"]
    talk = ["--url", f"http://{server.http}/v1", "--model", "llm", "hi"]
    for name in ("CONCH_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert (client(prompts), chat(talk)) == (1, 1)
    assert capsys.readouterr().err.count("You didn't provide an API key") == 2
    monkeypatch.setenv("CONCH_API_KEY", "guess")
    assert (client(prompts), chat(talk)) == (1, 1)
    assert capsys.readouterr().err.count("Incorrect API key provided.") == 2
    monkeypatch.delenv("CONCH_API_KEY")
    if by.startswith("file"):
        file = place / "keys" if by == "file of the server" else tmp_path / "key"
        flag = [f"--api-key-file={file}"]
    else:
        monkeypatch.setenv(by, "key-of-user")
        flag = []
    assert (client([*prompts, *flag]), chat([*flag, *talk])) == (0, 0)
    assert "hello" in (tmp_path / "results.txt").read_text()
    assert "hello" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read: No such file"), ("# nothing\n", "contains no key"), ("a b\n", "is neither a key nor")],
)
def test_a_key_file_of_a_client_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    assert chat([f"--api-key-file={file}", "hi"]) == 1
    assert reason in capsys.readouterr().err


def ask(port: int, line: str, key: str = "", body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
    method, path = line.split()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body if method == "POST" else None, headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        ("GET /v2", "user", "scraper"),
        ("GET /v2/models/echo", "user", "scraper"),
        ("GET /v2/models/echo/ready", "user", "scraper"),
        ("GET /v2/models/echo/config", "user", "scraper"),
        ("GET /v2/models/stats", "user", "scraper"),
        ("POST /v2/models/echo/infer", "user", "scraper"),
        ("POST /v2/models/llm/generate", "user", "scraper"),
        ("POST /v2/models/llm/generate_stream", "user", "scraper"),
        ("GET /v1/models", "user", "scraper"),
        ("POST /v1/completions", "user", "scraper"),
        ("POST /v1/chat/completions", "user", "scraper"),
        ("POST /v1/embeddings", "user", "scraper"),
        ("POST /tokenize", "user", "scraper"),
        ("POST /v2/repository/index", "admin", "user"),
        ("POST /v2/repository/models/echo/load", "admin", "user"),
        ("POST /v1/models/nothing/unload", "admin", "user"),
        ("GET /v2/systemsharedmemory/status", "admin", "user"),
        ("GET /v2/trace/setting", "admin", "user"),
        ("GET /v2/logging", "admin", "user"),
    ],
)
def test_http_asks_for_a_key_with_the_right_scope(server: ConchProcess, line: str, right: str, wrong: str) -> None:
    port = server.ports["http"]
    status, _, headers = ask(port, line, body=BODY)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(port, line, "guess", BODY)[0] == 401
    status, body, _ = ask(port, line, f"key-of-{wrong}", BODY)
    assert (status, b"lacks the scope" in body) == (403, True)
    assert ask(port, line, f"key-of-{right}", BODY)[0] not in (401, 403)


def test_health_is_open_and_metrics_have_a_scope(server: ConchProcess) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/health", "/ping"):
        assert ask(server.ports["http"], f"GET {path}")[0] == 200
    metrics = server.ports["metrics"]
    assert [ask(metrics, "GET /metrics", key)[0] for key in ("", "key-of-admin", "key-of-scraper")] == [401, 403, 200]


def test_grpc_asks_for_a_key_with_the_right_scope(server: ConchProcess) -> None:
    user, scraper = ({"authorization": f"Bearer key-of-{user_name}"} for user_name in ("user", "scraper"))
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for headers, code in ((None, "UNAUTHENTICATED"), (scraper, "PERMISSION_DENIED")):
            for call in (client.get_server_metadata, lambda headers: client.is_model_ready("echo", headers=headers)):
                with pytest.raises(InferenceServerException, match=code):
                    call(headers=headers)
        assert client.get_server_metadata(headers=user)
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            client.load_model("echo", headers=user)
        client.load_model("echo", headers={"authorization": "Bearer key-of-admin"})
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4)])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
        assert stub.ModelInfer(request, metadata=[*user.items()]).raw_output_contents == [bytes(4)]
        for metadata, code in (
            ([], grpc.StatusCode.UNAUTHENTICATED),
            ([*user.items()] * 2, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                stub.ModelInfer(request, metadata=metadata)
            assert failed.value.code() is code
            with pytest.raises(grpc.RpcError) as failed:
                next(stub.ModelStreamInfer(iter([request]), metadata=metadata))
            assert failed.value.code() is code


def test_a_key_that_is_taken_away_is_refused_on_open_connections(server: ConchProcess, place: Path) -> None:
    """The heads of repeated calls are remembered; the decision about them is not."""
    headers = {"authorization": "Bearer key-of-guest"}
    children = psutil.Process(server.process.pid).children()
    readers = 1 + sum("frontend " in " ".join(child.cmdline()) for child in children)
    with triton.InferenceServerClient(server.grpc) as client:
        (place / "keys").write_text(KEYS + "guest infer key-of-guest\n")
        server.until_logged(rf"(?s)(API keys reloaded: 4.*){{{readers}}}")
        for _ in range(3):
            assert client.get_server_metadata(headers=headers)
        (place / "keys").write_text(KEYS)
        server.until_logged(rf"(?s)(API keys reloaded: 3.*){{{readers}}}")
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.get_server_metadata(headers=headers)
    assert "key-of-guest" not in server.text


def test_the_key_of_the_openai_api_covers_every_inference(place: Path, tmp_path: Path) -> None:
    (tmp_path / "openai").write_text("sesame\n")
    (tmp_path / "openai").chmod(0o600)
    flag = f"--openai-api-key-file={tmp_path / 'openai'}"
    with ConchProcess(place / "models", flag, log=tmp_path / "log") as server:
        port = server.ports["http"]
        for line in (
            "POST /v2/models/echo/infer",
            "POST /v2/models/llm/generate",
            "POST /v2/models/llm/generate_stream",
        ):
            assert ask(port, line, body=BODY)[0] == 401
            assert ask(port, line, "sesame", BODY)[0] not in (401, 403)
        assert ask(port, "GET /v2/models/echo")[0] == 200
        refused = pytest.raises(InferenceServerException, match="UNAUTHENTICATED")
        with triton.InferenceServerClient(server.grpc) as client, refused:
            client.infer("echo", [])
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sesame") as client:
            assert [model.id for model in client.models.list()] == ["llm"]
        refused = pytest.raises(openai.AuthenticationError)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="guess") as client, refused:
            client.models.list()
