"""Chat completions of a real server, with the official client: fields, tools, and what goes wrong midway."""

import http.client
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.server.test_openai import CALL, TOOL, TOOLS, write_scripted
from tests.support.server_process import ConchProcess

ASKED: Any = [{"role": "user", "content": "call it"}]
SHELL: Any = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
SHELL_CALL = '<tool_call>{"name": "shell", "arguments": {"input": "ls -l"}}</tool_call>'
SCRIPT = {
    **TOOLS,
    "rules": [
        {"match": "both", "reply": f"{CALL}{SHELL_CALL}"},
        {"match": "cut", "reply": 'Wait. <tool_call>{"name": "weather", "arguments": {"city": "Ro', "finish": "length"},
        {"match": "endless", "reply": '<tool_call>{"name": "weather", "arguments": {"city": " and', "finish": "length"},
        *TOOLS["rules"],
    ],
    "context_length": 400,
}
SLOW = {
    **TOOLS,
    "rules": [{"match": "call", "reply": f"Now. {CALL[:-14]} {'more ' * 3000}"}],
    "step_ms": 20,
}
# It says much after a call.
WORDY = {**TOOLS, "rules": [], "reply": f"{CALL} {'more ' * 3000}", "step_ms": 20}
ROLES = {"chat_template": "{% for message in messages %}{{ message.role }} {{ message.content }};{% endfor %}"}
UNKNOWN_FORMAT = {"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools }}"}


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("openai_chat")
    write_scripted(folder / "repository" / "tools", SCRIPT)
    write_scripted(folder / "repository" / "slow", SLOW)
    write_scripted(folder / "repository" / "wordy", WORDY)
    write_scripted(folder / "repository" / "unknown_format", UNKNOWN_FORMAT)
    write_scripted(folder / "repository" / "roles", ROLES)
    write_scripted(folder / "repository" / "developer", {"chat_template": f"{ROLES['chat_template']}{{# developer #}}"})
    with ConchProcess(folder / "repository", "--ollama-api=true", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


NESTED: Any = [{**ASKED[0], "surprise": 1}]
UNKNOWN: dict[str, Any] = {"verbosity": "low", "extra_body": {"my_field": 1, "surprise": {"a": 1}}}
SHOWN = "verbosity, my_field, surprise"


def ignored(server: ConchProcess, field: str) -> int:
    """Return how often a field of chat completions was ignored."""
    series = f'conch_ignored_fields_total{{endpoint="/v1/chat/completions",field="{field}"}} '
    return sum(int(line.removeprefix(series)) for line in server.metrics().splitlines() if line.startswith(series))


def test_ignored_fields_are_named_in_headers_metrics_and_log(server: ConchProcess, client: openai.OpenAI) -> None:
    before = ignored(server, "verbosity"), ignored(server, "other")
    answer = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, **UNKNOWN)
    assert answer.headers["X-Conch-Ignored"] == SHOWN
    assert answer.headers["X-Conch-Degraded"] == "field_ignored"
    assert answer.parse().choices[0].message.content
    streamed = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, stream=True, **UNKNOWN)
    assert streamed.headers["X-Conch-Ignored"] == SHOWN
    assert len(list(streamed.parse())) > 1
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="missing", messages=ASKED, **UNKNOWN)
    assert refusal.value.response.headers["X-Conch-Ignored"] == SHOWN
    nested = client.chat.completions.with_raw_response.create(model="tools", messages=NESTED)
    assert nested.headers["X-Conch-Ignored"] == "messages[].surprise"
    plain = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, user="me")
    assert not {"X-Conch-Ignored", "X-Conch-Degraded"} & {*plain.headers}
    large: Any = [
        {"role": "user", "content": [{"type": "text", "text": "a" * 100_000, "cache_control": {}, "colour": 1}]}
    ]
    with pytest.raises(openai.BadRequestError) as long:  # for the context
        client.chat.completions.create(model="slow", messages=large, max_tokens=5000, **UNKNOWN)
    assert set(long.value.response.headers["X-Conch-Ignored"].split(", ")) == {
        *SHOWN.split(", "),
        "messages[].content[].colour",
    }
    assert (ignored(server, "verbosity") - before[0], ignored(server, "other") - before[1]) == (4, 10)
    assert 'conch_degraded{reason="field_ignored"} 1\n' in server.metrics()
    for name in ("verbosity", "my_field", "surprise", "messages[].surprise"):
        line = f"the field '{name}' of requests to /v1/chat/completions has no effect"
        server.until_logged(re.escape(line))
        assert server.text.count(line) == 1


