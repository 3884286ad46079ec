"""Calls of language models, and for embeddings, in traces and in the log of requests, through each door."""

import json
from pathlib import Path

import openai
import pytest

from tests.server.collector import Collector
from tests.server.test_tracing import REMOTE, read
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

SCRIPT = {
    "rules": [{"match": "weather", "reply": "It rains."}, {"match": "fall", "reply": "I do fall", "error": "a fault"}]
}
ASKED = [{"role": "user", "content": "How is the weather?"}]
# A vector for each text, and as many tokens as it has letters; none for what begins with an x.
LETTERS = """
texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)]
if texts[0].startswith("x"):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("no letters", pb_utils.TritonError.INVALID_ARG))
counts = np.array([[len(text)] for text in texts], np.int32)
vectors = np.repeat(counts, 2, axis=1).astype(np.float32)
outputs = [pb_utils.Tensor("VECTOR", vectors), pb_utils.Tensor("num_input_tokens", counts)]
return pb_utils.InferenceResponse(outputs)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_scripted(tmp_path / "models", "words", SCRIPT)
    return tmp_path / "models"


def ask(conch: ConchProcess, **headers: str) -> tuple[int, int]:
    """Call each door; return the tokens of one prompt and of its answer."""
    with openai.OpenAI(base_url=f"http://{conch.http}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model="words", messages=ASKED, extra_headers=headers)  # type: ignore[call-overload]
        stream = client.chat.completions.create(model="words", messages=ASKED, stream=True)  # type: ignore[call-overload]
        assert len(list(stream)) > 1
        client.completions.create(model="words", prompt=["weather", "weather"])
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="words", prompt="fall")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="words", prompt="weather", max_tokens=10**9)
        return chat.usage.prompt_tokens, chat.usage.completion_tokens


def test_calls_are_in_the_trace_file_and_in_the_log(models: Path, tmp_path: Path) -> None:
    path, log = tmp_path / "trace.json", tmp_path / "log"
    flags = (f"--trace-config=triton,file={path}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with ConchProcess(models, *flags, "--log-requests=all", "--log-format=json", log=log) as conch:
        prompt, completion = ask(conch)
    traced = read(path)
    assert [trace.head["model_name"] for trace in traced] == ["words"] * 5
    for trace in traced[:3]:
        assert trace.took("HTTP_RECV_START", "REQUEST_START") >= 0
        assert trace.took("QUEUE_START", "COMPUTE_START") > 0
        assert trace.took("COMPUTE_START", "REQUEST_END") > 0
        assert trace.took("REQUEST_END", "HTTP_SEND_END") >= 0
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"request"' in line]
    told = [line for line in lines if line.get("message") == "request"]
    assert [line["status"] for line in told] == ["OK", "OK", "OK", "INTERNAL", "INVALID_ARG"]
    assert [(line["prompt_tokens"], line["completion_tokens"]) for line in told[:2]] == [(prompt, completion)] * 2
    assert told[2]["completion_tokens"] == 2 * completion
    assert "a fault" in told[3]["error"]


def test_calls_are_spans_of_their_callers_trace(models: Path, tmp_path: Path) -> None:
    with Collector() as collector:
        flags = ("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={collector.url}")
        level = ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
        with ConchProcess(models, *flags, *level, log=tmp_path / "log") as conch:
            prompt, completion = ask(conch, traceparent=f"{REMOTE}01")
        spans = collector.spans
    (chat,) = (span for span in spans if span.name == "words" and span.trace == REMOTE.split("-")[1])
    assert chat.attributes["gen_ai.usage.input_tokens"] == prompt
    assert chat.attributes["gen_ai.usage.output_tokens"] == completion
    assert [span.failed for span in spans if span.name == "words"].count(True) == 2


def test_calls_for_embeddings_are_spans_with_their_requests(tmp_path: Path) -> None:
    tensors = f"{tensor('VECTOR', 'FP32', 2)} output {tensor('num_input_tokens', 'INT32', 1)}"
    text = f"max_batch_size: 2 input {tensor('TEXT', 'STRING', 1)} output {tensors}"
    write_python(tmp_path / "models", "letters", text, LETTERS)
    with Collector() as collector:
        flags = ("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={collector.url}")
        level = ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", "--log-requests=all", "--log-format=json")
        with (
            ConchProcess(tmp_path / "models", *flags, *level, log=tmp_path / "log") as conch,
            openai.OpenAI(base_url=f"http://{conch.http}/v1", api_key="none", max_retries=0) as client,
        ):
            texts = ["a", "bb", "ccc"]
            headers = {"traceparent": f"{REMOTE}01"}
            answer = client.embeddings.create(model="letters", input=texts, extra_headers=headers)
            assert answer.usage.prompt_tokens == 6
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="letters", input="x")
        spans = collector.spans
    ours = [span for span in spans if span.name == "letters" and span.trace == REMOTE.split("-")[1]]
    (root,) = (span for span in ours if "gen_ai.usage.input_tokens" in span.attributes)
    assert root.attributes["gen_ai.usage.input_tokens"] == 6
    assert "gen_ai.usage.output_tokens" not in root.attributes
    children = [span for span in ours if span.parent == root.id]
    assert len(children) == 2  # three texts, two at a time
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"request"' in line]
    told = [line for line in lines if line.get("message") == "request"]
    assert [(line["status"], line.get("prompt_tokens")) for line in told] == [("OK", 6), ("INVALID_ARG", None)]
    assert "completion_tokens" not in told[0]
