"""Ollama's API of a real server, asked by Ollama's client. The engine follows a script; its words are known."""

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
WORDS: dict[str, Any] = {
    "rules": [
        {"match": "weather", "reply": "It rains all day."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
    ],
    "context_length": 400,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
OTHER = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOLS: dict[str, Any] = {
    "rules": [
        {"match": "=Rome.*It rains", "reply": "So it rains in Rome."},
        {"match": "call it", "reply": f"Let me see. {CALL}{OTHER}"},
        {"match": "not end", "reply": 'Well. <tool_call>{"name": "weather", "arguments": {"city":'},
        {"match": "answer quickly.*unthinking", "reply": "Done."},
        {"match": "think", "reply": "<think>What a question.</think>Done."},
    ],
    "chat_template": (
        "{% for message in messages %}{{ message.content }}"
        "{% for call in message.tool_calls or [] %}{# <tool_call> #}={{ call.function.arguments.city }}{% endfor %} "
        "{% endfor %}{% if enable_thinking is false %}unthinking{% endif %}{# </think> #}"
    ),
}
ASKED = [{"role": "user", "content": "How is the weather?"}]


def weather(city: str) -> str:
    """Return the weather.

    Args:
        city: where
    """
    return f"It rains in {city}."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("ollama")
    models = folder / "models"
    write_scripted(models, "words", WORDS)
    write_scripted(models, "tools", TOOLS)
    for name in ("sentences", "sentence_tokens", "sentence_encoder"):
        shutil.copytree(EXAMPLES / name, models / name)
    with ConchProcess(models, "--ollama-api=true", "--openai-port=0", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=f"http://{server.http}") as made:
        yield made


def raw(server: ConchProcess, head: str, body: str = "") -> tuple[int, str]:
    """The status and the rest of the answer to a request whose head is exactly this."""
    with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60) as made:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        made.sendall(f"{head}\r\n{length}Connection: close\r\n\r\n{body}".encode())
        answer = b""
        while data := made.recv(65536):
            answer += data
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


def test_a_chat(client: ollama.Client) -> None:
    answer = client.chat("words", messages=ASKED)
    assert (answer.message.role, answer.message.content) == ("assistant", "It rains all day.")
    assert (answer.model, answer.done, answer.done_reason, answer.eval_count) == ("words", True, "stop", 4)
    assert answer.prompt_eval_count
    assert answer.total_duration is not None
    assert answer.load_duration is not None
    assert answer.prompt_eval_duration is not None
    assert answer.eval_duration is not None
    assert answer.total_duration == answer.load_duration + answer.prompt_eval_duration + answer.eval_duration


def test_a_streamed_chat_has_the_same_words(client: ollama.Client) -> None:
    *parts, last = client.chat("words:latest", messages=ASKED, stream=True, keep_alive="5m")
    assert "".join(part.message.content or "" for part in parts) == "It rains all day."
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.eval_count, last.message.content) == (True, "stop", 4, "")


def test_the_asynchronous_client(server: ConchProcess) -> None:
    async def ask() -> tuple[str, str]:
        made = ollama.AsyncClient(host=f"http://{server.http}")
        whole, stream = await asyncio.gather(
            made.generate("words", "The weather?"), made.generate("words", "The weather?", stream=True)
        )
        streamed = "".join([part.response or "" async for part in stream])
        await made.close()
        return whole.response or "", streamed

    assert asyncio.run(ask()) == ("It rains all day.", "It rains all day.")


def test_options_apply(client: ollama.Client) -> None:
    options = {"num_predict": 2, "temperature": 0.5, "top_k": 20, "top_p": 0.5, "seed": 3, "num_ctx": 2048}
    cut = client.generate("words", "The weather?", options=options)
    assert (cut.response, cut.done_reason, cut.eval_count) == ("It rains", "length", 2)
    stopped = client.generate("words", "The weather?", options={"stop": [" all"], "num_predict": -1})
    assert (stopped.response, stopped.done_reason) == ("It rains", "stop")


@pytest.mark.parametrize("options", [{"temperature": "hot"}, {"top_p": 0}, {"num_predict": 1.5}, {"stop": [1]}])
def test_wrong_options_are_refused(client: ollama.Client, options: dict[str, Any]) -> None:
    with pytest.raises(ollama.ResponseError, match=next(iter(options))) as error:
        client._request_raw(  # the client's own types would correct the value
            "POST", "/api/generate", json={"model": "words", "prompt": "The weather?", "options": options}
        )
    assert error.value.status_code == 400


