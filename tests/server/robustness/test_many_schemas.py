"""Each request with another schema: what server and engine keep of them is bounded, in memory and on disk."""

import http.client
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

EXAMPLE = Path(__file__).parents[3] / "examples" / "models" / "chat"
CLIENTS = 4
MIB = 1 << 20
# In any process of the server, after the first third of the requests.
MAX_GROWTH_BYTES = 48 * MIB


def schema(number: int) -> dict[str, Any]:
    """A schema that no other request has."""
    return {"type": "object", "properties": {f"field{number}": {"const": number}}, "required": [f"field{number}"]}


def with_tool(number: int) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": f"tool{number}", "parameters": schema(number)}}]}


def with_format(number: int) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"const": number}}}
    return {"response_format": form, "max_tokens": 12}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which all temporary files of the server are."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


def test_schemas_of_tools(folder: Path) -> None:
    write_scripted(folder / "models", "chat", {"reply": "a", "chat_template": "{{ tools }}<tool_call>"})
    with ConchProcess(folder / "models", log=folder / "log") as server:
        assert_flat(server, folder, with_tool, 3000)


def test_schemas_of_answers(folder: Path) -> None:
    pytest.importorskip("openvino_genai", reason="openvino-genai is not here: `make test` installs it")
    shutil.copytree(EXAMPLE, folder / "models" / "chat")
    with ConchProcess(folder / "models", log=folder / "log") as server:
        answers = assert_flat(server, folder, with_format, 450)
    assert [json.loads(answer) for answer in answers] == list(range(450))


def assert_flat(server: ConchProcess, folder: Path, fields: Any, requests: int) -> list[str]:
    """Send requests, compare memory and disk after a third of them with the end, and return the answers."""
    answers = [*sent(server, fields, range(requests // 3))]
    memory, disk = held(server), on_disk(folder)
    answers += sent(server, fields, range(requests // 3, requests))
    growth = {pid: size - memory[pid] for pid, size in held(server).items() if pid in memory}
    assert growth.keys() >= {server.process.pid}
    assert max(growth.values()) < MAX_GROWTH_BYTES, growth
    assert on_disk(folder) <= disk + MIB
    return answers


def sent(server: ConchProcess, fields: Any, numbers: range) -> Iterator[str]:
    """Send the requests of some numbers, several at the same time; yield the texts of the answers, in order."""

    def send(part: int) -> list[str]:
        with closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
            return [ask(connection, fields(number)) for number in numbers[part::CLIENTS]]

    with ThreadPoolExecutor(CLIENTS) as pool:
        parts = [*pool.map(send, range(CLIENTS))]
    for position in range(len(numbers)):
        yield parts[position % CLIENTS][position // CLIENTS]


def ask(connection: http.client.HTTPConnection, fields: dict[str, Any]) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": "say"}], **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    return str(json.loads(text)["choices"][0]["message"]["content"])


def held(server: ConchProcess) -> dict[int, int]:
    """Return the memory of the server's processes by their ids."""
    own = psutil.Process(server.process.pid)
    return {process.pid: process.memory_info().rss for process in (own, *own.children(recursive=True))}


def on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
