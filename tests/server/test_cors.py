"""Cross-origin requests, as browsers send them: preflights, answers, errors and streams."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

PAGE, OTHER = "https://chat.example.com", "https://evil.example"
CHAT = {"model": "llm", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "m", "FP32", 1)
    write_scripted(folder, "llm", {"reply": "hello", "chat_template": "{{ messages[0].content }}"})
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text("secret\n")
    flags = (f'--allowed-origins=["{PAGE}"]', f"--openai-api-key-file={folder / 'keys'}", "--ollama-api=true")
    with ConchProcess(root, *flags, log=folder / "log") as process:
        yield process


def ask(
    server: ConchProcess, method: str, path: str, origin: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)
    sent = {"Origin": origin} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), sent)
    answer = connection.getresponse()
    received = {name.lower(): value for name, value in answer.getheaders()}
    content = answer.read()
    connection.close()
    return answer.status, received, content


def preflight(server: ConchProcess, path: str, origin: str) -> tuple[int, dict[str, str]]:
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    return ask(server, "OPTIONS", path, origin, **asked)[:2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/m/infer", "/openai/v1/models"])
def test_preflight_needs_no_key_and_names_what_a_page_may_send(server: ConchProcess, path: str) -> None:
    status, headers = preflight(server, path, PAGE)
    assert status == 204
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["access-control-allow-methods"] == "POST"
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert headers["access-control-max-age"] == "600"
    assert headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    ("path", "origin"), [("/v1/chat/completions", OTHER), ("/v2/limits", PAGE), ("/api/chat", PAGE)]
)
def test_other_pages_and_local_endpoints_stay_closed(server: ConchProcess, path: str, origin: str) -> None:
    status, headers = preflight(server, path, origin)
    assert status in (401, 403, 405)
    assert not [name for name in headers if name.startswith("access-control")]


def test_pages_can_read_answers_streams_and_errors(server: ConchProcess) -> None:
    key = {"Authorization": "Bearer secret"}
    for body, more, expected in (
        (CHAT, key, 200),
        (CHAT | {"stream": True}, key, 200),
        (CHAT, {}, 401),
        ({}, key, 400),
    ):
        status, headers, _ = ask(server, "POST", "/v1/chat/completions", PAGE, body, **more)
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (expected, PAGE, "Origin")
        assert "X-Conch-Ignored" in headers["access-control-expose-headers"]
    status, headers, _ = ask(server, "POST", "/v1/chat/completions", OTHER, CHAT, **key)
    assert status == 200  # a browser would not show it to the page
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("flags", "origin", "credentials"),
    [
        (("--allowed-origins=*",), "*", None),
        ((f"--allowed-origins=http://a,{OTHER}", "--allow-credentials=true"), OTHER, "true"),
    ],
)
def test_all_pages_or_some_with_credentials(
    flags: tuple[str, ...], origin: str, credentials: str | None, root: Path, tmp_path: Path
) -> None:
    with ConchProcess(root, *flags, log=tmp_path / "log") as server:
        _, headers, _ = ask(server, "GET", "/v2", OTHER)
    assert headers["access-control-allow-origin"] == origin
    assert headers.get("access-control-allow-credentials") == credentials
