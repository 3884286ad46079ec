"""Requests that real programs have sent, replayed: each must be served.

Recorded between the program and a server of the scripted engine. Keys, paths of the machine and sentences of the
vendors are replaced; `tools` are stored once and named. A file has `program`, `version`, `tools` and `sessions`.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

FOLDER = Path(__file__).with_name("recorded_sessions")
PROGRAMS = ("claude_code", "langchain_openai", "litellm", "opencode", "pydantic_ai")
RECORDED = {name: json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in PROGRAMS}
ENDS = ("event: message_stop", "data: [DONE]")
SCRIPT = {
    "reply": '<think>Hm.</think>I look. <tool_call>{"name": "Read", "arguments": {"file_path": "a"}}</tool_call>',
    "context_length": 200_000,
    "chat_template": (
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
        "{# <tool_call> #}{{ call.function.arguments }}{% endfor %}\n{% endfor %}"
        "{{ (tools or []) | length }}{# </think> #}"
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("recorded")
    write_scripted(folder / "repository", "words", SCRIPT)
    with ConchProcess(folder / "repository", log=folder / "log") as process:
        yield process


@pytest.mark.parametrize(
    ("program", "session"), [(name, session) for name in sorted(RECORDED) for session in RECORDED[name]["sessions"]]
)
def test_a_session_is_served(server: ConchProcess, program: str, session: str) -> None:
    document = RECORDED[program]
    with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
        for request in document["sessions"][session]:
            body: dict[str, Any] = request["body"]
            if isinstance(body.get("tools"), str):
                body = {**body, "tools": document["tools"][body["tools"]]}
            connection.request("POST", request["path"], json.dumps(body).encode(), request["headers"])
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            if body.get("stream"):
                assert any(f"\n{end}" in text for end in ENDS), text[-500:]
                assert "event: error" not in text