def test_a_prompt_is_rendered_with_its_system_or_raw(client: ollama.Client) -> None:
    assert client.generate("words", "Hello", system="Be kind.").response == "Be kind.\nHello\n"
    assert client.generate("words", "Hello", raw=True).response == "Hello"
    logprobs = client.generate("words", "Hello", raw=True, logprobs=True).logprobs
    assert [token.token for token in logprobs or ()] == ["Hello"]


def test_without_a_prompt_the_model_is_loaded(client: ollama.Client) -> None:
    for answer in (client.generate("words"), client.chat("words"), client.generate("words", "", raw=True)):
        assert (answer.done, answer.done_reason) == (True, "load")
    with pytest.raises(ollama.ResponseError, match="idle-unload-secs"):
        client.generate("words", keep_alive=0)
    with pytest.raises(ollama.ResponseError, match="absent"):
        client.generate("absent")


def test_a_loop_of_tool_calls(client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": "Please call it"}]
    answer = client.chat("tools", messages=messages, tools=[weather])
    calls = answer.message.tool_calls or []
    assert answer.message.content == "Let me see."
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Oslo"}),
    ]
    messages += [answer.message, {"role": "tool", "tool_name": "weather", "content": weather("Rome")}]
    assert client.chat("tools", messages=messages, tools=[weather]).message.content == "So it rains in Rome."


def test_streamed_tool_calls(client: ollama.Client) -> None:
    parts = list(client.chat("tools", messages=[{"role": "user", "content": "call it"}], tools=[weather], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments["city"] for call in calls] == ["Rome", "Oslo"]
    assert "".join(part.message.content or "" for part in parts) == "Let me see."


def test_a_call_that_the_model_does_not_end_is_text(client: ollama.Client) -> None:
    for stream in (False, True):
        asked = [{"role": "user", "content": "not end"}]
        answer: Any = client.chat("tools", messages=asked, tools=[weather], stream=stream)
        parts = list(answer) if stream else [answer]
        assert not any(part.message.tool_calls for part in parts)
        assert '"arguments": {"city":' in "".join(part.message.content or "" for part in parts)


def test_thinking(client: ollama.Client) -> None:
    asked = [{"role": "user", "content": "think, then answer quickly"}]
    for think in (None, True, "high"):
        message = client.chat("tools", messages=asked, think=think).message  # type: ignore[call-overload]
        assert (message.thinking, message.content) == ("What a question.", "Done.")
    silent = client.chat("tools", messages=asked, think=False).message
    assert (silent.thinking, silent.content) == (None, "Done.")
    parts = list(client.generate("tools", "think", stream=True, think=True))
    assert "".join(part.thinking or "" for part in parts) == "What a question."
    assert "".join(part.response or "" for part in parts) == "Done."
    with pytest.raises(ollama.ResponseError, match='"words" does not support thinking'):
        client.chat("words", messages=asked, think=True)


@pytest.mark.parametrize("form", ["json", {"type": "object"}])
def test_a_format_that_the_engine_cannot_honour_is_refused(client: ollama.Client, form: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="not support") as error:
        client.chat("words", messages=ASKED, format=form)
    assert error.value.status_code == 400
    assert client.chat("words", messages=ASKED, format="").message.content == "It rains all day."


@pytest.mark.parametrize(
    ("field", "value"), [("suffix", "the end"), ("context", [1, 2]), ("images", "aGVsbG8="), ("format", "xml")]
)
def test_what_would_change_the_answer_is_refused(client: ollama.Client, field: str, value: Any) -> None:
    with pytest.raises(ollama.ResponseError, match=f"'{field}'") as error:
        client._request_raw("POST", "/api/generate", json={"model": "words", "prompt": "Hello", field: value})
    assert error.value.status_code == 400


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="`absent` does not exist") as missing:
        client.chat("absent", messages=ASKED)
    assert missing.value.status_code == 404
    long = "word " * 500
    for ask in (lambda: client.generate("words", long), lambda: list(client.generate("words", long, stream=True))):
        with pytest.raises(ollama.ResponseError, match="context length"):
            ask()
    with pytest.raises(ollama.ResponseError, match="the engine has a fault"):
        list(client.generate("words", "Please fall apart", stream=True))


