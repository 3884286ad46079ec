"""Clients of language models that ask for what cannot be, go away in the midst, or do not read, at every endpoint."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.backends.engines.gguf_model import CONTEXT, write_gguf
from tests.server.chaos.accounting import resting as held_at_rest
from tests.server.chaos.accounting import settled
from tests.server.robustness.llm_endpoints import (
    ENDPOINTS,
    Endpoint,
    GrpcCaller,
    Reply,
    busy,
    engine,
    metric,
    resting,
    running,
    stalled,
    write_scripted,
)
from tests.server.robustness.slow_clients import MIB, read_all, reset, until, write_models
from tests.support.server_process import ConchProcess

LETTERS = "naïve 😀 is 中文, too"
WORDS = 200
LARGE = "x" * 400_000
PICKY = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "{{ message.content + 1 if message.content == 'one' else message.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("llm")
    models = root / "models"
    write_models(models)
    write_scripted(models, "words", {"context_length": 300, "step_ms": 1})
    write_scripted(models, "letters", {"tokens": "bytes", "reply": LETTERS})
    write_scripted(models, "endless", {"context_length": 10**7, "step_ms": 2, "max_running": 6})
    write_scripted(models, "large", {"context_length": 10**7, "reply": LARGE})
    write_scripted(models, "torn", {"chat_template": "{% for message in messages %}{{ message.content }"})
    write_scripted(models, "picky", {"chat_template": PICKY})
    tiny = models / "tiny" / "1"
    tiny.mkdir(parents=True)
    (tiny.parent / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    write_gguf(tiny / "model.gguf")
    (tiny / "model.json").write_text(json.dumps({"num_kv_blocks": 300, "max_num_batched_tokens": 64}))
    with ConchProcess(models, log=root / "conch.log") as server:
        yield server


endpoints = pytest.mark.parametrize("endpoint", ENDPOINTS)
engines = pytest.mark.parametrize("model", ["words", "tiny"])


@endpoints
@engines
def test_what_cannot_be_is_refused(conch: ConchProcess, endpoint: str, model: str) -> None:
    context = CONTEXT if model == "tiny" else 300
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("one two", {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ("one two", {"max_tokens": -5}, "max_tokens must be at least 1, got -5"),
        ("one two", {"max_tokens": 10**9}, f"This model's maximum context length is {context} tokens. However, you"),
        ("one two", {"max_tokens": 10**12}, "max_tokens must be between 1 and 2147483647"),
        ("a b c d " * 200, {"max_tokens": 5}, f"This model's maximum context length is {context} tokens. However, you"),
        ("a" * 150_000, {"max_tokens": 5}, f"maximum context length is {context} tokens. However, your prompt has"),
        ("one two", {"n": 1000}, "n must be between 1 and 128, got 1000"),
        ("one two", {"temperature": -1}, "temperature must be between 0 and 100"),
    ]
    for prompt, params, text in cases:
        reply = ENDPOINTS[endpoint].ask(conch, model, prompt, **params)
        assert text in reply.error
        assert reply.status == (0 if endpoint == "grpc" else 400)
    unknown = ENDPOINTS[endpoint].ask(conch, "nobody", "one two")
    assert "nobody" in unknown.error
    # In a stream of events, whatever is wrong is 400: but that is said before there is one.
    assert unknown.status == (0 if endpoint == "grpc" else 404)
    assert ENDPOINTS[endpoint].ask(conch, model, "one two", max_tokens=3, ignore_eos=True).error == ""


@endpoints
def test_a_prompt_that_no_engine_is_sent(conch: ConchProcess, endpoint: str) -> None:
    """However large the context is: what an engine is sent in one piece has a bound, beyond which it would give up."""
    process = engine(conch, "endless")
    reply = ENDPOINTS[endpoint].ask(conch, "endless", "a" * (13 * 2**20), max_tokens=5)
    assert "your prompt has 13631488 characters" in reply.error
    assert engine(conch, "endless") == process


@endpoints
def test_characters_and_stop_strings_may_lie_across_tokens(conch: ConchProcess, endpoint: str) -> None:
    ask = ENDPOINTS[endpoint].ask
    assert ask(conch, "letters", "hello", max_tokens=100).text == LETTERS
    assert ask(conch, "letters", "hello", max_tokens=100, stop=["e 😀 is", "文"]).text == "naïv"
    assert ask(conch, "letters", "hello", max_tokens=100, stop=["文, t"]).text == "naïve 😀 is 中"
    # Cut within a character: what is there of it is shown as what it is.
    assert ask(conch, "letters", "hello", max_tokens=9).text == "naïve \ufffd"


@endpoints
def test_what_random_bytes_make_is_text(conch: ConchProcess, endpoint: str) -> None:
    """Most sequences of a random model's tokens are not characters."""
    reply = ENDPOINTS[endpoint].ask(conch, "tiny", "one two", max_tokens=200, temperature=2.0, ignore_eos=True, seed=5)
    assert reply.error == ""
    assert len(reply.text) > 50


