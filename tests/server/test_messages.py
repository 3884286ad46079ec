"""Anthropic's Messages API of a real server, asked by the official client. The engine follows a script."""

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

KEY = "a-secret"
HERMES = '<tool_call>{"name": "%s", "arguments": {"city": "%s"}}</tool_call>'
SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "Rome.*<result>Error: no such city", "reply": "Rome is unknown."},
        {"match": "Rome.*<result>It rains", "reply": "So it rains in Rome."},
        {"match": "both cities", "reply": f"Let me see. {HERMES % ('weather', 'Rome')}{HERMES % ('weather', 'Oslo')}"},
        {"match": "call it", "reply": f"Let me see. {HERMES % ('weather', 'Rome')}"},
        {"match": "think", "reply": "<think>What a question.</think>Done."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
        {"match": "weather", "reply": "It rains all day, and all night as well."},
    ],
    "context_length": 300,
    # Of the marks, the template shows which form of calls the model has, and that it thinks.
    "chat_template": (
        "{% for message in messages %}{% if message.role == 'tool' %}<result>{% endif %}"
        "{% if message.role == 'system' %}<system>{% endif %}{{ message.content }}"
        "{% for call in message.tool_calls or [] %}{# <tool_call> #}{{ call.function.arguments.city }}{% endfor %} "
        "{% endfor %}{% if tools %}{{ tools | length }} tools{% endif %}{# </think> #}"
    ),
}
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("messages")
    write_scripted(folder / "repository", "words", SCRIPT)
    endless = {**SCRIPT, "rules": [], "reply": '<tool_call>{"name": "weather", "arguments": {"city": "' + "a " * 250}
    write_scripted(folder / "repository", "slow", {**endless, "step_ms": 40})
    with ConchProcess(folder / "repository", f"--openai-api-key={KEY}", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[anthropic.Anthropic]:
    url = f"http://{server.http}"
    with anthropic.Anthropic(
        base_url=url, api_key=KEY, auth_token=None, max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def blocks(message: Any) -> list[Any]:
    return [block.model_dump(exclude_none=True, exclude={"id", "signature"}) for block in message.content]


def post(server: ConchProcess, body: Any, path: str = "/v1/messages", **headers: str) -> tuple[int, Any, bytes]:
    """Post a document, or bytes, and return status, headers and body."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        data = body if isinstance(body, bytes) else json.dumps({"model": "words", "max_tokens": 50, **body}).encode()
        sent = {"x-api-key": KEY, **{name.replace("_", "-"): value for name, value in headers.items() if value}}
        connection.request("POST", path, data, {name: value for name, value in sent.items() if value != "-"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="words", max_tokens=50, messages=said("weather"))
    assert blocks(message) == [{"type": "text", "text": "It rains all day, and all night as well."}]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 2, 9)
    assert message.id.startswith("msg_")
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_the_events_of_a_stream(server: ConchProcess) -> None:
    status, headers, body = post(server, {"messages": said("think"), "stream": True}, "/v1/messages?beta=true")
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    frames = [frame.split("\n") for frame in body.decode().split("\n\n") if frame]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    indices = [(event["type"].removeprefix("content_block_"), event["index"]) for event in events if "index" in event]
    starts = [("start", 0), *[("delta", 0)] * 4, ("stop", 0), ("start", 1), ("delta", 1), ("stop", 1)]
    assert indices == starts  # three words of thinking and the signature, then a word of text
    for event in events:
        if event["type"] != "ping":  # which the client's type does not list
            EVENT.validate_python(event, strict=True, extra="forbid")


def test_arguments_come_in_pieces(server: ConchProcess, client: anthropic.Anthropic) -> None:
    asked: Any = {"messages": said("call it"), "tools": [TOOL]}
    with client.messages.stream(model="words", max_tokens=50, **asked) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"city": "Rome"}
    # One that the model has not completed stays a call, in the state in which it was sent.
    _, _, body = post(server, {**asked, "stream": True, "max_tokens": 7})
    *_, delta, stop, end, _ = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: ")]
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": '{"city":'}
    assert (stop["type"], end["delta"]["stop_reason"]) == ("content_block_stop", "max_tokens")


@pytest.mark.parametrize("text", ["weather", "both cities", "think", "call it"])
def test_a_stream_has_what_the_whole_message_has(client: anthropic.Anthropic, text: str) -> None:
    asked: Any = {"model": "words", "max_tokens": 50, "messages": said(text), "tools": [TOOL]}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert blocks(streamed) == blocks(whole)
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)


def test_the_asynchronous_client(server: ConchProcess) -> None:
    async def scenario() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=f"http://{server.http}", auth_token=KEY) as client,
            client.messages.stream(model="words", max_tokens=50, messages=said("weather")) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(scenario()) == "It rains all day, and all night as well."


def test_a_loop_with_parallel_tools(client: anthropic.Anthropic) -> None:
    conversation = said("both cities")
    asked: Any = {"model": "words", "max_tokens": 50, "tools": [TOOL]}
    message = client.messages.create(**asked, messages=conversation)
    assert message.stop_reason == "tool_use"
    text, *calls = message.content
    assert text.type == "text"
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Oslo"}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "It rains."}]}
        for call in calls
        if call.type == "tool_use"
    ]
    answered = [message.to_param(), {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]}]
    again = client.messages.create(**asked, messages=[*conversation, *answered])
    assert blocks(again) == [{"type": "text", "text": "So it rains in Rome."}]
    results[0] |= {"is_error": True, "content": "no such city"}
    failed = client.messages.create(**asked, messages=[*conversation, *answered])
    assert blocks(failed) == [{"type": "text", "text": "Rome is unknown."}]


def test_the_choice_of_tools(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "words", "max_tokens": 50, "messages": said("call it")}
    for choice in ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}):
        assert client.messages.create(**asked, tools=[TOOL], tool_choice=choice).stop_reason == "tool_use"
    both: Any = {**asked, "messages": said("both cities"), "tools": [TOOL]}
    single = client.messages.create(**both, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in single.content] == ["text", "tool_use"]
    none = client.messages.create(**asked, tools=[TOOL], tool_choice={"type": "none"})
    assert none.stop_reason == "end_turn"
    # The scripted engine cannot force a call; the refusal shows that it was asked to.
    for forced in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        with pytest.raises(anthropic.BadRequestError, match="does not support structured output"):
            client.messages.create(**asked, tools=[TOOL], tool_choice=forced)
        assert client.messages.count_tokens(
            model="words", messages=said("call it"), tools=[TOOL], tool_choice=forced
        ).input_tokens


def test_why_a_message_ends(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "words", "messages": said("weather")}
    stopped = client.messages.create(**asked, max_tokens=50, stop_sequences=[" night"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " night")
    cut = client.messages.create(**asked, max_tokens=2)
    assert (cut.stop_reason, blocks(cut)[0]["text"]) == ("max_tokens", "It rains")
    filled = client.messages.create(model="words", messages=said("weather " * 296), max_tokens=1000)
    assert (filled.stop_reason, filled.usage.output_tokens) == ("model_context_window_exceeded", 3)
    # A call that the model has not completed is text, and never a call.
    half = client.messages.create(model="words", messages=said("call it"), tools=[TOOL], max_tokens=5)
    assert half.stop_reason == "max_tokens"
    assert {block.type for block in half.content} == {"text"}


def test_thinking(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "words", "max_tokens": 50, "messages": said("think")}
    thinking, text = client.messages.create(**asked, thinking={"type": "adaptive"}).content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking == "What a question."  # type: ignore[union-attr]
    for hidden in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}):
        assert blocks(client.messages.create(**asked, thinking=hidden)) == [{"type": "text", "text": "Done."}]
    back = [*said("think"), {"role": "assistant", "content": [thinking, text]}, *said("weather")]
    assert client.messages.create(**{**asked, "messages": back}).stop_reason == "end_turn"


def prompt_of(client: anthropic.Anthropic, **asked: Any) -> str:
    """What the model gets, since the script answers with the prompt where no rule matches."""
    (block,) = client.messages.create(**{"model": "words", "max_tokens": 50, **asked}).content
    assert block.type == "text"
    return block.text.strip()


def test_conversations(client: anthropic.Anthropic) -> None:
    assert prompt_of(client, messages=said("one"), system="two") == "<system>two one"
    parts: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: v1;"},
        {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "three"},
    ]
    assert prompt_of(client, messages=said("one"), system=parts) == "<system>two\n\nthree one"
    later: Any = [{"role": "system", "content": "three"}, *said("one"), {"role": "system", "content": "four"}]
    assert prompt_of(client, messages=later, system="two") == ("<system>two\n\nthree one\n\n<system>\nfour\n</system>")
    assert prompt_of(client, messages=[*said("one"), *said("two")]) == "one\n\ntwo"
    document: Any = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    result: Any = {"type": "search_result", "source": "S", "title": "T", "content": [{"type": "text", "text": "R"}]}
    asked: Any = [{"role": "user", "content": [document, result, {"type": "text", "text": "one"}]}]
    assert prompt_of(client, messages=asked) == "T\nD\nT\nS\nR\none"
    prefilled: Any = [*said("one"), {"role": "assistant", "content": "It is"}]
    assert prompt_of(client, messages=prefilled) == "one It is"
    for empty in ("", [], [{"type": "text", "text": ""}]):
        assert prompt_of(client, messages=[*said("one"), {"role": "assistant", "content": empty}]) == "one"
    assert prompt_of(client, messages=said("a\0b")) == "a\0b"


def test_a_large_conversation_is_read_by_a_worker(client: anthropic.Anthropic) -> None:
    large: Any = {**TOOL, "description": "x" * 70_000}
    asked: Any = [*said("one"), {"role": "assistant", "content": "It is"}]
    assert prompt_of(client, messages=asked, system="two", tools=[large]) == "<system>two one It is"
    assert client.messages.count_tokens(model="words", messages=asked, tools=[large]).input_tokens == 3
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    asked[1] = {"role": "user", "content": [{"type": "image", "source": source}]}
    with pytest.raises(anthropic.BadRequestError, match=r"'messages\.1\.content\.0' is an image, and the model takes"):
        client.messages.create(model="words", max_tokens=5, messages=asked, tools=[large])


def test_what_is_ignored_is_named(server: ConchProcess) -> None:
    web_search = {"type": "web_search_20260318", "name": "web_search"}
    asked = {"messages": said("call it"), "tools": [TOOL, web_search], "metadata": {"user_id": "u"}, "new_field": 1}
    for stream in (False, True):
        status, headers, body = post(server, {**asked, "context_management": {"edits": []}, "stream": stream})
        assert (status, headers["x-conch-ignored"]) == (200, "tools[].type, new_field, context_management")
        assert b'"tool_use"' in body


def test_counts_of_tokens(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="words", messages=said("one two three"), system="four")
    message = client.messages.create(model="words", max_tokens=9, messages=said("one two three"), system="four")
    assert counted.input_tokens == message.usage.input_tokens
    assert (
        client.beta.messages.count_tokens(
            model="words",
            messages=said("one two three"),
            tools=[TOOL],
            betas=["token-counting-2024-11-01", "unknown-beta"],
        ).input_tokens
        == 5
    )


def test_models(server: ConchProcess, client: anthropic.Anthropic) -> None:
    assert [(model.id, model.max_input_tokens) for model in client.models.list()] == [("slow", 300), ("words", 300)]
    assert client.models.retrieve("words").display_name == "words"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nothing")
    assert (
        client.messages.with_raw_response.create(
            model="words", max_tokens=5, messages=said("x"), extra_headers={"anthropic-beta": "unknown-2099-01-01"}
        ).status_code
        == 200
    )


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "missing"}, 404, "The model `missing` does not exist"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"temperature": -1}, 400, "temperature must be between 0 and 100"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": [{"role": "judge", "content": "?"}]}, 400, "messages.0.role: must be one of"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages.0.content: must be a string or"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "source: Field required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            400,
            "documents of type 'base64' are not supported",
        ),
        ({"messages": [{"role": "user", "content": "x " * 400}]}, 400, "maximum context length is 300 tokens"),
        ({"tools": [{"name": "f"}]}, 400, "tools.0.input_schema: Field required"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, 400, "Tool 'f' not found"),
        ({"thinking": {"type": "deep"}}, 400, "thinking.type: must be"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_named(
    server: ConchProcess, fields: dict[str, Any], status: int, words: str, stream: bool
) -> None:
    answered, headers, body = post(server, {"messages": said("x"), "stream": stream, **fields})
    document = json.loads(body)
    assert (answered, document["type"]) == (status, "error")
    assert words in document["error"]["message"]
    assert document["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert document["request_id"] == headers["request-id"]


def test_invalid_bodies(server: ConchProcess) -> None:
    for body in (
        b"{",
        b"[]",
        b'{"model": "words", "max_tokens": 5, "messages": [{"role": "user", "content": "\\ud800"}]}',
    ):
        status, _, answer = post(server, body)
        assert (status, json.loads(answer)["error"]["type"]) == (400, "invalid_request_error")
    status, _, answer = post(server, {}, "/v1/messages/batches")
    assert (status, json.loads(answer)["error"]["type"]) == (404, "not_found_error")


def test_an_error_in_the_middle_of_a_stream(server: ConchProcess, client: anthropic.Anthropic) -> None:
    _, _, body = post(server, {"messages": said("fall apart"), "stream": True})
    *_, name, data = body.decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"] == {
        "type": "api_error",
        "message": "the engine has a fault",
    }
    with (
        pytest.raises(anthropic.APIStatusError, match="the engine has a fault"),
        client.messages.stream(model="words", max_tokens=50, messages=said("fall apart")) as stream,
    ):
        stream.get_final_message()


def test_keys(server: ConchProcess) -> None:
    asked = {"messages": said("x")}
    bearer = f"Bearer {KEY}"
    assert post(server, asked)[0] == 200
    assert post(server, asked, x_api_key="-", authorization=bearer)[0] == 200
    assert post(server, asked, authorization=bearer)[0] == 200
    kserve = "/openai/v1/messages"
    assert post(server, asked, kserve)[0] == 200
    assert json.loads(post(server, asked, kserve, x_api_key="-")[2])["error"]["type"] == "authentication_error"
    for headers in ({"x_api_key": "-"}, {"x_api_key": "wrong"}, {"x_api_key": "-", "authorization": "Bearer wrong"}):
        status, _, body = post(server, asked, **headers)
        assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error")
    for headers in ({"authorization": "Bearer wrong"}, {"x_api_key": "wrong", "authorization": bearer}):
        status, _, body = post(server, asked, **headers)
        assert status == 401
        assert "have different API keys" in json.loads(body)["error"]["message"]
    status, _, body = post(server, asked, "/v1/chat/completions", anthropic_version="2023-06-01")
    assert status == 401
    assert "The API key is in the header x-api-key" in json.loads(body)["error"]["message"]


def test_a_prompt_beyond_the_context_is_counted(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model="words", messages=said("x " * 400)).input_tokens >= 400


def test_a_client_that_leaves_in_a_call_ends_the_generation(server: ConchProcess, client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="slow", max_tokens=250, messages=said("x"), tools=[TOOL]) as stream:
        assert next(iter(stream)).type == "message_start"
    aborted = 'nv_inference_request_failure{model="slow",reason="CANCELED",version="1"} 1'
    deadline = time.monotonic() + 30
    while aborted not in server.metrics():
        assert time.monotonic() < deadline, server.metrics()
        time.sleep(0.05)