def test_a_strict_server_refuses_ignored_fields(tmp_path: Path) -> None:
    write_scripted(tmp_path / "models" / "tools", TOOLS)
    flags = "--openai-strict=true"
    with (
        ConchProcess(tmp_path / "models", flags, log=tmp_path / "log") as server,
        openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client,
    ):
        for fields, words in (
            ({"extra_body": {"surprise": 1}}, "Unrecognized request argument supplied: surprise"),
            ({"verbosity": "low"}, "'verbosity' is not supported: the model decides"),
            ({"messages": NESTED}, "Unrecognized request argument supplied: messages[].surprise"),
        ):
            with pytest.raises(openai.BadRequestError, match=re.escape(words)) as refusal:
                client.chat.completions.create(**{"model": "tools", "messages": ASKED, **fields})
            assert refusal.value.param in ("surprise", "verbosity", "messages[].surprise")
        with anthropic.Anthropic(base_url=f"http://{server.http}", api_key="none", max_retries=0) as claude:
            body: Any = {"model": "tools", "messages": ASKED, "max_tokens": 9, "extra_body": {"surprise": 1}}
            with pytest.raises(anthropic.BadRequestError, match="Unrecognized request argument supplied: surprise"):
                claude.messages.create(**body)
        assert client.chat.completions.create(model="tools", messages=ASKED, verbosity="medium", user="me").choices


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "logprobs": True, "seed": 1, "stop": ["x"], "reasoning_effort": "low", "service_tier": "auto"},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"messages": asked("think"), "max_completion_tokens": 3, "user": "me", "store": True, "metadata": {"a": "b"}},
        {"messages": asked("cut"), "tools": [TOOL]},
        {"response_format": {"type": "text"}, "modalities": ["text"], "temperature": 0, "top_p": 1},
    ],
)
def test_answers_are_those_of_the_official_types(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    call: Any = {"model": "tools", "messages": ASKED, **fields}
    whole = client.chat.completions.with_raw_response.create(**call)
    answer = ChatCompletion.model_validate_json(whole.content, strict=True)
    assert answer.model_extra == {}
    options: Any = {"include_usage": True}
    streamed = client.chat.completions.with_raw_response.create(**call, stream=True, stream_options=options)
    chunks = [ChatCompletionChunk.model_validate_json(line, strict=True) for line in events(streamed)]
    assert chunks[-1].usage == answer.usage
    for choice in answer.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        content = "".join(part.delta.content or "" for part in parts)
        calls = joined_calls(parts)
        if calls and choice.finish_reason == "length":  # in one piece, a call that is cut is text
            assert (choice.message.content or "").startswith(content)
            assert (choice.message.content or "").endswith(calls[-1]["function"]["arguments"])
        else:
            assert content == (choice.message.content or "")
            wanted = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
            assert [call["function"] for call in calls] == [call.to_dict() for call in wanted]
        assert parts[-1].finish_reason == choice.finish_reason


def test_other_answers_are_those_of_the_official_types(client: openai.OpenAI) -> None:
    call: Any = {"model": "tools", "prompt": "think", "logprobs": 0, "n": 2}
    whole = client.completions.with_raw_response.create(**call)
    answer = Completion.model_validate_json(whole.content, strict=True)
    streamed = client.completions.with_raw_response.create(**call, stream=True)
    # The type has no reason of null, which OpenAI's own streams have too.
    sent = [line.replace(b'"finish_reason":null', b'"finish_reason":"stop"') for line in events(streamed)]
    chunks = [Completion.model_validate_json(line, strict=True) for line in sent]
    for index, choice in enumerate(answer.choices):
        texts = [part.text for chunk in chunks for part in chunk.choices if part.index == index]
        assert "".join(texts) == choice.text
    Model.model_validate_json(client.models.with_raw_response.retrieve("tools").content, strict=True)


def joined_calls(parts: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the calls of a stream's choices, which come in pieces."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        for piece in part.delta.tool_calls or ():
            fields = piece.to_dict()
            if "id" in fields:
                assert fields["index"] == len(calls)
                calls.append(fields)
            else:
                assert fields.keys() == {"index", "function"}
                calls[fields["index"]]["function"]["arguments"] += fields["function"]["arguments"]
    return calls


def events(answer: Any) -> list[bytes]:
    """Return the documents of a stream of events."""
    stream: bytes = answer.http_response.read()
    *documents, end = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]
    assert end == b"[DONE]"
    return documents


def test_one_call_at_most_unless_they_may_be_parallel(client: openai.OpenAI) -> None:
    call: Any = {"model": "tools", "messages": asked("both"), "tools": [TOOL, SHELL]}
    answer = client.chat.completions.create(**call)
    assert [call.type for call in answer.choices[0].message.tool_calls or ()] == ["function", "custom"]
    answer = client.chat.completions.create(**call, parallel_tool_calls=False)
    assert [call.type for call in answer.choices[0].message.tool_calls or ()] == ["function"]
    assert answer.choices[0].finish_reason == "tool_calls"
    streamed = client.chat.completions.create(**call, parallel_tool_calls=False, stream=True)
    assert len(joined_calls(chunk.choices[0] for chunk in streamed)) == 1


def test_a_custom_tool_takes_a_text(client: openai.OpenAI) -> None:
    call: Any = {"model": "tools", "messages": asked("both"), "tools": [TOOL, SHELL]}
    message = client.chat.completions.create(**call).choices[0].message
    custom = (message.tool_calls or ())[1]
    assert custom.type == "custom"
    assert (custom.custom.name, custom.custom.input) == ("shell", "ls -l")
    streamed = client.chat.completions.create(**call, stream=True)
    calls = joined_calls(chunk.choices[0] for chunk in streamed)
    assert [(call["index"], call["type"]) for call in calls] == [(0, "function"), (1, "custom")]
    assert calls[1]["custom"] == {"name": "shell", "input": "ls -l"}
    # It goes back with its result.
    later = [*call["messages"], message.to_dict(), {"role": "tool", "tool_call_id": custom.id, "content": "It rains."}]
    assert client.chat.completions.create(**{**call, "messages": later}).choices
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "ls.*"}}
    tool = {"type": "custom", "custom": {**SHELL["custom"], "format": grammar}}
    answer = client.chat.completions.with_raw_response.create(**{**call, "tools": [TOOL, tool]})
    assert answer.headers["X-Conch-Ignored"] == "tools[].custom.format"