@pytest.mark.parametrize("model", ["torn", "picky"])
def test_a_template_that_fails_is_the_requests_end_alone(conch: ConchProcess, model: str) -> None:
    chat = Endpoint(
        "/v1/chat/completions",
        lambda model, prompt, **fields: {"model": model, "messages": [{"role": "user", "content": prompt}], **fields},
        lambda body: ("", json.loads(body).get("error", {}).get("message", "")),
    )
    if model == "torn":
        assert chat.ask(conch, model, "one") == Reply("", "invalid chat template: unexpected '}'", 400)
        return
    assert "chat template cannot render these messages: can only concatenate" in chat.ask(conch, model, "one").error
    system = [{"role": "system", "content": "be good"}]
    assert chat.ask(conch, model, "two", messages=system) == Reply("", "no system here", 400)
    assert chat.ask(conch, model, "two").status == 200


@endpoints
@pytest.mark.parametrize("model", ["endless", "tiny"])
def test_who_goes_leaves_nothing_running(conch: ConchProcess, endpoint: str, model: str) -> None:
    before = metric(conch, "vllm:request_success_total", model, finished_reason="abort")
    params: dict[str, Any] = {"max_tokens": 10**6} if model == "endless" else {"max_tokens": CONTEXT - 20, "n": 16}
    callers = [ENDPOINTS[endpoint].begin(conch, model, " word", ignore_eos=True, **params) for _ in range(8)]
    if model == "endless":
        until(lambda: busy(conch, model)[:2] == (6, 2), f"not six running and two waiting: {busy(conch, model)}")
    for caller in callers:
        caller.leave()
    resting(conch, model)
    aborted = metric(conch, "vllm:request_success_total", model, finished_reason="abort") - before
    assert aborted == 8 if model == "endless" else aborted > 0
    tokens = metric(conch, "vllm:generation_tokens_total", model)
    assert ENDPOINTS[endpoint].ask(conch, model, " word", ignore_eos=True, max_tokens=5).error == ""
    assert metric(conch, "vllm:generation_tokens_total", model) == tokens + 5


def test_a_hundred_who_come_and_go(conch: ConchProcess) -> None:
    """In all phases: with half a request, without an answer, with a part of one."""
    process = psutil.Process(conch.process.pid)
    tell = {name: endpoint for name, endpoint in ENDPOINTS.items() if name != "grpc"}

    def come_and_go(count: int) -> None:
        callers = []
        for number in range(count):
            name = list(ENDPOINTS)[number % len(ENDPOINTS)]
            callers.append(ENDPOINTS[name].begin(conch, "endless", " word", ignore_eos=True, max_tokens=10**6))
            if name in tell:
                request = tell[name].request("endless", " word", ignore_eos=True, max_tokens=10**6)  # type: ignore[union-attr]
                reset(stalled(conch, request[: -(number % 40) - 1]))
            if len(callers) == 10:
                for caller in callers:
                    caller.leave()
                callers.clear()

    come_and_go(10)
    resting(conch, "endless")
    before, memory = held_at_rest(conch.process.pid), process.memory_info().rss
    come_and_go(100)
    resting(conch, "endless")
    settled(conch.process.pid, before)
    assert process.memory_info().rss - memory < 32 * MIB
    assert "Traceback" not in conch.text


