"""The OpenAI API of a real server, asked by the official client. The engine follows a script; its words are known."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.server_process import ConchProcess

KEY = "a-secret"
SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "weather", "reply": "It rains all day, and all night as well."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
    ],
    "context_length": 200,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TOOLS: dict[str, Any] = {
    "rules": [
        {"match": "Rome.*It rains", "reply": "So it rains in Rome."},
        {"match": "call it", "reply": f"Let me see. {CALL}"},
        {"match": "think", "reply": "<think>What a question.</think>Done."},
    ],
    # Of the marks, the template shows which form of calls the model has, and that it thinks.
    "chat_template": (
        "{% for message in messages %}{{ message.content }}"
        "{% for call in message.tool_calls or [] %}{# <tool_call> #}{{ call.function.arguments.city }}{% endfor %} "
        "{% endfor %}{# </think> #}"
    ),
}
ASKED = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("openai")
    write_scripted(folder / "repository" / "words", SCRIPT)
    write_scripted(folder / "repository" / "tools", TOOLS)
    identity = folder / "repository" / "identity" / "1"
    identity.mkdir(parents=True)
    (identity.parent / "config.pbtxt").write_text(
        'backend: "identity"\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: 1 }\noutput { name: "OUT" data_type: TYPE_FP32 dims: 1 }\n'
    )
    flags = f"--openai-api-key={KEY}"
    with ConchProcess(folder / "repository", flags, log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def write_scripted(model: Path, script: dict[str, Any]) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "scripted"\n')
    (model / "1" / "model.json").write_text(json.dumps(script))


def test_models_that_generate_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tools", "words"]
    assert client.models.retrieve("words").object == "model"


def test_the_prefix_of_kserve(server: ConchProcess, client: openai.OpenAI) -> None:
    there = client.with_options(base_url=f"http://{server.http}/openai/v1")
    assert [model.id for model in there.models.list()] == ["tools", "words"]
    for _ in range(2):  # the second head of a connection is not parsed again
        answer = there.chat.completions.create(model="words", messages=ASKED)  # type: ignore[arg-type]
        assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.AuthenticationError):
        there.with_options(api_key="wrong").models.list()


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="words", messages=ASKED)  # type: ignore[arg-type]
    (choice,) = answer.choices
    assert choice.message.content == "It rains all day, and all night as well."
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (9, answer.usage.prompt_tokens + 9)


def test_a_streamed_chat_completion_has_the_same_words(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="words",
        messages=ASKED,  # type: ignore[arg-type]
        stream=True,
        n=2,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    *rest, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 18
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    for index in range(2):
        choices = [choice for chunk in rest for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == "It rains all day, and all night as well."
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]


def test_stop_strings_and_max_tokens_end_a_choice(client: openai.OpenAI) -> None:
    stopped = client.chat.completions.create(model="words", messages=ASKED, stop=" night")  # type: ignore[arg-type]
    assert stopped.choices[0].message.content == "It rains all day, and all"
    assert stopped.choices[0].finish_reason == "stop"
    cut = client.chat.completions.create(model="words", messages=ASKED, max_completion_tokens=2)  # type: ignore[arg-type]
    assert cut.choices[0].message.content == "It rains"
    assert cut.choices[0].finish_reason == "length"


def test_text_completions_of_several_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="words", prompt=["one two", "weather"], echo=True, n=2, logprobs=0)
    texts = [choice.text for choice in answer.choices]
    said = "weatherIt rains all day, and all night as well."
    assert texts == ["one twoone two"] * 2 + [said] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["one", " two"] * 2  # of prompt and answer
    assert logprobs.token_logprobs == [None, 0.0, 0.0, 0.0]
    assert logprobs.text_offset == [0, 3, 7, 10]
    streamed = client.completions.create(model="words", prompt=["one two", "weather"], stream=True)
    parts: dict[int, str] = {}
    for chunk in streamed:
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert parts == {0: "one two", 1: "It rains all day, and all night as well."}


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "missing"}, 404, "The model `missing` does not exist"),
        ({"model": "identity"}, 400, "does not generate text"),
        ({"temperature": -1}, 400, "temperature must be between 0 and 100"),
        ({"max_tokens": 100_000}, 400, "maximum context length is 200 tokens"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": [{"role": "judge", "content": "?"}]}, 400, "'messages[0].role' must be one of"),
        ({"logit_bias": {"1": 5}}, 400, "does not support 'logit_bias'"),
        ({"stop": [""]}, 400, "must not hold an empty string"),
        ({"n": 0}, 400, "n must be between 1 and 128"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, fields: dict[str, Any], status: int, words: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(**{"model": "words", "messages": ASKED, "stream": stream, **fields})
        assert caught.value.status_code == status
        assert words in caught.value.message
        assert caught.value.type == "invalid_request_error"


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "call it"}]
    answer = client.chat.completions.create(model="tools", messages=asked, tools=[TOOL])  # type: ignore[list-item]
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})  # type: ignore[union-attr]
    # The call and its answer go back, and the arguments are an object to the template.
    asked += [choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    again = client.chat.completions.create(model="tools", messages=asked, tools=[TOOL])  # type: ignore[list-item]
    assert again.choices[0].message.content == "So it rains in Rome."

    stream = client.chat.completions.create(
        model="tools",
        messages=asked[:1],
        tools=[TOOL],  # type: ignore[list-item]
        stream=True,
    )
    choices = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.delta.content or "" for choice in choices) == "Let me see."
    streamed, *pieces = [part for choice in choices for part in choice.delta.tool_calls or ()]
    assert streamed.function is not None
    assert (streamed.index, streamed.function.name) == (0, "weather")
    parts = [piece.function.arguments or "" for piece in (streamed, *pieces) if piece.function is not None]
    assert "".join(parts) == '{"city": "Rome"}'
    assert choices[-1].finish_reason == "tool_calls"


def test_reasoning_is_not_content(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tools", messages=[{"role": "user", "content": "think"}])
    assert answer.choices[0].message.content == "Done."
    assert answer.choices[0].message.to_dict()["reasoning_content"] == "What a question."


def test_tools_of_a_model_that_has_no_form_for_them(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="words", messages=ASKED, tools=[TOOL])  # type: ignore[arg-type, list-item]
    assert plain.choices[0].message.content == "It rains all day, and all night as well."
    answer = client.chat.completions.create(
        model="words",
        messages=ASKED,  # type: ignore[arg-type]
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice="none",
    )
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="does not support structured output"):
        client.chat.completions.create(
            model="words",
            messages=ASKED,  # type: ignore[arg-type]
            tools=[TOOL],  # type: ignore[list-item]
            tool_choice="required",
        )


def test_suffix_and_best_of_are_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'suffix' is not supported"):
        client.completions.create(model="words", prompt="a", suffix="b")
    with pytest.raises(openai.BadRequestError, match="'best_of' is not supported beyond n"):
        client.completions.create(model="words", prompt="a", best_of=3)


def test_a_fault_of_the_engine_midway_ends_the_stream_with_an_error(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="words", prompt="fall apart", stream=True, max_tokens=50)
    assert next(stream).choices[0].text == "I"
    with pytest.raises(openai.APIError, match="the engine has a fault"):
        next(stream)
    with pytest.raises(openai.InternalServerError, match="the engine has a fault"):
        client.completions.create(model="words", prompt="fall apart")


def test_without_the_key_nothing_is_disclosed(server: ConchProcess) -> None:
    for key in ("", "another", KEY + "x"):
        with (
            openai.OpenAI(base_url=f"http://{server.http}/v1", api_key=key or "-", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"),
        ):
            client.models.list()
    assert KEY not in server.text
    for sent in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Basic {KEY}"}):
        request = urllib.request.Request(f"http://{server.http}/v1/models", headers=sent)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        with caught.value as refusal:
            error = json.loads(refusal.read())["error"]
            assert (refusal.code, error["type"], error["code"]) == (401, "invalid_request_error", None)
            assert error["message"].startswith("You didn't provide an API key. You need to provide your API key in an")


def test_paths_and_methods_that_are_not_there(server: ConchProcess) -> None:
    host, port = server.http.split(":")
    headers = {"Authorization": f"Bearer {KEY}"}
    with closing(http.client.HTTPConnection(host, int(port), timeout=60)) as connection:
        _ask_wrongly(connection, headers)


def _ask_wrongly(connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405)):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        assert response.status == status
        assert "message" in json.loads(response.read())["error"]
    connection.request("POST", "/v1/chat/completions", body=b"{", headers=headers)
    response = connection.getresponse()
    assert response.status == 400
    assert "could not parse the JSON body" in json.loads(response.read())["error"]["message"]


def test_the_metrics_count_what_was_generated(server: ConchProcess, client: openai.OpenAI) -> None:
    before = _metric(server, "vllm:generation_tokens_total")
    client.chat.completions.create(model="words", messages=ASKED)  # type: ignore[arg-type]
    assert _metric(server, "vllm:generation_tokens_total") == before + 9
    assert _metric(server, "vllm:num_requests_running") == 0
    assert _metric(server, "nv_inference_pending_request_count") == 0


def _metric(server: ConchProcess, name: str) -> float:
    return sum(float(line.split()[-1]) for line in server.metrics().splitlines() if line.startswith(name + "{"))
