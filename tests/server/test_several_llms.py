"""Three language models in one server under load: one of them is full and says so, the others do not notice."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

WORDS = 20
SLOW = {"max_running": 1, "step_ms": 5, "context_length": 100}
QUEUE_OF_TWO = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("several")
    write_scripted(folder / "repository", "narrow", {**SLOW, "step_ms": 50}, extra=QUEUE_OF_TWO)
    write_scripted(folder / "repository", "patient", SLOW)
    write_scripted(folder / "repository", "wide", {"context_length": 100})
    with ConchProcess(folder / "repository", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def say(client: openai.OpenAI, model: str) -> openai.APIStatusError | int:
    """Generate `words` words; return their number, or the rejection."""
    try:
        stream = client.completions.create(
            model=model, prompt="word", max_tokens=WORDS, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join(chunk.choices[0].text for chunk in stream).count("word")
    except openai.APIStatusError as error:
        return error


def test_a_full_model_refuses_and_the_others_continue(server: ConchProcess, client: openai.OpenAI) -> None:
    models = ["narrow", "patient", "wide"] * 12
    with ThreadPoolExecutor(len(models)) as pool:
        answers = list(pool.map(lambda model: say(client, model), models))
    by_model = {name: [got for model, got in zip(models, answers, strict=True) if model == name] for name in models}
    assert by_model["wide"] == by_model["patient"] == [WORDS] * 12
    refusals = [got for got in by_model["narrow"] if isinstance(got, openai.APIStatusError)]
    assert by_model["narrow"].count(WORDS) == 12 - len(refusals) >= 3
    assert refusals
    for refusal in refusals:
        assert refusal.status_code == 503
        assert int(refusal.response.headers["retry-after"]) >= 1
        body: Any = refusal.body
        assert body["type"] == "server_overloaded"
        assert "computes 1 sequences concurrently; 2 wait, the maximum is 2" in body["message"]
    metrics = server.metrics()
    assert figure(metrics, "nv_inference_request_failure", "narrow", 'reason="REJECTED"') == len(refusals)
    assert figure(metrics, "nv_inference_request_failure", "patient", 'reason="REJECTED"') == 0
    for family in ("queue_time", "prefill_time", "inference_time", "decode_time"):
        assert figure(metrics, f"vllm:request_{family}_seconds_count", "patient") == 12
    assert figure(metrics, "vllm:request_queue_time_seconds_sum", "patient") > 0


def test_settings_without_effect_on_an_engine_are_logged(tmp_path: Path) -> None:
    extra = "dynamic_batching { max_queue_delay_microseconds: 5 default_queue_policy { max_queue_size: 2 } }"
    write_scripted(tmp_path / "repository", "words", {}, extra=extra)
    with ConchProcess(tmp_path / "repository", log=tmp_path / "log") as server:
        assert "dynamic_batching of model 'words' has no effect: the engine batches" in server.text


def figure(metrics: str, name: str, model: str, label: str = "") -> float:
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", metrics, re.MULTILINE)
    (value,) = [value for labels, value in lines if f'"{model}"' in labels and label in labels]
    return float(value)
