"""Prompts of exact token counts, conversations and prompts of files, sent to a real Conch server."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conch.measure.bench.generator import Answer, Cancel, PreparedRequest
from conch.measure.bench.input_settings import Amount, Cancellation, InputError, InputSettings, OpenAiRoute
from conch.measure.bench.inputs.build import build_source, prepare_inputs, prepare_trace
from conch.measure.bench.inputs.expected_answers import send_once
from conch.measure.bench.inputs.language import RequestSize
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.single_request import send_alone
from conch.measure.bench.targets.target import BenchTarget, Protocol
from tests.support.models import tensor, write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow
SEQUENCE = (
    f"max_batch_size: 4 sequence_batching {{ }} input {tensor('IN', 'FP32', 1)} output {tensor('OUT', 'FP32', 1)}"
)
ECHO = """
array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("language")
    repository = folder / "repository"
    write_scripted(repository, "words", {"context_length": 1000})
    write_scripted(repository, "letters", {"context_length": 1000, "tokens": "bytes"})
    write_identity(repository, "echo", "FP32", 4, batch=8)
    write_python(repository, "summing", SEQUENCE, ECHO)
    with ConchProcess(repository, log=folder / "log") as process:
        yield process


@pytest.fixture
def words(server: ConchProcess) -> BenchTarget:
    return discover(server.http, model="words")


def fixed(target: BenchTarget, settings: InputSettings) -> list[PreparedRequest]:
    requests = build_source(target, settings).fixed
    assert requests is not None
    return requests


def usage(target: BenchTarget, request: PreparedRequest) -> tuple[int, int]:
    """Prompt and completion tokens as the server counts them."""
    first, *lines = request.head.decode().splitlines()
    probe = HttpProbe(target.endpoint)
    try:
        headers = dict(line.split(": ", 1) for line in lines)
        answer = probe.ask("POST", first.split()[1], request.body, headers)
    finally:
        probe.close()
    assert answer.status == 200, answer.body
    return tuple(int(re.findall(rb'"%s_tokens":(\d+)' % name, answer.body)[-1]) for name in (b"prompt", b"completion"))  # type: ignore[return-value]


@pytest.mark.parametrize("model", ["words", "letters"])
@pytest.mark.parametrize("route", [OpenAiRoute.CHAT, OpenAiRoute.COMPLETIONS])
def test_prompts_and_answers_have_the_exact_number_of_tokens(
    server: ConchProcess, model: str, route: OpenAiRoute
) -> None:
    target = discover(server.http, model=model)
    settings = InputSettings(
        prompt_tokens=Amount(200, 20),
        output_tokens=Amount(7),
        route=route,
        streaming=route is OpenAiRoute.CHAT,
        distinct=4,
    )
    prepared = prepare_inputs(target, settings)
    assert "of exactly 200±20 tokens by the server's tokenizer, answers of 7 tokens" in prepared.description
    requests = prepared.source.fixed
    assert requests is not None
    for request in requests:
        assert 180 <= request.input_tokens <= 220
        assert usage(target, request) == (request.input_tokens, 7)


def test_prompts_never_repeat_unless_asked_for(words: BenchTarget) -> None:
    settings = InputSettings(prompt_tokens=Amount(50), output_tokens=Amount(2), prefix_tokens=30)
    prepared = prepare_inputs(words, settings)
    assert prepared.description.startswith("prompts that never repeat, of exactly 50 tokens")
    request = fixed(words, settings)[0]
    assert request.next_body is not None
    sent = [request.changed() for _ in range(3)]
    prompts = [json.loads(request.body)["messages"][0]["content"].split() for request in sent]
    assert prompts[0][:30] == prompts[1][:30] == prompts[2][:30]
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 3
    assert [usage(words, request) for request in sent] == [(50, 2)] * 3
    assert all(request.next_body is None for request in fixed(words, InputSettings(distinct=3)))
    source = build_source(words, InputSettings(turns=Amount(2)))
    first = [source.script(session).next(None) for session in (0, 0)]
    assert first[0] is not None
    assert first[1] is not None
    assert first[0].body != first[1].body
    assert b"\x7f" not in first[0].body


@pytest.mark.parametrize("protocol", [Protocol.GENERATE, Protocol.GRPC_STREAM])
def test_prompts_in_tensors_never_repeat(server: ConchProcess, protocol: Protocol) -> None:
    url = server.grpc if protocol is Protocol.GRPC_STREAM else server.http
    request = fixed(discover(url, model="words", protocol=protocol), InputSettings(output_tokens=Amount(2)))[0]
    assert request.next_body is not None
    bodies = {request.changed().body for _ in range(3)}
    assert len(bodies) == 3
    assert len(set(map(len, bodies))) == 1


def test_shared_prefixes(words: BenchTarget) -> None:
    settings = InputSettings(prompt_tokens=Amount(50), prefix_tokens=30, prefixes=2, distinct=6)
    prompts = [json.loads(request.body)["messages"][0]["content"].split() for request in fixed(words, settings)]
    starts = [tuple(prompt[:30]) for prompt in prompts]
    assert starts[::2] == [starts[0]] * 3
    assert starts[1::2] == [starts[1]] * 3
    assert starts[0] != starts[1]
    assert len({tuple(prompt) for prompt in prompts}) == 6
    with pytest.raises(InputError, match="--prompt-tokens 20: the shared prefix and the chat template alone have 31"):
        fixed(words, InputSettings(prompt_tokens=Amount(20), prefix_tokens=30))


