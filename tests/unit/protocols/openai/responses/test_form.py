"""Events of a stream, for any split of the model's text: parsed by the SDK's models, in order, as the whole answer."""

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from conch.base.errors import ConchError
from conch.domain.generation import Delta, FinishReason, TokenLogprob, Usage
from conch.domain.llm.output import OutputParser, ReasoningOutput
from conch.domain.llm.tool_calls import ClientCalls, NamedCall, call_parser
from conch.protocols.generation_form import ChoiceState
from conch.protocols.openai.responses.form import ResponseForm
from conch.protocols.openai.responses.requests import read_response

CALLS = '<tool_call>{"name": "f", "arguments": {"a": "ä"}}</tool_call>'
CUSTOM = '<tool_call>{"name": "patch", "arguments": {"input": "+x\\n"}}</tool_call>'
SPAWN = '<tool_call>{"name": "agents__spawn", "arguments": {}}</tool_call>'
TEXTS = [
    "",
    "Hello there.",
    "<think>Hm.</think>\n\nSo be it.",
    f"<think>Hm.</think>Let me see.\n{CALLS}\n{CUSTOM}\n{SPAWN}\n",
    f"{CALLS}{CALLS}",
    "<think>never ends",
    'before <tool_call>{"name": "f", "arguments": {"a": "cut',
    "NUL \0 and \u2028",
]
USAGE = Usage(5, 7, 2)
BODY = {
    "model": "m",
    "input": "hi",
    "tools": [
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
    ],
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def form(**options: Any) -> ResponseForm:
    call = read_response(orjson.dumps(BODY))
    return ResponseForm("resp_0", "m", call.repeated, call.by_name, **options)


def state(parser: OutputParser | None = None) -> ChoiceState:
    calls = ClientCalls(parser or call_parser("hermes"), custom={"patch"}, parallel=True)
    return ChoiceState(ReasoningOutput(calls, thinking=False))


def deltas(pieces: Sequence[str], finish: FinishReason = FinishReason.STOP) -> list[Delta]:
    last = len(pieces) - 1
    return [Delta(0, text, (1,), finish if number == last else None) for number, text in enumerate(pieces)]


def parsed(stream: bytes) -> list[Any]:
    """Return the events, after a strict check by the SDK's models."""
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n", 1)
        event = EVENTS.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {event.type}"
        events.append(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def check_order(events: Sequence[Any]) -> None:
    """Check that each item is added, grows and is done before the next, with the texts of its deltas."""
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    place, text, open_id = 0, "", ""
    for event in events[2:-1]:
        assert event.output_index == place
        if event.type == "response.output_item.added":
            assert not open_id
            open_id, text = event.item.id, ""
        elif event.type == "response.output_item.done":
            assert event.item.id == open_id
            open_id, place = "", place + 1
        else:
            assert event.item_id == open_id
            if event.type.endswith(".delta"):
                text += event.delta
            elif event.type.endswith((".arguments.done", "_text.done", "_input.done")):
                assert next(filter(None, (getattr(event, name, "") for name in ("text", "input"))), "") == text
    assert not open_id
    assert len(events[-1].response.output) == place


def without_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what is random."""
    document = json.loads(json.dumps(document))
    for item in document["output"]:
        item.pop("call_id", None)
    for name in ("created_at", "completed_at"):
        document.pop(name)
    document["usage"].pop("output_tokens_details")  # is counted by deltas
    return document


@given(st.data(), st.sampled_from(TEXTS), st.booleans(), st.booleans(), st.sampled_from(list(FinishReason)[:2]))
def test_any_split_makes_the_same_answer(
    data: st.DataObject, text: str, summarizes: bool, encrypts: bool, finish: FinishReason
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    streamed, whole = form(summarizes=summarizes, encrypts=encrypts), form(summarizes=summarizes, encrypts=encrypts)
    states = [state()]
    stream = b"".join(streamed.chunks(states[0], delta) for delta in deltas(pieces, finish))
    events = parsed(stream + streamed.end(states, USAGE))
    check_order(events)
    states = [state()]
    for delta in deltas([text], finish):
        whole.take(states[0], delta)
    (document,) = whole.whole(states, USAGE)
    Response.model_validate_json(document, strict=True)
    last = json.loads(stream_data(events[-1]))["response"]
    assert without_ids(last) == without_ids(json.loads(document))
    assert events[-1].type == f"response.{'completed' if finish is FinishReason.STOP else 'incomplete'}"


def stream_data(event: Any) -> str:
    text: str = event.model_dump_json(by_alias=True, exclude_unset=True)
    return text


def answered(text: str, *, parser: OutputParser | None = None, finish: FinishReason = FinishReason.STOP) -> Response:
    made, states = form(), [state(parser)]
    for delta in deltas([text], finish):
        made.take(states[0], delta)
    return Response.model_validate_json(next(made.whole(states, USAGE)), strict=True)


def test_calls_have_the_names_of_the_client() -> None:
    reasoning, message, function, custom, spawn = answered(TEXTS[3]).output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Hm."
    assert message.type == "message"
    assert function.type == "function_call"
    assert (function.name, function.arguments, function.namespace) == ("f", '{"a": "ä"}', None)
    assert custom.type == "custom_tool_call"
    assert (custom.name, custom.input) == ("patch", "+x\n")
    assert spawn.type == "function_call"
    assert (spawn.name, spawn.namespace) == ("spawn", "agents")


def test_an_answer_that_was_cut_says_so() -> None:
    answer = answered("Hello the", finish=FinishReason.LENGTH)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]


def test_arguments_that_were_cut_say_so() -> None:
    answer = answered('{"a": "cut', parser=NamedCall("f"), finish=FinishReason.LENGTH)
    (call,) = answer.output
    assert call.type == "function_call"
    assert (call.status, call.arguments) == ("incomplete", '{"a": "cut')
    answer = answered('{"input": "cut', parser=NamedCall("patch"), finish=FinishReason.LENGTH)
    assert answer.output[0].model_dump()["status"] == "incomplete"


def test_reasoning_is_counted() -> None:
    made, states = form(), [state()]
    for delta in deltas(["<think>a", " b", " c", "</think>", "So", " it", " is"]):
        made.take(states[0], delta)
    (document,) = made.whole(states, USAGE)
    assert json.loads(document)["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def test_a_failure_ends_the_stream() -> None:
    made, states = form(), [state()]
    stream = made.chunks(states[0], Delta(0, "Hello", (1,)))
    events = parsed(stream + made.failure(ConchError("the engine has died")))
    assert [event.type for event in events[-3:]] == ["response.output_item.done", "response.failed", "error"]
    assert events[-2].response.error.code == "server_error"
    assert events[-1].message == "the engine has died"


def test_probabilities_are_those_of_the_text() -> None:
    made, states = form(logprobs=True), [state()]
    choices = [TokenLogprob(1, "Hi", -0.5), TokenLogprob(2, "Ho", -1.0)]
    stream = made.chunks(states[0], Delta(0, "Hi", (1,), FinishReason.STOP, None, [choices]))
    events = parsed(stream + made.end(states, USAGE))
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [(token.token, token.top_logprobs[0].token) for token in done.logprobs] == [("Hi", "Ho")]


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"input": "a"}', "a"), ('{"other": 1}', '{"other":1}'), ("[1", "[1")]
)
def test_the_text_of_a_custom_call(arguments: str, text: str) -> None:
    made, states = form(), [state(NamedCall("patch"))]
    made.take(states[0], Delta(0, arguments.replace('{"other": 1}', '{"other":1}'), (1,), FinishReason.STOP))
    assert json.loads(next(made.whole(states, USAGE)))["output"][0]["input"] == text
