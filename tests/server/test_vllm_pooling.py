"""Embeddings, rerank, score, classify and pooling of models that vLLM runs, compared with vLLM's own results."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton

from tests.server.backends.engines.gguf_model import CONTEXT, HIDDEN
from tests.server.backends.engines.hf_model import write_bert, write_hf
from tests.server.backends.engines.vllm_environment import ENVIRONMENT, SETTINGS, needs_vllm
from tests.support.server_process import ConchProcess

# Loads take minutes on a machine that is busy.
_LOAD_TIMEOUT_S = 600
pytestmark = [*needs_vllm, pytest.mark.timeout(3 * _LOAD_TIMEOUT_S)]

QUERY = "what is the capital of france"
DOCUMENTS = ["a cat sat on a mat", "paris is the capital of france", "berlin", "germany " * 30]
LABELS = ("sad", "neutral", "glad")
ARGUMENTS = {"model": "model", "runner": "pooling", "dtype": "float32", "enforce_eager": True}
ARGUMENTS |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 4 << 20}
# What vLLM's own Python API returns for the same checkpoints.
OWN = """
import gc, json, os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, PoolingParams
from vllm.distributed import cleanup_dist_env_and_memory
raw = PoolingParams(use_activation=False)
folder, arguments, query, documents = json.loads(sys.argv[1])

def encoder(llm):
    kept = llm.embed(documents, tokenization_kwargs={"truncate_prompt_tokens": 4})
    return {
        "vectors": [output.outputs.embedding for output in llm.embed(documents)],
        "cut": [output.outputs.embedding for output in kept],
    }

def ranker(llm):
    pairs = llm.score(query, documents)
    return {
        "scores": [output.outputs.score for output in pairs],
        "logits": [output.outputs.score for output in llm.score(query, documents, pooling_params=raw)],
        "tokens": sum(len(output.prompt_token_ids) for output in pairs),
        "cut": llm.score(query, documents[-1], tokenization_kwargs={"truncate_prompt_tokens": 20})[0].outputs.score,
        "alone": [output.outputs.probs for output in llm.classify(documents)],
    }

def moods(llm):
    return {
        "probabilities": [output.outputs.probs for output in llm.classify(documents)],
        "logits": [output.outputs.probs for output in llm.classify(documents, pooling_params=raw)],
    }