def test_tools_that_a_choice_allows(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    call: Any = {"model": "tools", "messages": ASKED, "tools": [TOOL, SHELL], "tool_choice": allowed}
    answer = client.chat.completions.create(**call)
    assert answer.choices[0].finish_reason == "tool_calls"
    allowed["allowed_tools"] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
    with pytest.raises(openai.BadRequestError, match=r"'tool_choice.allowed_tools.tools' must name some of the tools"):
        client.chat.completions.create(**call)


def test_a_strict_function_is_named_where_it_is_not_enforced(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    answer = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, tools=[tool])
    assert answer.headers["X-Conch-Ignored"] == "tools[].function.strict"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "unknown_format", "tools": [TOOL]}, "set the parameter tool_call_parser"),
        ({"messages": []}, "must hold at least one message"),
        ({"messages": [{"role": "user", "content": None}]}, "'messages.0.' has no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "is an image, and the model takes only text: describe the image",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "got 'file': send the text",
        ),
        ({"response_format": {"type": "json_object"}}, "describe the form in the prompt"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "must hold a 'schema'"),
        ({"tools": [TOOL], "tool_choice": "required"}, "describe the form in the prompt"),
        ({"logprobs": True, "top_logprobs": 2}, "the log probabilities of at most 0 alternatives"),
        ({"n": 1000}, "n must be between 1 and"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}, "only text is generated"),
        ({"web_search_options": {}}, "offer a tool that does"),
        ({"functions": [{"name": "a"}]}, "use 'tools'"),
        ({"messages": asked("many " * 500)}, "maximum context length is 400 tokens"),
    ],
)
def test_what_would_change_the_answer_is_refused(client: openai.OpenAI, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(**{"model": "tools", "messages": ASKED, **fields})


def test_odd_contents_are_served(client: openai.OpenAI) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    parts = [{"type": "text", "text": "think"}, {"type": "text", "text": " hard"}]
    for messages in (
        [{"role": "user", "content": ""}],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": ""}],
        [*ASKED, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *ASKED],
        asked("a\x00b"),
    ):
        assert client.chat.completions.create(model="tools", messages=messages).choices  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_is_refused(server: ConchProcess) -> None:
    for path, body in (
        ("/v1/chat/completions", b'{"model": "tools", "messages": [{"role": "user", "content": "\\ud800"}]}'),
        ("/v1/completions", b'{"model": "tools", "prompt": "\\ud800"}'),
        ("/v1/completions", b'{"model": "tools", "prompt": "\xed\xa0\x80"}'),
        ("/v1/completions", b'{"model": "tools", "prompt": "%s\\ud800"}' % (b"a" * 100_000)),
    ):
        with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            assert answer.status == 400
            assert "We could not parse the JSON body" in json.loads(answer.read())["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_model_does_not_complete(client: openai.OpenAI, stream: bool) -> None:
    call: Any = {"model": "tools", "messages": asked("cut"), "tools": [TOOL]}
    expected = 'Wait. <tool_call>{"name": "weather", "arguments": {"city": "Ro'
    if stream:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**call, stream=True)]
        text, _, arguments = expected.partition(' <tool_call>{"name": "weather", "arguments": ')
        assert "".join(chunk.delta.content or "" for chunk in chunks) == text
        assert [call["function"]["arguments"] for call in joined_calls(chunks)] == [arguments]
        assert chunks[-1].finish_reason == "length"
    else:
        (choice,) = client.chat.completions.create(**call).choices
        assert (choice.message.content, choice.message.tool_calls) == (expected, None)
        assert choice.finish_reason == "length"