def test_large_bodies(client: ollama.Client) -> None:
    """A worker process splits them."""
    filler = "x" * 200_000
    history = [{"role": "user", "content": filler}, *ASKED]
    with pytest.raises(ollama.ResponseError, match="context length"):
        client.chat("words", messages=history)
    with pytest.raises(ollama.ResponseError, match="context length"):
        client.generate("words", filler, raw=True)
    with pytest.raises(ollama.ResponseError, match="'prompt' must be a string"):
        client._request_raw("POST", "/api/generate", json={"model": "words", "prompt": [filler]})
    asked = [{"role": "user", "content": "weather", "unused": filler}]  # the template drops it
    assert client.chat("words", messages=asked).message.content == "It rains all day."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"model": 5}',
        b'{"model": "words", "messages": "Hello", "prompt": 5, "input": 5}',
        b'{"model": "words", "messages": [5], "prompt": {}, "input": [5]}',
        b'{"model": "words", "messages": [{"role": "king", "content": ""}], "prompt": [], "input": []}',
        b'{"model": "words", "messages": [{"role": "user", "content": {}}], "prompt": true, "input": [[]]}',
        b'{"model": "words", "prompt": "a", "input": "a", "options": 5}',
        b'{"model": "words", "prompt": "a", "input": "", "options": {"num_predict": 1e300}}',
        b'{"model": "words", "prompt": "a", "input": "", "format": 5}',
        b'{"model": "words", "prompt": "a", "input": "", "think": 5}',
        b'{"model": "words", "prompt": "a", "input": "", "tools": 5, "raw": 5, "messages": []}',
        b'{"model": "../words", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a"}',
        b'{"model": "words\\u0000", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a"}',
        b'{"model": "words", "prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}], "input": "a"}',
    ],
)
def test_malformed_bodies_are_refused(client: ollama.Client, body: bytes) -> None:
    for path in ("chat", "generate", "embed", "embeddings", "show", "pull"):
        named = b'"words"' in body and b"ud800" not in body
        if named and (path in ("show", "pull") or (path == "chat" and b"messages" not in body)):
            continue  # valid: they only name the model
        with pytest.raises(ollama.ResponseError) as refused:
            client._request_raw("POST", f"/api/{path}", content=body)
        assert refused.value.status_code in (400, 404, 501), path
        assert "0x" not in refused.value.error


def test_content_of_any_characters(client: ollama.Client) -> None:
    """Two system prompts, empty content, NUL, other planes and marks of templates reach the model as they are."""
    messages = [
        {"role": "system", "content": "One."},
        {"role": "system", "content": "Two."},
        {"role": "user", "content": ""},
        {"role": "user", "content": "a\0b \U0001f41a {{ 7 * 7 }} </think>"},
    ]
    answer = client.chat("words", messages=messages)
    assert answer.message.content == "One.\nTwo.\n\na\0b \U0001f41a {{ 7 * 7 }} </think>\n"


def test_a_client_that_leaves_in_the_middle_of_a_call(client: ollama.Client) -> None:
    asked = [{"role": "user", "content": "call it"}]
    for _ in range(20):
        stream = client.chat("tools", messages=asked, tools=[weather], stream=True)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert client.chat("tools", messages=asked, tools=[weather]).message.content == "Let me see."


def test_embeddings(client: ollama.Client) -> None:
    texts = ["Recursively copy a directory tree.", "How do I copy a folder with everything in it?"]
    answer = client.embed("sentences", texts)
    vector_of_first = client.embed("sentences", texts[0]).embeddings[0]
    assert [len(vector) for vector in answer.embeddings] == [len(vector_of_first)] * 2
    assert answer.embeddings[0] == pytest.approx(vector_of_first, abs=1e-5)
    assert answer.prompt_eval_count
    assert answer.total_duration
    assert client.embeddings("sentences", texts[0]).embedding == pytest.approx(vector_of_first, abs=1e-5)
    assert len(client.embed("sentences", ["a word " * 5] * 300).embeddings) == 300  # written by a worker
    with pytest.raises(ollama.ResponseError, match="not empty"):
        client.embed("sentences", "")
    with pytest.raises(ollama.ResponseError, match="makes no embeddings"):
        client.embed("words", "Hello")


def test_models(client: ollama.Client) -> None:
    names = [model.model for model in client.list().models]
    assert {"sentences:latest", "tools:latest", "words:latest"} <= {*names}
    running = {model.name: model.context_length for model in client.ps().models}
    assert [running[f"{name}:latest"] for name in ("sentences", "tools", "words")] == [0, 4096, 400]
    shown = client.show("tools")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template == TOOLS["chat_template"]
    assert dict(shown.modelinfo or {})["scripted.context_length"] == 4096
    assert client.show("sentences:latest").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="`absent` does not exist") as missing:
        client.show("absent")
    assert missing.value.status_code == 404


