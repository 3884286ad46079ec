"""vLLM behind a real server: a repository as Triton's vLLM backend has it, asked by the official clients."""

import json
import queue
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from tests.server.backends.engines.driving import family
from tests.server.backends.engines.gguf_model import CONTEXT
from tests.server.backends.engines.hf_model import write_adapter, write_hf
from tests.server.backends.engines.vllm_environment import ENVIRONMENT, needs_vllm
from tests.support.server_process import ConchProcess

pytestmark = [*needs_vllm]

CONFIG = """
backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "yes" } }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
ARGUMENTS = {
    "model": "model",
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 24,
    "enable_lora": "true",
    "max_lora_rank": 8,
}
GREEDY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ConchProcess]:
    version = folder / "repository" / "words" / "1"
    write_hf(version / "model")
    write_adapter(version / "red", seed=1)
    (version / "model.json").write_text(json.dumps(ARGUMENTS))
    (version / "multi_lora.json").write_text(json.dumps({"red": "red"}))
    (version.parent / "config.pbtxt").write_text(CONFIG % ENVIRONMENT)
    flags = (f"--lora-dir={folder / 'loras'}",)
    process = ConchProcess(folder / "repository", *flags, log=folder / "log", start_limit_s=600)
    process.__enter__()
    yield process
    if process.process.poll() is None:  # the last test kills it
        assert process.stop() == 0


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def stream(server: ConchProcess, **inputs: Any) -> list[Any]:
    """Ask in tensor form, over a gRPC stream; return responses, or the error that ended it."""
    answers: queue.Queue[Any] = queue.Queue()
    tensors = []
    for name, value in inputs.items():
        array = np.array([value], np.bool_ if isinstance(value, bool) else np.object_)
        tensors.append(triton.InferInput(name, [1], np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(server.grpc) as asked:
        asked.start_stream(lambda result, error: answers.put(error or result))
        asked.async_stream_infer("words", tensors, enable_empty_final_response=True)
        heard = []
        while True:
            answer = answers.get(timeout=60)
            if isinstance(answer, Exception):
                return [*heard, answer]
            if not answer.get_response().parameters["triton_final_response"].bool_param:
                heard.append(answer)
                continue
            return [*heard, *([answer] if answer.get_response().outputs else [])]


def test_the_openai_client(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["words", "words_lora_red"]
    said = []
    for model in ("words", "words_lora_red"):
        answer = client.completions.create(model=model, prompt="the sun", max_tokens=6, temperature=0, logprobs=2)
        (choice,) = answer.choices
        assert choice.finish_reason == "length"
        assert choice.logprobs is not None
        assert len(choice.logprobs.tokens or []) == 6
        said.append(choice.text)
    assert said[0] != said[1]

    chunks = list(
        client.chat.completions.create(
            model="words",
            messages=[{"role": "user", "content": "How is the weather?"}],
            max_completion_tokens=9,
            n=2,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 18
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}

    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens"):
        client.completions.create(model="words", prompt="the sun", max_tokens=CONTEXT)


def test_an_answer_that_matches_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="words",
        messages=[{"role": "user", "content": "One or two?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "number", "schema": schema}},
        max_completion_tokens=200,
    )
    assert json.loads(answer.choices[0].message.content or "")["n"] in (1, 2)


def test_the_tensors_of_tritons_backend(server: ConchProcess) -> None:
    wanted = {f"return_{name}": True for name in ("finish_reason", "cumulative_logprob", "logprobs")}
    wanted |= {f"return_num_{name}_tokens": True for name in ("input", "output")}
    (whole,) = stream(server, text_input="the sun", sampling_parameters=json.dumps(GREEDY), **wanted)
    (text,) = whole.as_numpy("text_output")
    assert text.decode().startswith("the sun")
    assert whole.as_numpy("finish_reason").tolist() == [b"length"]
    assert whole.as_numpy("num_input_tokens").tolist() == [4]
    assert whole.as_numpy("num_output_tokens").tolist() == [6]
    (logprobs,) = whole.as_numpy("logprobs")
    values = [next(iter(token.values())) for token in json.loads(logprobs)]
    assert [value["rank"] for value in values] == [1] * 6  # the likeliest
    assert [set(value) for value in values] == [{"logprob", "rank", "decoded_token"}] * 6
    assert whole.as_numpy("cumulative_logprob") == pytest.approx(sum(value["logprob"] for value in values), rel=1e-5)

    pieces = stream(server, text_input="the sun", stream=True, sampling_parameters=json.dumps(GREEDY), **wanted)
    assert len(pieces) > 1
    assert b"".join(piece.as_numpy("text_output")[0] for piece in pieces) == text.removeprefix(b"the sun")
    assert sum(int(piece.as_numpy("num_output_tokens")[0]) for piece in pieces) == 6
    assert pieces[-1].as_numpy("finish_reason").tolist() == [b"length"]


def test_an_adapter_by_name(server: ConchProcess) -> None:
    (plain,) = stream(server, text_input="the sun", sampling_parameters=json.dumps(GREEDY))
    (red,) = stream(server, text_input="the sun", sampling_parameters=json.dumps({**GREEDY, "lora_name": "red"}))
    assert plain.as_numpy("text_output") != red.as_numpy("text_output")
    (error,) = stream(server, text_input="the sun", sampling_parameters=json.dumps({**GREEDY, "lora_name": "green"}))
    assert "LoRA adapter 'green' is unknown; this model has: red" in str(error)


def test_adapters_are_loaded_and_unloaded_at_run_time(
    server: ConchProcess, client: openai.OpenAI, folder: Path
) -> None:
    prompt = list(range(200))  # several blocks of the prefix cache

    def said(model: str) -> str:
        return client.completions.create(model=model, prompt=prompt, max_tokens=6, temperature=0).choices[0].text

    def change(action: str, name: str, **more: Any) -> tuple[int, str]:
        body = {"lora_name": name, "model": "words", **more}
        answer = httpx.post(f"http://{server.http}/v1/{action}_lora_adapter", json=body, timeout=60)
        return answer.status_code, answer.text

    loras = folder / "loras"
    write_adapter(loras / "twin", seed=1)
    assert change("load", "twin", lora_path="twin")[0] == 200
    red = said("words_lora_red")
    assert said("words_lora_twin") == said("twin") == red != said("words")
    # Other weights in the same folder: nothing of the prefixes of the former ones is used.
    write_adapter(loras / "twin", seed=2)
    write_adapter(loras / "other", seed=2)
    assert change("load", "twin", lora_path="twin", load_inplace=True)[0] == 200
    assert change("load", "other", lora_path="other")[0] == 200
    assert said("twin") == said("other") != red
    # vLLM holds one adapter in memory here, and reads the other again: its files are gone, or damaged.
    shutil.rmtree(loras / "twin")
    (loras / "other" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    assert said("twin") == said("other") == said("twin")
    write_adapter(loras / "large", seed=3, rank=16)
    status, text = change("load", "large", lora_path="large")
    assert (status, "LoRA rank 16 is greater than max_lora_rank 8" in text) == (400, True)
    status, text = change("load", "twin", lora_path="other", load_inplace=True)
    assert (status, "deserializing header" in text) == (400, True)
    with (loras / "large" / "adapter_model.safetensors").open("r+b") as weights:
        weights.truncate(33 << 30)  # sparse
    status, text = change("load", "large", lora_path="large")
    assert (status, "34359738368 bytes are the maximum" in text) == (400, True)
    assert change("load", "outside", lora_path="../repository/words/1/red")[0] == 400
    assert said("twin") == said("other")
    # An adapter in use is removed when its last request ends.
    chunks = client.completions.create(
        model="twin", prompt="a", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
    )
    next(chunks)
    assert 'running_lora_adapters="twin"' in server.metrics()
    assert change("unload", "twin")[0] == change("unload", "other")[0] == 200
    assert len(list(chunks)) > 1
    with pytest.raises(openai.NotFoundError):
        said("twin")
    assert said("words_lora_red") == red


def test_what_a_step_tells_is_in_the_metrics(server: ConchProcess, client: openai.OpenAI) -> None:
    prompt = list(range(200))
    for _ in range(2):
        client.completions.create(model="words", prompt=prompt, max_tokens=1)
    metrics = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in server.metrics().splitlines()
        if line.startswith("vllm:") and 'model_name="words"' in line and "le=" not in line
    }
    assert metrics["vllm:prefix_cache_queries_total"] >= 400
    assert metrics["vllm:prefix_cache_hits_total"] >= 128
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0
    assert metrics["vllm:generation_tokens_total"] > 30


def test_who_goes_away_is_dropped(server: ConchProcess, client: openai.OpenAI) -> None:
    deadline = time.monotonic() + 60
    while 'finished_reason="abort"' not in server.metrics():  # a generation may end before its client goes away
        assert time.monotonic() < deadline
        with client.completions.create(
            model="words", prompt="a", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        ) as chunks:
            next(chunks)
        while _running(server):
            assert time.monotonic() < deadline


def test_nothing_outlives_a_server_that_is_killed(server: ConchProcess) -> None:
    processes = family(server.process.pid)
    assert len(processes) > 3
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes[1:]):
        assert time.monotonic() < deadline


def _running(server: ConchProcess) -> int:
    (line,) = (line for line in server.metrics().splitlines() if line.startswith("vllm:num_requests_running{"))
    return int(float(line.rpartition(" ")[2]))