def test_arguments_come_while_they_are_generated(client: openai.OpenAI) -> None:
    call: Any = {"model": "wordy", "messages": ASKED, "tools": [TOOL]}
    with client.chat.completions.create(**call, stream=True) as stream:
        _role, *pieces = [next(stream).choices[0].delta.to_dict() for _ in range(3)]
    functions = [piece["tool_calls"][0]["function"] for piece in pieces]
    assert functions == [{"name": "weather", "arguments": '{"city":'}, {"arguments": ' "Rome"}'}]


def test_a_generation_ends_with_the_only_call(server: ConchProcess, client: openai.OpenAI) -> None:
    call: Any = {"model": "wordy", "messages": ASKED, "tools": [TOOL], "parallel_tool_calls": False}
    for stream in (False, True):
        done = client.chat.completions.create(**call, stream=stream)
        if stream:
            assert [part.choices[0].finish_reason for part in done][-1] == "tool_calls"
        else:
            assert done.choices[0].finish_reason == "tool_calls"
            assert done.usage.prompt_tokens > done.usage.completion_tokens == 5
        until(lambda: running(server, "wordy") == 0)


def test_endless_arguments_end_with_the_context(client: openai.OpenAI) -> None:
    call: Any = {"model": "tools", "messages": asked("endless"), "tools": [TOOL], "extra_body": {"ignore_eos": True}}
    (choice,) = client.chat.completions.create(**call).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert (choice.message.content or "").startswith('<tool_call>{"name": "weather", "arguments": {"city": " and')


def test_a_client_that_leaves_in_the_middle_of_a_call_ends_its_generation(
    server: ConchProcess, client: openai.OpenAI
) -> None:
    call: Any = {"model": "slow", "messages": asked("call"), "tools": [TOOL]}
    stream = client.chat.completions.create(**call, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    until(lambda: running(server) == 1)
    stream.close()
    until(lambda: running(server) == 0)
    ended = [line for line in server.metrics().splitlines() if line.startswith("vllm:request_success_total{")]
    (line,) = [line for line in ended if 'model_name="slow"' in line and not line.endswith(" 0")]
    assert 'finished_reason="abort"' in line


def running(server: ConchProcess, model: str = "slow") -> float:
    lines = [line for line in server.metrics().splitlines() if line.startswith("vllm:num_requests_running{")]
    return float(next(line for line in lines if f'model_name="{model}"' in line).rpartition(" ")[2])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


LONG = " ".join(["many"] * 500)
LONG_CHAT = {"model": "tools", "messages": asked(LONG)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 10}),
        ("/v1/messages/count_tokens", {"messages": ASKED}),
        ("/v1/responses", {"input": "a"}),
        ("/api/chat", {"messages": ASKED}),
        ("/api/generate", {"prompt": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": []}),
    ],
)
def test_every_api_names_ignored_fields(server: ConchProcess, path: str, body: dict[str, Any]) -> None:
    with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
        connection.request("POST", path, json.dumps({"model": "tools", "surprise": 1, **body}))
        answer = connection.getresponse()
        answer.read()
    assert (answer.status, answer.headers["X-Conch-Ignored"]) == (200, "surprise")
    assert answer.headers["X-Conch-Degraded"] == "field_ignored"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", LONG_CHAT),
        ("/v1/completions", {"model": "tools", "prompt": LONG}),
        ("/v1/messages", {**LONG_CHAT, "max_tokens": 10}),
        ("/v1/responses", {"model": "tools", "input": LONG}),
        ("/api/chat", LONG_CHAT),
        ("/api/generate", {"model": "tools", "prompt": LONG}),
        ("/v2/models/tools/generate", {"text_input": LONG, "max_tokens": 10}),
        ("/v2/models/tools/generate_stream", {"text_input": LONG, "max_tokens": 10}),
    ],
)
def test_a_prompt_longer_than_the_context_is_refused_alike(
    server: ConchProcess, path: str, body: dict[str, Any], stream: bool
) -> None:
    with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
        connection.request("POST", path, json.dumps({**body, "stream": stream}))
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 400
    assert "This model's maximum context length is 400 tokens." in text
    assert "Please reduce the length of the prompt" in text


def test_two_system_prompts_reach_the_model(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": text} for text in "ab"] + asked("c")
    answer = client.chat.completions.create(model="roles", messages=messages)
    assert answer.choices[0].message.content == "system a;system b;user c;"


def test_a_developer_is_the_system_to_templates_that_do_not_know_the_role(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]
    for model, role in (("roles", "system"), ("developer", "developer")):
        answer = client.chat.completions.create(model=model, messages=messages)
        assert answer.choices[0].message.content == f"{role} a;user b;"  # the scripted engine repeats the prompt