def test_changes_of_models_are_refused_with_a_reason(server: ConchProcess, client: ollama.Client) -> None:
    assert client.pull("words").status == "success"  # programs do that at their start
    assert [part.status for part in client.pull("words:latest", stream=True)] == ["success"]
    for change in (
        lambda: client.pull("llama3"),
        lambda: client.push("words"),
        lambda: client.create("other", from_="words"),
        lambda: client.copy("words", "../../other"),
        lambda: client.delete("words"),
        lambda: client._request_raw("POST", "/api/blobs/sha256:00", content=b"GGUF"),
    ):
        with pytest.raises(ollama.ResponseError, match="model") as error:
            change()
        assert error.value.status_code == 501
    status, refused = raw(server, "DELETE /api/delete HTTP/1.1\r\nHost: localhost")
    assert (status, "cannot delete" in refused) == (501, True)
    for path, size, expected in (("delete", 200_000, 400), ("tags", 5, 413), ("tags", 200_000, 405)):
        assert raw(server, f"DELETE /api/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}")[0] == expected
    assert raw(server, "DELETE /v1/responses/x HTTP/1.1\r\nHost: localhost", "{}")[0] == 413


def test_clients_find_the_server(server: ConchProcess) -> None:
    assert raw(server, "GET / HTTP/1.1\r\nHost: localhost") == (200, "Ollama is running")
    assert raw(server, "HEAD / HTTP/1.1\r\nHost: localhost") == (200, "")
    status, version = raw(server, "GET /api/version HTTP/1.1\r\nHost: localhost")
    assert (status, sorted(json.loads(version))) == (200, ["version"])
    status, missing = raw(server, "GET /api/absent HTTP/1.1\r\nHost: localhost")
    assert status == 404
    assert "error" in json.loads(missing)


@pytest.mark.parametrize(
    "lines",
    [
        "Host: evil.example",
        "Host: localhost.evil.example",
        "Host: ",
        "Host: localhost\r\nOrigin: https://evil.example",
        "Host: localhost\r\nOrigin: null",
        "Host: localhost\r\nX-Forwarded-For: 203.0.113.9",
    ],
)
@pytest.mark.parametrize("target", ["GET /api/tags", "POST /api/chat", "GET http://localhost/api/tags", "GET /"])
def test_pages_of_other_sites_are_refused(server: ConchProcess, lines: str, target: str) -> None:
    body = json.dumps({"model": "words", "messages": ASKED}) if target.startswith("POST") else ""
    status, answer = raw(server, f"{target} HTTP/1.1\r\n{lines}", body)
    assert status == 403
    assert "this machine" in json.loads(answer)["error"]


@pytest.mark.parametrize(
    "lines", ["Host: 127.0.0.1:11434", "Host: [::1]", "Host: a.localhost\r\nOrigin: http://localhost:3000"]
)
def test_pages_of_this_machine_may_ask(server: ConchProcess, lines: str) -> None:
    assert raw(server, f"GET /api/tags HTTP/1.1\r\n{lines}")[0] == 200


@pytest.mark.parametrize("keys", ["--openai-api-key=a-secret", "--api-key-file"])
def test_keys_are_required(tmp_path: Path, keys: str) -> None:
    write_scripted(tmp_path / "models", "words", WORDS)
    if keys == "--api-key-file":
        (tmp_path / "keys").write_text("one infer a-secret\n")
        (tmp_path / "keys").chmod(0o600)
        keys = f"--api-key-file={tmp_path / 'keys'}"
    with ConchProcess(tmp_path / "models", "--ollama-api=true", keys, log=tmp_path / "log") as server:
        host = f"http://{server.http}"
        with ollama.Client(host=host, headers={"Authorization": "Bearer a-secret"}) as allowed:
            assert allowed.chat("words", messages=ASKED).message.content == "It rains all day."
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "nothing"}):
            with ollama.Client(host=host, headers=headers) as other:
                for call in (other.list, partial(other.chat, "words", ASKED), partial(other.copy, "words", "b")):
                    with pytest.raises(ollama.ResponseError) as error:
                        call()
                    assert error.value.status_code == 401


def test_without_the_flag_there_are_no_paths(tmp_path: Path) -> None:
    write_scripted(tmp_path / "models", "words", WORDS)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        for target in ("GET /", "GET /api/tags", "POST /api/chat"):
            assert raw(server, f"{target} HTTP/1.1\r\nHost: localhost")[0] == 404