@pytest.mark.parametrize("endpoint", ["openai stream", "generate_stream"])
def test_a_client_that_does_not_read_slows_no_other_and_is_disconnected(conch: ConchProcess, endpoint: str) -> None:
    process, asked = psutil.Process(conch.process.pid), ENDPOINTS[endpoint]
    assert isinstance(asked, Endpoint)
    memory = process.memory_info().rss
    request = asked.request("large", "word", ignore_eos=True, max_tokens=10**6)
    with stalled(conch, request) as sleeper:
        running(conch, "large", 1)
        prompt = " ".join(map(str, range(100)))
        others: list[Reply] = []
        threads = [
            threading.Thread(
                target=lambda name=name: others.append(ENDPOINTS[name].ask(conch, "words", prompt, max_tokens=150))
            )
            for name in ENDPOINTS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert others == [Reply(prompt, "", reply.status) for reply in others]
        resting(conch, "large")  # it has been ended, with nothing read
        assert process.memory_info().rss - memory < 250 * MIB
        sleeper.shutdown(1)
        answer = read_all(sleeper)
    assert answer.count(b"the client reads too slowly: ") == 1
    assert answer.endswith(b"0\r\n\r\n")


def test_a_stream_that_is_not_read_slows_no_other_stream(conch: ConchProcess) -> None:
    """Over gRPC. How much is held for it has a test beside the stream itself."""
    with GrpcCaller(conch) as reader, GrpcCaller(conch) as sleeper:
        sleeper.answers.put = lambda *_: threading.Event().wait(2.0)  # type: ignore[method-assign, assignment]
        sleeper.send("endless", " word", ignore_eos=True, max_tokens=10**6)
        running(conch, "endless", 1)
        prompt = " ".join(map(str, range(WORDS)))
        context = 90
        for _ in range(3):
            reader.send("words", prompt, max_tokens=context)
            assert reader.reply() == Reply(" ".join(map(str, range(context))), "")
        sleeper.close(cancel=True)
    resting(conch, "endless")


def test_two_thousand_at_once(conch: ConchProcess) -> None:
    """On one stream each is answered in its turn, and the server is there for others meanwhile."""
    count = 2000
    process = psutil.Process(conch.process.pid)
    memory = process.memory_info().rss
    ends: list[str] = []
    with GrpcCaller(conch) as caller:
        for number in range(count):
            caller.send("words", "one two three", request_id=str(number))
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/words/ready"):
            conch.until(path)
        while len(ends) < count:
            result, error = caller.answers.get(timeout=30)
            assert error is None
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                ends.append(response.id)
    assert sorted(ends) == sorted(map(str, range(count)))
    late = [abs(place - int(number)) for place, number in enumerate(ends)]
    assert max(late) <= 512  # first come, first served: 256 run side by side
    assert process.memory_info().rss - memory < 100 * MIB


def test_rejections_for_lack_of_room_carry_retry_after(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_scripted(models, "few", {"context_length": 10**6, "step_ms": 10, "max_running": 4})
    with ConchProcess(models, "--default-max-queue-size=16", log=tmp_path / "log") as conch:
        endpoints = [name for name in ENDPOINTS if name != "grpc"]
        replies: list[Reply] = []

        def ask(number: int) -> None:
            endpoint = ENDPOINTS[endpoints[number % len(endpoints)]]
            replies.append(endpoint.ask(conch, "few", " word", ignore_eos=True, max_tokens=40))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(120)]
        for thread in threads:
            thread.start()
        conch.until("/v2/health/ready")
        for thread in threads:
            thread.join()
        assert len(replies) == 120
        refused = [reply for reply in replies if reply.error]
        assert len(refused) <= 120 - 4 - 16
        assert all("Exceeds maximum queue size" in reply.error for reply in refused)
        assert {reply.status for reply in refused} == {503}
        assert all(int(reply.retry_after) >= 1 for reply in refused)
        assert all(reply.text.split() == ["word"] * 40 for reply in replies if not reply.error)
        until(lambda: metric(conch, "nv_inference_pending_request_count", "few") == 0, "some are still pending")