def test_conversations_grow_with_the_answers(words: BenchTarget) -> None:
    source = build_source(words, InputSettings(turns=Amount(3), prompt_tokens=Amount(20), output_tokens=Amount(5)))
    assert source.fixed is None
    script = source.script(7)
    assert script.needs_answers
    answer, messages = None, list[Any]()
    tokens = []
    while (request := script.next(answer)) is not None:
        said = json.loads(request.body)["messages"]
        assert said[: len(messages)] == messages
        messages = said
        tokens.append(usage(words, request)[0])
        answer = send_once(words, request)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert tokens[0] == 20
    assert tokens == sorted(tokens)
    failed = source.script(8)
    assert failed.next(None) is not None
    assert failed.next(Answer(503, b"")) is None


def test_sizes_of_a_trace(words: BenchTarget) -> None:
    sizes = [RequestSize(120, 3, (1, 2)), RequestSize(100, 4, (1, 3)), RequestSize(9, 5)]
    requests = prepare_trace(words, InputSettings(), sizes, block_tokens=64).source.fixed
    assert requests is not None
    assert [usage(words, request) for request in requests] == [(120, 3), (100, 4), (9, 5)]
    first, second, _ = [json.loads(request.body)["messages"][0]["content"].split() for request in requests]
    shared = sum(1 for _ in zip(first, second, strict=False) if _[0] == _[1])
    assert first[:64] == second[:64]
    assert shared < 90


def test_the_share_of_cancelled_requests(words: BenchTarget) -> None:
    requests = fixed(words, InputSettings(cancel=Cancellation(0.1, after_ms=200)))
    cancelled = [request for request in requests if request.cancel is Cancel.AFTER_TIME]
    assert len(cancelled) == round(len(requests) / 10)
    assert {request.cancel_after for request in cancelled} == {200}
    assert [request.index for request in requests] == list(range(len(requests)))


@pytest.mark.parametrize("protocol", [Protocol.GENERATE, Protocol.GRPC_STREAM])
def test_language_models_by_tensors(server: ConchProcess, protocol: Protocol) -> None:
    url = server.grpc if protocol is Protocol.GRPC_STREAM else server.http
    target = discover(url, model="words", protocol=protocol)
    prompts = InputSettings(prompt_tokens=Amount(10), output_tokens=Amount(3), distinct=2)
    request = fixed(target, prompts)[0]
    assert len(send_once(target, request).text.split()) == 3
    assert send_alone(target.endpoint, request).responses >= 3


def test_prompts_of_files(words: BenchTarget, tmp_path: Path) -> None:
    lines = [
        {"text": "one"},
        {"prompt": "two", "max_tokens": 4},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "three"}]},
        {"custom_id": "x", "body": {"messages": [{"role": "user", "content": "four"}]}},
        {"texts": ["fi", "ve"], "output_length": 9},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    bodies = [json.loads(request.body) for request in fixed(words, InputSettings(input_data=str(file)))]
    assert [body["messages"][-1]["content"] for body in bodies] == ["one", "two", "three", "four", "fi ve"]
    assert [body["max_tokens"] for body in bodies] == [128, 4, 128, 128, 9]

    file.write_text('{"session_id": "a", "text": "hello"}\n{"session_id": "a", "text": "and then?"}')
    script = build_source(words, InputSettings(input_data=str(file))).script(0)
    assert script.needs_answers

    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\ntwo\n")
    assert len(fixed(words, InputSettings(input_data=str(plain)))) == 2

    payload = tmp_path / "genai.json"
    payload.write_text(json.dumps({"data": [{"payload": [{"messages": [{"role": "user", "content": "hi"}]}]}]}))
    assert len(fixed(words, InputSettings(input_data=str(payload)))) == 1

    file.write_text('{"text": "one"}\n{"no": 1}')
    with pytest.raises(InputError, match=r"prompts\.jsonl:2 has no prompt: expected one of text, prompt"):
        fixed(words, InputSettings(input_data=str(file)))


@pytest.mark.parametrize("protocol", [Protocol.HTTP, Protocol.GRPC])
def test_the_first_answers_are_expected(server: ConchProcess, protocol: Protocol) -> None:
    url = server.grpc if protocol is Protocol.GRPC else server.http
    target = discover(url, model="echo", protocol=protocol)
    requests = fixed(target, InputSettings(expect="first", distinct=3))
    for request, other in pairwise(requests):
        assert request.expected is not None
        assert request.expected.difference(send_once(target, request)) == ""
        assert "output 'OUTPUT0' element 0 is" in request.expected.difference(send_once(target, other))


def test_the_first_text_is_expected(words: BenchTarget, tmp_path: Path) -> None:
    request, other = fixed(words, InputSettings(expect="first", distinct=2))
    assert request.expected is not None
    answer = send_once(words, request)
    assert answer.text
    assert request.expected.difference(answer) == ""
    assert "the text differs at character" in request.expected.difference(send_once(words, other))
    (tmp_path / "answer.txt").write_text("something else")
    (wrong,) = fixed(words, InputSettings(expect=str(tmp_path / "answer.txt"), distinct=1))
    assert wrong.expected is not None
    assert wrong.expected.difference(answer)


def test_models_with_sequences_get_sequences(server: ConchProcess) -> None:
    target = discover(server.http, model="summing")
    assert target.model.sequences
    prepared = prepare_inputs(target, InputSettings(sequence_length=Amount(4)))
    assert prepared.notes == ()
    noticed = prepare_inputs(target, InputSettings()).notes
    assert noticed[0].startswith("model 'summing' has sequence_batching: it gets sequences of 16 to 24 requests")
    for session in (0, 1):
        script = prepared.source.script(session)
        for _ in range(4):
            request = script.next(None)
            assert request is not None
            assert send_once(target, request).status == 200
        assert script.next(None) is None