found = {}
for ask in (encoder, ranker, moods):
    llm = LLM(**{**arguments, "model": f"{folder}/{ask.__name__}/1/model"})
    found[ask.__name__] = ask(llm)
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
print("\\n" + json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("pooling") / "models"
    write_bert(models / "encoder" / "1" / "model")
    write_bert(models / "ranker" / "1" / "model", labels=1)
    write_hf(models / "moods" / "1" / "model", labels=LABELS)
    write_bert(models / "mistaken" / "1" / "model", labels=1)
    for folder in models.iterdir():
        (folder / "1" / "model.json").write_text(json.dumps(ARGUMENTS))
        task = ' parameters { key: "text_task" value { string_value: "embed" } }' if folder.name == "mistaken" else ""
        (folder / "config.pbtxt").write_text(f'backend: "vllm" max_batch_size: 4{task}')
    return models


@pytest.fixture(scope="module")
def own(models: Path) -> dict[str, Any]:
    """vLLM's results by model."""
    command = [f"{ENVIRONMENT}/bin/python", "-c", OWN, json.dumps([str(models), ARGUMENTS, QUERY, DOCUMENTS])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LOAD_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr[-2000:]
    results: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ConchProcess]:
    flags = ("--model-control-mode=explicit", f"--backend-config=vllm,env-path={SETTINGS['env-path']}")
    with ConchProcess(models, *flags, log=models.parent / "log") as process:
        with closing(triton.InferenceServerClient(process.http, network_timeout=_LOAD_TIMEOUT_S)) as control:
            for name in ("encoder", "ranker", "moods"):
                control.load_model(name)
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as made:
        yield made


def ask(server: ConchProcess, path: str, expected: int = 200, **body: Any) -> Any:
    answer = httpx.post(f"http://{server.http}{path}", json=body, timeout=60)
    assert answer.status_code == expected, answer.text
    return answer.json()


def test_embeddings(server: ConchProcess, client: openai.OpenAI, own: dict[str, Any]) -> None:
    answer = client.embeddings.create(model="encoder", input=DOCUMENTS)
    vectors = np.array([entry.embedding for entry in answer.data])
    assert vectors.shape == (len(DOCUMENTS), HIDDEN)
    assert np.allclose(vectors, own["encoder"]["vectors"], atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-2)
    assert answer.usage.prompt_tokens >= 15
    cut = client.embeddings.create(model="encoder", input=DOCUMENTS, extra_body={"truncate_prompt_tokens": 4})
    assert np.allclose([entry.embedding for entry in cut.data], own["encoder"]["cut"], atol=1e-5)
    assert cut.usage.prompt_tokens == 4 + 4 + 3 + 4
    pooled = ask(server, "/pooling", model="encoder", input=DOCUMENTS)
    assert np.allclose([entry["data"] for entry in pooled["data"]], vectors, atol=1e-5)


def test_texts_that_exceed_the_context_are_refused(server: ConchProcess, client: openai.OpenAI) -> None:
    for text in ("paris " * 2 * CONTEXT, "paris " * 40 * CONTEXT):
        with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens"):
            client.embeddings.create(model="encoder", input=text)
        for path, body in (("/v1/score", {"text_1": QUERY, "text_2": text}), ("/v1/classify", {"input": text})):
            assert "maximum context length" in str(ask(server, path, 400, model="ranker", **body))
    assert len(client.embeddings.create(model="encoder", input="paris").data) == 1


def test_a_cross_encoder_scores_as_vllm_does(server: ConchProcess, own: dict[str, Any]) -> None:
    answer = ask(server, "/v1/score", model="ranker", text_1=QUERY, text_2=DOCUMENTS)
    assert np.allclose([entry["score"] for entry in answer["data"]], own["ranker"]["scores"], atol=1e-5)
    assert answer["usage"]["prompt_tokens"] == own["ranker"]["tokens"]
    paired = ask(server, "/v1/score", model="ranker", text_1=[QUERY] * 2, text_2=DOCUMENTS[:2], use_activation=False)
    assert np.allclose([entry["score"] for entry in paired["data"]], own["ranker"]["logits"][:2], atol=1e-5)
    cut = ask(server, "/v1/score", model="ranker", text_1=QUERY, text_2=DOCUMENTS[-1], truncate_prompt_tokens=20)
    assert cut["data"][0]["score"] == pytest.approx(own["ranker"]["cut"], abs=1e-5)
    assert cut["usage"]["prompt_tokens"] == 20
    alone = ask(server, "/v1/classify", model="ranker", input=DOCUMENTS)
    assert np.allclose([entry["probs"] for entry in alone["data"]], own["ranker"]["alone"], atol=1e-5)


def test_a_cross_encoder_ranks(server: ConchProcess, own: dict[str, Any]) -> None:
    expected = own["ranker"]["scores"]
    with httpx.Client(timeout=60) as transport:
        ranker = cohere.ClientV2(api_key="none", base_url=f"http://{server.http}", httpx_client=transport)
        results = ranker.rerank(model="ranker", query=QUERY, documents=DOCUMENTS).results
    assert [result.index for result in results] == np.argsort(expected)[::-1].tolist()
    assert np.allclose([result.relevance_score for result in results], sorted(expected)[::-1], atol=1e-5)
    # Documents are cut, queries are not.
    body = {"model": "ranker", "query": QUERY, "documents": [DOCUMENTS[-1], "paris " * 2 * CONTEXT, "berlin"]}
    answer = httpx.post(f"http://{server.http}/rerank", json={**body, "max_tokens_per_doc": 5}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-conch-degraded"] == "prompt_truncated"
    assert answer.json()["usage"]["prompt_tokens"] == 3 * (6 + 3) + 5 + 5 + 1
    refusal = ask(server, "/rerank", 400, **{**body, "query": "paris " * CONTEXT})
    assert "leaves no room for a document" in str(refusal)


def test_a_classifier_names_its_labels(server: ConchProcess, own: dict[str, Any]) -> None:
    expected = np.array(own["moods"]["probabilities"])
    answer = ask(server, "/classify", model="moods", input=DOCUMENTS)
    assert np.allclose([entry["probs"] for entry in answer["data"]], expected, atol=1e-5)
    assert [entry["label"] for entry in answer["data"]] == [LABELS[place] for place in expected.argmax(axis=1)]
    raw = ask(server, "/pooling", model="moods", input=DOCUMENTS, use_activation=False)
    assert np.allclose([entry["data"] for entry in raw["data"]], own["moods"]["logits"], atol=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/embeddings", {"model": "ranker", "input": "paris"}, "/v1/rerank, /v1/score and /v1/classify serve it"),
        ("/v1/score", {"model": "moods", "text_1": "a", "text_2": "b"}, "/v1/classify and /pooling serve it"),
        ("/v1/classify", {"model": "encoder", "input": "paris"}, "makes vectors"),
        ("/pooling", {"model": "encoder", "input": "paris", "task": "token_embed"}, "vectors of tokens"),
    ],
)
def test_what_a_model_cannot_do_is_refused(server: ConchProcess, path: str, body: Any, expected: str) -> None:
    assert expected in str(ask(server, path, 400, **body))


def test_a_task_that_vllm_does_not_serve_fails_at_the_load(server: ConchProcess) -> None:
    with (
        closing(triton.InferenceServerClient(server.http, network_timeout=_LOAD_TIMEOUT_S)) as control,
        pytest.raises(triton.InferenceServerException, match=r"vLLM makes 'score' of this model, not 'embed'"),
    ):
        control.load_model("mistaken")
