"""The Responses API of a real server, asked by the official client with strict checks, and by recorded agents."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.server.test_openai import write_scripted
from tests.support.server_process import ConchProcess

ADA, BOB = "key-of-ada", "key-of-bob"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
PATCH = '<tool_call>{"name": "patch", "arguments": {"input": "+x"}}</tool_call>'
SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "asked.*Bob.*who", "reply": "You are Bob."},
        {"match": "tool: rain", "reply": "It rains in Rome."},
        {"match": "call it", "reply": f"Let me see. {CALL}\n{PATCH}"},
        {"match": "cut it", "reply": 'So <tool_call>{"name": "weather", "arguments": {"ci', "finish": "length"},
        {"match": "think", "reply": "<think>What a question.</think>Done."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
        {"match": "endless", "reply": '<tool_call>{"name": "weather", "arguments": {"a": "' + "a " * 2000},
    ],
    "reply": "Hello there.",
    "context_length": 20_000,
    # Of the marks, the template shows which form of calls the model has, and that it thinks.
    "chat_template": (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}"
        "{% for call in message.tool_calls or [] %}{# <tool_call> #}{{ call.function.name }}{% endfor %} "
        "{% endfor %}{# </think> #}"
    ),
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch"},
    {"type": "web_search"},
]
FOLDER = Path(__file__).with_name("recorded_sessions")
RECORDED = {name: json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in ("codex", "openai_agents")}
TOOLS_OF_SESSIONS = {name: tool for recorded in RECORDED.values() for name, tool in recorded["tools"].items()}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("responses")
    write_scripted(folder / "repository" / "words", SCRIPT)
    slow = {"reply": '<tool_call>{"name": "weather", ' + "word " * 10_000, "step_ms": 20, "context_length": 20_000}
    write_scripted(folder / "repository" / "slow", slow)
    keys = folder / "keys"
    keys.write_text(f"ada infer,metrics {ADA}\nbob infer {BOB}\n")
    keys.chmod(0o600)
    flags = (f"--api-key-file={keys}", "--responses-store=8")
    with ConchProcess(folder / "repository", *flags, log=folder / "log") as process:
        yield process


def client_of(server: ConchProcess, key: str) -> openai.OpenAI:
    url = f"http://{server.http}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, _strict_response_validation=True)


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with client_of(server, ADA) as made:
        yield made


def test_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="words", input="hi", instructions="Be brief.", metadata={"a": "b"})
    assert (answer.output_text, answer.status) == ("Hello there.", "completed")
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (2, answer.usage.input_tokens + 2)


def test_a_stream_of_text_reasoning_and_calls(client: openai.OpenAI) -> None:
    with client.responses.stream(model="words", input="call it", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    assert [item.type for item in answer.output] == ["message", "function_call", "custom_tool_call"]
    # Arguments come as they are generated, the text of a custom tool at its end.
    assert kinds.count("response.function_call_arguments.delta") > 1
    assert kinds.count("response.custom_tool_call_input.delta") == 1
    thought = client.responses.create(model="words", input="think", reasoning={"summary": "auto"})
    reasoning, _ = thought.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["What a question."]


def test_a_loop_of_tools(client: openai.OpenAI) -> None:
    conversation: list[Any] = [{"role": "user", "content": "call it"}]
    answer = client.responses.create(model="words", input=conversation, tools=TOOLS)
    conversation += [item.model_dump(mode="json", exclude_none=True) for item in answer.output]
    for item in answer.output:
        if item.type == "function_call":
            conversation.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
        elif item.type == "custom_tool_call":
            conversation.append({"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"})
    assert client.responses.create(model="words", input=conversation, tools=TOOLS).output_text == "It rains in Rome."


def test_a_structured_answer_needs_an_engine_that_has_them(client: openai.OpenAI) -> None:
    class City(BaseModel):
        name: str

    with pytest.raises(openai.BadRequestError, match="does not support structured output"):
        client.responses.parse(model="words", input="hi", text_format=City)


def test_what_has_no_effect_is_named(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="words", input="hi", tools=TOOLS, text={"verbosity": "low"}, truncation="auto"
    )
    assert set(raw.headers["X-Conch-Ignored"].split(", ")) >= {"tools.web_search", "text.verbosity", "truncation"}


def test_a_probe_of_one_token(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="words", input="hi", max_output_tokens=1)
    assert (answer.status, answer.output_text) == ("incomplete", "Hello")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_bound_beyond_the_context_is_served(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="words", input="hi", max_output_tokens=1_000_000)
    assert (answer.status, answer.output_text) == ("completed", "Hello there.")


@pytest.mark.parametrize("question", ["cut it", "endless"])
def test_a_call_that_is_cut(client: openai.OpenAI, question: str) -> None:
    answer = client.responses.create(model="words", input=question, tools=TOOLS, max_output_tokens=50)
    assert answer.status == "incomplete"
    assert [item.type for item in answer.output] == ["message"]
    assert "tool_call" in answer.output_text
    with client.responses.stream(model="words", input=question, tools=TOOLS, max_output_tokens=50) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    call = last.response.output[-1]
    assert call.type == "function_call"
    assert (call.status, call.arguments[:2]) == ("incomplete", '{"')


@pytest.mark.parametrize("count", [1, 2], ids=["small", "read by a worker"])
def test_a_prompt_that_is_too_long_is_refused(client: openai.OpenAI, count: int) -> None:
    kept = client.responses.create(model="words", input="hi")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 20000 tokens") as raised:
            client.responses.create(model="words", input="word " * 24_000 * count, stream=stream)
        assert raised.value.code == "context_length_exceeded"  # of which Codex makes its own message
    assert client.responses.retrieve(kept.id).id == kept.id  # refused ones take no place in the store


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": ""}, "must not be empty"),
        ({"input": []}, "you must provide 'input'"),
        ({"input": "hi", "background": True}, "'background' is not supported"),
        ({"input": "hi", "conversation": "c"}, "'conversation' is not supported"),
        ({"input": "hi", "previous_response_id": "resp_0"}, "not found"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "refers to the item 'msg_0'"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.responses.create(model="words", **fields)


def test_nul_is_text_and_surrogates_are_not(server: ConchProcess, client: openai.OpenAI) -> None:
    assert client.responses.create(model="words", input="a\0b").output_text == "Hello there."
    status, answer = post(server, b'{"model": "words", "input": "\\ud800"}')
    assert status == 400
    assert b"could not parse the JSON body" in answer


def test_an_engine_that_fails_ends_the_stream(client: openai.OpenAI) -> None:
    *_, failed, error = client.responses.create(model="words", input="fall apart", stream=True)
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert error.type == "error"
    assert "the engine has a fault" in error.message == failed.response.error.message


def test_a_conversation_continues_for_its_key_only(server: ConchProcess, client: openai.OpenAI) -> None:
    first = client.responses.create(model="words", input="I was asked for my name: Bob", instructions="Be kind.")
    second = client.responses.create(model="words", input="who", previous_response_id=first.id)
    assert second.output_text == "You are Bob."
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(second.id).data
    assert [item.type for item in items] == ["message"]
    with pytest.raises(openai.BadRequestError, match="'stream' is not supported in a query"):
        client.responses.retrieve(first.id, stream=True)
    assert client.responses.retrieve(first.id, extra_query={"api-version": "1", "stream": "false"}).id == first.id
    turns = [{"role": "user", "content": f"number {number}"} for number in range(5)]
    many = client.responses.create(model="words", input=turns)  # type: ignore[arg-type]
    whole = [item.id for item in client.responses.input_items.list(many.id)]
    assert len(whole) == 5
    for order, expected in (("desc", whole), ("asc", whole[::-1])):
        assert [item.id for item in client.responses.input_items.list(many.id, limit=2, order=order)] == expected
    page = client.responses.input_items.list(many.id, limit=2, after=whole[1])
    assert ([item.id for item in page.data], page.has_more) == (whole[2:4], True)
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "x"}, {"before": whole[0]}):
        with pytest.raises(openai.BadRequestError, match=f"'{next(iter(query))}' "):
            client.responses.input_items.list(many.id, extra_query=query)
    with client_of(server, BOB) as other:
        for ask in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="not found") as missing:
                ask(first.id)
            assert missing.value.code is None
        with pytest.raises(openai.BadRequestError, match="not found") as unknown:
            other.responses.create(model="words", input="who", previous_response_id=first.id)
        assert (unknown.value.param, unknown.value.code) == ("previous_response_id", "previous_response_not_found")
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="is complete"):
        client.responses.cancel(second.id)
    unkept = client.responses.create(model="words", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_the_store_is_bounded(client: openai.OpenAI) -> None:
    ids = [client.responses.create(model="words", input="hi").id for _ in range(9)]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(ids[0])
    assert client.responses.retrieve(ids[-1]).id == ids[-1]


def test_a_running_response_is_cancelled(client: openai.OpenAI) -> None:
    stream = client.responses.create(model="slow", input="hi", stream=True)
    created = next(iter(stream))
    assert created.type == "response.created"
    assert client.responses.retrieve(created.response.id).status == "in_progress"
    cancelled = client.responses.cancel(created.response.id)
    assert cancelled.status == "cancelled"
    assert "response.completed" not in [event.type for event in stream]
    assert client.responses.retrieve(created.response.id).status == "cancelled"


def test_a_client_that_leaves_in_a_call_ends_its_generation(client: openai.OpenAI) -> None:
    stream = client.responses.create(model="slow", input="hi", stream=True, tools=TOOLS)
    created = next(iter(stream))
    assert created.type == "response.created"
    stream.close()
    deadline = time.monotonic() + 60
    while (status := client.responses.retrieve(created.response.id).status) == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert status == "cancelled"


def test_tokens_are_counted(client: openai.OpenAI) -> None:
    count = client.responses.input_tokens.count(model="words", input="one two three", instructions="Be brief.")
    answer = client.responses.create(model="words", input="one two three", instructions="Be brief.")
    assert answer.usage is not None
    assert count.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize(
    ("program", "session"), [(name, session) for name in sorted(RECORDED) for session in RECORDED[name]["sessions"]]
)
def test_a_recorded_session(server: ConchProcess, program: str, session: str) -> None:
    for request in RECORDED[program]["sessions"][session]:
        body = json.loads(json.dumps(request["body"]), object_hook=with_tools)
        status, answer = post(server, json.dumps({**body, "model": "words"}).encode(), request["headers"])
        assert (request["path"], status) == ("/v1/responses", 200), answer
        if not body.get("stream"):
            assert Response.model_validate_json(answer, strict=True).status == "completed"
            continue
        events = [
            EVENTS.validate_json(block.split(b"\n")[1].removeprefix(b"data: "), strict=True)
            for block in answer.split(b"\n\n")[:-1]
        ]
        assert events[-1].type == "response.completed"
        assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_catalogue_of_codex(server: ConchProcess) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    headers = {"Authorization": f"Bearer {ADA}", "originator": "codex_exec"}
    try:
        connection.request("GET", "/v1/models?client_version=0.169.0", headers=headers)
        catalogue = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    assert [model["id"] for model in catalogue["data"]] == ["slow", "words"]
    assert [(model["slug"], model["context_window"]) for model in catalogue["models"]] == [
        ("slow", 20_000),
        ("words", 20_000),
    ]
    # Without one of these, Codex does not read the catalogue.
    required = {"display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api"}
    required |= {"priority", "support_verbosity", "truncation_policy", "experimental_supported_tools"}
    assert required | {"base_instructions"} <= catalogue["models"][0].keys()


def with_tools(document: dict[str, Any]) -> dict[str, Any]:
    """Put the tools, which sessions share, where they are named."""
    if isinstance(document.get("tools"), list):
        document["tools"] = [TOOLS_OF_SESSIONS[tool] if isinstance(tool, str) else tool for tool in document["tools"]]
    return document


def post(server: ConchProcess, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    try:
        connection.request("POST", "/v1/responses", body, {**(headers or {}), "Authorization": f"Bearer {ADA}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
