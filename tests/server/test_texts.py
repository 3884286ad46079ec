"""Rerank, score, classify, pooling and embed of a real server, compared with onnxruntime and asked by Cohere's SDK."""

import base64
import concurrent.futures
import http.client
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import onnxruntime as ort
import openai
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.support.encoders import WORDS, write_encoder, write_tokenizer
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

QUERY = "what is the capital of france"
DOCUMENTS = ["a cat sat on a mat", "paris is the capital of france", "berlin", "", "germany " * 30]


# A cross-encoder in Python: what it gives shows what it was asked.
JUDGE = """
given = json.loads(request.parameters())
first = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
second = pb_utils.get_input_tensor_by_name(request, "text_pair")
lengths = np.array([[100 * len(text)] for text in first.ravel()])
if second is not None:
    lengths += np.array([[len(text)] for text in second.as_numpy().ravel()])
    lengths += 10000 * (given.get("document_tokens", 0) + given.get("truncate_prompt_tokens", 0))
if not given.get("use_activation", True):
    lengths = -lengths
return pb_utils.InferenceResponse([pb_utils.Tensor("scores", lengths.astype(np.float32))])
"""


class Peer:
    """A model that onnxruntime and its tokenizer run directly, one text at a time."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._session = ort.InferenceSession(folder / "model.onnx")

    def __call__(self, *texts: str, limit: int = 64) -> NDArray[np.float32]:
        """Return the first output for a text or a pair, whose last text is truncated."""
        self.tokenizer.enable_truncation(limit, strategy="only_second" if len(texts) > 1 else "longest_first")
        encoding = self.tokenizer.encode(*texts)
        self.tokenizer.no_truncation()
        inputs = {
            "input_ids": np.array([encoding.ids]),
            "attention_mask": np.array([encoding.attention_mask]),
            "token_type_ids": np.array([encoding.type_ids]),
        }
        (output,) = self._session.run(None, inputs)
        return np.asarray(output[0], np.float32)


def write_torch(folder: Path) -> None:
    """Write a cross-encoder of TorchScript: its logit is the share of tokens of the second text that the first has."""

    class Overlap(torch.nn.Module):
        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> torch.Tensor:
            words = (input_ids > 3) & (attention_mask == 1)
            first, second = words & (token_type_ids == 0), words & (token_type_ids == 1)
            equal = (input_ids.unsqueeze(2) == input_ids.unsqueeze(1)) & first.unsqueeze(1) & second.unsqueeze(2)
            shared = (equal.any(dim=2)).sum(dim=1, dtype=torch.float32)
            return (shared / second.sum(dim=1).clamp(min=1)).unsqueeze(1)

    version = folder / "1"
    write_tokenizer(version)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        torch.jit.save(torch.jit.script(Overlap()), version / "model.pt")
    (version / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"0": "LABEL_0"},
                "max_position_embeddings": 64,
                "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
            }
        )
    )
    inputs = " ".join(
        f"input {tensor(name, 'INT64', -1)}" for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    (folder / "config.pbtxt").write_text(
        f'backend: "pytorch" max_batch_size: 8 dynamic_batching {{ }} {inputs} output {tensor("logits__0", "FP32", 1)}'
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("texts") / "models"
    labels = {"id2label": {"0": "sad", "1": "neutral", "2": "glad"}}
    for name, number, config in (("ranker", 1, {}), ("moods", 3, labels), ("encoder", 0, {})):
        write_encoder(models / name / "1", labels=number, config=config)
        write_tokenizer(models / name / "1")
        (models / name / "config.pbtxt").write_text("max_batch_size: 8 dynamic_batching { }")
    encoder = models / "encoder" / "1"
    (encoder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query ", "document": ""}})
    )
    with (models / "encoder" / "config.pbtxt").open("a") as config_file:
        config_file.write(' parameters { key: "matryoshka_dimensions" value { string_value: "4" } }')
    ranker_ir = models / "ranker_ir" / "1"
    ranker_ir.mkdir(parents=True)
    ov.save_model(ov.convert_model(models / "ranker" / "1" / "model.onnx"), ranker_ir / "model.xml", False)
    for name in ("config.json", "tokenizer.json"):
        (ranker_ir / name).write_bytes((models / "ranker" / "1" / name).read_bytes())
    (models / "ranker_ir" / "config.pbtxt").write_text(
        'backend: "openvino" max_batch_size: 8 dynamic_batching { } '
        'parameters { key: "INFERENCE_PRECISION_HINT" value { string_value: "f32" } }'
    )
    write_torch(models / "overlap")
    write_scripted(models, "words", {"rules": []})
    write_python(
        models, "plain", f"input {tensor('TEXT', 'STRING', 1)} output {tensor('SCORE', 'FP32', 1)}", "return None"
    )
    parameters = ' parameters { key: "%s" value { string_value: "%s" } }'
    optional = f"input {tensor('text_input', 'STRING', 1)} input {tensor('text_pair', 'STRING', 1)}"
    optional = optional[: optional.rindex("}")] + "optional: true }"
    write_python(
        models,
        "judge",
        f"max_batch_size: 2 {optional} output {tensor('scores', 'FP32', 1)}"
        + parameters % ("text_task", "score")
        + parameters % ("tokenizes", "true"),
        JUDGE,
    )
    write_encoder(models / "broken" / "1", labels=1)
    return models


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ConchProcess]:
    nan = np.full((16, 16), np.nan, np.float32)
    import onnx

    write_tokenizer(models / "broken" / "1")
    (models / "broken" / "config.pbtxt").write_text("max_batch_size: 8 dynamic_batching { }")
    path = models / "broken" / "1" / "model.onnx"
    network = onnx.load(path)
    weights = next(weight for weight in network.graph.initializer if tuple(weight.dims) == (16, 16))
    weights.CopyFrom(onnx.numpy_helper.from_array(nan, weights.name))
    onnx.save(network, path)
    with ConchProcess(models, log=models.parent / "log") as process:
        yield process


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def ranker(models: Path, tokenizer: Tokenizer) -> Peer:
    return Peer(models / "ranker" / "1", tokenizer)


@pytest.fixture(scope="module")
def encoder(models: Path, tokenizer: Tokenizer) -> Peer:
    return Peer(models / "encoder" / "1", tokenizer)


@pytest.fixture(scope="module")
def first(server: ConchProcess) -> Iterator[cohere.Client]:
    with httpx.Client() as transport:
        yield cohere.Client(api_key="any", base_url=f"http://{server.http}", httpx_client=transport)


@pytest.fixture(scope="module")
def second(server: ConchProcess) -> Iterator[cohere.ClientV2]:
    with httpx.Client() as transport:
        yield cohere.ClientV2(api_key="any", base_url=f"http://{server.http}", httpx_client=transport)


@pytest.fixture(scope="module")
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as made:
        yield made


def post(server: ConchProcess, path: str, body: object) -> tuple[int, dict[str, Any], str]:
    """Return status, document and the header of degradations."""
    connection = http.client.HTTPConnection(server.http)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.getheader("X-Conch-Degraded", "")
    finally:
        connection.close()


def refused(server: ConchProcess, path: str, body: object, status: int = 400) -> str:
    """Return the message of a refusal."""
    answered, document, _ = post(server, path, body)
    assert answered == status, document
    return str(document["error"]["message"])


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def scores_of(ranker: Peer, query: str, documents: Sequence[str]) -> list[float]:
    return [sigmoid(float(ranker(query, document)[0])) for document in documents]


def vector_of(encoder: Peer, text: str) -> NDArray[np.float32]:
    vector = encoder(text).mean(axis=0)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("model", ["ranker", "ranker_ir"])
def test_rerank_gives_the_model_s_scores_in_order(second: cohere.ClientV2, ranker: Peer, model: str) -> None:
    expected = scores_of(ranker, QUERY, DOCUMENTS)
    answer = second.rerank(model=model, query=QUERY, documents=DOCUMENTS)
    scores = {result.index: result.relevance_score for result in answer.results}
    assert np.allclose([scores[index] for index in range(len(DOCUMENTS))], expected, atol=1e-5)
    order = [result.index for result in answer.results]
    assert order == sorted(order, key=lambda index: -expected[index])
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert answer.meta.billed_units.search_units == 1
    best = second.rerank(model=model, query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [result.index for result in best.results] == order[:2]


def test_rerank_takes_the_forms_of_jina_and_of_cohere_s_first_version(
    server: ConchProcess, first: cohere.Client, ranker: Peer
) -> None:
    objects = [{"text": text, "title": f"number {number}"} for number, text in enumerate(DOCUMENTS[:2])]
    body = {"model": "ranker", "query": QUERY, "documents": objects, "return_documents": True, "top_n": 100}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        status, document, _ = post(server, path, body)
        assert status == 200, document
        assert [result["document"] for result in document["results"]] == [
            objects[result["index"]] for result in document["results"]
        ]
        tokens = sum(len(ranker.tokenizer.encode(QUERY, text).ids) for text in DOCUMENTS[:2])
        assert document["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    texts = {**body, "documents": DOCUMENTS[:2], "top_n": 0}
    results = post(server, "/v1/rerank", texts)[1]["results"]
    assert sorted(result["document"]["text"] for result in results) == sorted(DOCUMENTS[:2])
    ranked = {**body, "rank_fields": ["title", "text"]}
    joined = [f"title: {entry['title']}\ntext: {entry['text']}" for entry in objects]
    results = post(server, "/v1/rerank", ranked)[1]["results"]
    scores = [next(r["relevance_score"] for r in results if r["index"] == index) for index in range(2)]
    assert np.allclose(scores, scores_of(ranker, QUERY, joined), atol=1e-5)
    answer = first.rerank(model="ranker", query=QUERY, documents=DOCUMENTS[:2], return_documents=True)
    assert {result.document.text for result in answer.results if result.document} == set(DOCUMENTS[:2])


def test_a_truncated_document_is_reported(server: ConchProcess, ranker: Peer) -> None:
    long = "germany " * 200
    body = {"model": "ranker", "query": QUERY, "documents": [long]}
    status, document, degraded = post(server, "/v1/rerank", body)
    assert (status, degraded) == (200, "prompt_truncated")
    assert document["results"][0]["relevance_score"] == pytest.approx(scores_of(ranker, QUERY, [long])[0], abs=1e-5)
    assert document["usage"]["total_tokens"] == 64
    status, document, degraded = post(server, "/v1/rerank", {**body, "max_tokens_per_doc": 3})
    assert degraded == "prompt_truncated"
    short = scores_of(ranker, QUERY, ["germany " * 3])[0]
    assert document["results"][0]["relevance_score"] == pytest.approx(short, abs=1e-5)
    assert not post(server, "/v1/rerank", {**body, "documents": ["germany"]})[2]
    # A query is never truncated.
    assert "the query has 100 tokens" in refused(server, "/rerank", {**body, "query": "paris " * 100})
    # Without truncation, too long a text is refused.
    message = refused(server, "/v1/score", {"model": "ranker", "text_1": QUERY, "text_2": ["a", long]})
    assert "context length is 64 tokens. However, number 1 of 'text_2', with its 'text_1', has" in message
    message = refused(server, "/v1/score", {"model": "encoder", "queries": QUERY, "documents": ["a", long]})
    assert "However, number 1 of 'documents' has 202 tokens." in message
    assert "However, 'input' has" in refused(server, "/v1/embeddings", {"model": "encoder", "input": long})
    cut = {"model": "ranker", "text_1": QUERY, "text_2": long, "truncate_prompt_tokens": -1}
    assert post(server, "/v1/score", cut)[::2] == (200, "prompt_truncated")
    for limit in (1, 3):
        message = refused(server, "/v1/score", {**cut, "truncate_prompt_tokens": limit})
        assert message == f"texts truncated to {limit} tokens are empty: 3 tokens are special ones"


def test_score_has_the_forms_of_vllm(server: ConchProcess, ranker: Peer) -> None:
    def scored(first: object, second: object, **more: object) -> list[float]:
        body = {"model": "ranker", "text_1": first, "text_2": second, **more}
        status, document, _ = post(server, "/score", body)
        assert status == 200, document
        assert document["object"] == "list"
        assert document["id"].startswith("score-")
        assert [(entry["index"], entry["object"]) for entry in document["data"]] == [
            (index, "score") for index in range(len(document["data"]))
        ]
        return [entry["score"] for entry in document["data"]]

    expected = scores_of(ranker, QUERY, DOCUMENTS[:3])
    assert np.allclose(scored(QUERY, DOCUMENTS[1]), expected[1:2], atol=1e-5)
    assert np.allclose(scored(QUERY, DOCUMENTS[:3]), expected, atol=1e-5)
    pairs = [("dog", "cat"), ("paris", "france")]
    scores = [scores_of(ranker, first, [second])[0] for first, second in pairs]
    assert np.allclose(scored(*[[*side] for side in zip(*pairs, strict=True)]), scores, atol=1e-5)
    (logit,) = scored("dog", "cat", use_activation=False)
    assert sigmoid(logit) == pytest.approx(scores[0], abs=1e-5)
    message = refused(server, "/v1/score", {"model": "ranker", "text_1": ["a", "b"], "text_2": ["c", "d", "e"]})
    assert message == "'text_1' must hold one text, or as many as 'text_2': got 2 and 3"


def test_classify_names_the_labels(server: ConchProcess, models: Path, tokenizer: Tokenizer) -> None:
    peer = Peer(models / "moods" / "1", tokenizer)
    texts = ["a cat sat", "dog " * 20]
    status, document, _ = post(server, "/v1/classify", {"model": "moods", "input": texts})
    assert status == 200, document
    for text, entry in zip(texts, document["data"], strict=True):
        powers = np.exp(peer(text))
        assert np.allclose(entry["probs"], powers / powers.sum(), atol=1e-5)
        assert entry["label"] == ("sad", "neutral", "glad")[int(powers.argmax())]
        assert entry["num_classes"] == 3
    status, document, _ = post(server, "/pooling", {"model": "moods", "input": texts[0], "use_activation": False})
    assert np.allclose(document["data"][0]["data"], peer(texts[0]), atol=1e-5)


def test_a_cross_encoder_in_python_is_asked_for_pairs(server: ConchProcess) -> None:
    def given(path: str, **body: object) -> list[float]:
        status, document, _ = post(server, path, {"model": "judge", **body})
        assert status == 200, document
        return [entry["score"] if "score" in entry else entry["probs"][0] for entry in document["data"]]

    assert given("/v1/score", text_1="abc", text_2=["a", "ab", "abcd"]) == [301, 302, 304]
    assert given("/v1/score", text_1=["a", "ab"], text_2=["abc", "a"], use_activation=False) == [-103, -201]
    assert given("/v1/classify", input=["abc", "a"]) == [300, 100]
    ranking = {"model": "judge", "query": "ab", "documents": ["a", "abc", "ab"], "max_tokens_per_doc": 7}
    results = post(server, "/rerank", ranking)[1]["results"]
    assert [(entry["index"], entry["relevance_score"]) for entry in results] == [(1, 60203), (2, 60202), (0, 60201)]
    message = refused(server, "/v1/embeddings", {"model": "judge", "input": "a"})
    assert "scores pairs of texts: /v1/rerank, /v1/score and /v1/classify serve it" in message


def test_embeddings_of_texts_and_token_ids(client: openai.OpenAI, encoder: Peer) -> None:
    texts = ["a cat sat on a mat", "dog", "paris is the capital of france"]
    expected = [vector_of(encoder, text) for text in texts]
    coded = client.embeddings.create(model="encoder", input=texts)
    plain = client.embeddings.create(model="encoder", input=texts, encoding_format="float")
    ids = [encoder.tokenizer.encode(text).ids for text in texts]
    by_ids = client.embeddings.create(model="encoder", input=ids)
    for answer in (coded, plain, by_ids):
        assert np.allclose([entry.embedding for entry in answer.data], expected, atol=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, ids))
    (short,) = client.embeddings.create(model="encoder", input=texts[0], dimensions=4).data
    assert np.allclose(short.embedding, expected[0][:4] / np.linalg.norm(expected[0][:4]), atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="have 16 dimensions and may be truncated to 4"):
        client.embeddings.create(model="encoder", input="a", dimensions=5)
    with pytest.raises(openai.BadRequestError, match="out of the vocabulary"):
        client.embeddings.create(model="encoder", input=[[2**30]])
    with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens"):
        client.embeddings.create(model="encoder", input="a " * 80)
    assert [model.id for model in client.models.list()] == [
        "broken", "encoder", "judge", "moods", "overlap", "ranker", "ranker_ir", "words"
    ]  # fmt: skip


def test_embed_of_cohere_in_all_types(
    server: ConchProcess, first: cohere.Client, second: cohere.ClientV2, encoder: Peer
) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    texts = ["a cat sat on a mat", "dog"]
    answer = second.embed(model="encoder", texts=texts, input_type="search_document", embedding_types=types)
    expected = np.array([vector_of(encoder, text) for text in texts])
    made = answer.embeddings
    assert np.allclose(made.float_, expected, atol=1e-5)
    int8 = np.array(made.int8)
    assert np.abs(int8).max(axis=1).tolist() == [127, 127]
    assert np.allclose(int8 / np.linalg.norm(int8, axis=1, keepdims=True), expected, atol=0.01)
    assert np.array_equal(np.array(made.uint8) - 128, int8)
    assert np.array_equal(made.ubinary, np.packbits(expected > 0, axis=1))
    assert np.array_equal(np.array(made.ubinary) - 128, made.binary)
    coded = json.loads(json.dumps(post(server, "/v2/embed", {
        "model": "encoder", "texts": texts, "input_type": "search_query", "embedding_types": ["base64"]
    })[1]))  # fmt: skip
    asked = np.frombuffer(base64.b64decode(coded["embeddings"]["base64"][1]), "<f4")
    assert np.allclose(asked, vector_of(encoder, "query dog"), atol=1e-5)
    floats = first.embed(model="encoder", texts=texts, input_type="search_document")
    assert np.allclose(np.array(floats.embeddings), expected, atol=1e-5)
    with pytest.raises(cohere.BadRequestError, match="maximum context length"):
        second.embed(
            model="encoder", texts=["a " * 99], input_type="clustering", embedding_types=["float"], truncate="NONE"
        )
    inputs = [{"content": [{"type": "text", "text": "dog"}]}]
    by_inputs = {"model": "encoder", "inputs": inputs, "input_type": "clustering", "output_dimension": 4}
    vector = post(server, "/v2/embed", by_inputs)[1]["embeddings"]["float"][0]
    assert np.allclose(vector, expected[1][:4] / np.linalg.norm(expected[1][:4]), atol=1e-5)
    long = {"model": "encoder", "texts": ["cat " * 99], "truncate": "START", "max_tokens": 10}
    assert post(server, "/v2/embed", long)[2] == "prompt_truncated"
    picture = [{"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    assert "images are not supported" in refused(server, "/v2/embed", {**by_inputs, "inputs": picture})


def test_pooling_gives_vectors_of_texts_and_of_tokens(server: ConchProcess, encoder: Peer) -> None:
    body = {"model": "encoder", "input": ["a cat", "dog"]}
    document = post(server, "/pooling", body)[1]
    assert np.allclose(document["data"][1]["data"], vector_of(encoder, "dog"), atol=1e-5)
    assert (document["object"], document["data"][1]["object"]) == ("list", "pooling")
    tokens = post(server, "/pooling", {**body, "task": "token_embed"})[1]
    assert np.allclose(tokens["data"][0]["data"], encoder("a cat"), atol=1e-5)
    coded = post(server, "/pooling", {**body, "encoding_format": "base64"})[1]
    vector = np.frombuffer(base64.b64decode(coded["data"][1]["data"]), "<f4")
    assert np.allclose(vector, vector_of(encoder, "dog"), atol=1e-5)


def test_an_encoder_ranks_by_cosines(server: ConchProcess, encoder: Peer) -> None:
    texts = DOCUMENTS[:3]
    expected = [float(vector_of(encoder, QUERY) @ vector_of(encoder, text)) for text in texts]
    results = post(server, "/v1/rerank", {"model": "encoder", "query": QUERY, "documents": texts})[1]["results"]
    assert np.allclose([r["relevance_score"] for r in results], sorted(expected, reverse=True), atol=1e-5)
    data = post(server, "/score", {"model": "encoder", "text_1": QUERY, "text_2": texts})[1]["data"]
    assert np.allclose([entry["score"] for entry in data], expected, atol=1e-5)


def test_a_cross_encoder_of_torchscript(server: ConchProcess) -> None:
    body = {"model": "overlap", "text_1": "cat mat dog", "text_2": ["cat", "cat berlin", "berlin"]}
    data = post(server, "/v1/score", body)[1]["data"]
    assert [entry["score"] for entry in data] == [1, 0.5, 0]


def test_calls_share_batches_and_keep_their_answers_apart(
    server: ConchProcess, second: cohere.ClientV2, ranker: Peer
) -> None:
    random = np.random.default_rng(7)
    calls = [[" ".join(random.choice(WORDS, size)) for size in random.integers(0, 45, 60)] for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(lambda texts: second.rerank(model="ranker", query="dog", documents=texts), calls)]
    for texts, answer in zip(calls, answers, strict=True):
        scores = {result.index: result.relevance_score for result in answer.results}
        expected = scores_of(ranker, "dog", texts)
        assert np.allclose([scores[index] for index in range(len(texts))], expected, atol=1e-5)
    counted = {}
    for line in server.metrics().splitlines():
        if line.startswith(("nv_inference_exec_count{", "nv_inference_count{")) and 'model="ranker"' in line:
            counted[line.partition("{")[0]] = int(line.split()[-1])
    assert counted["nv_inference_exec_count"] * 2 < counted["nv_inference_count"]


def test_large_bodies_are_read_and_written_by_workers(server: ConchProcess, ranker: Peer, encoder: Peer) -> None:
    padding = " " * 2000
    texts = [f"{word}{padding}" for word in WORDS]
    body = {"model": "ranker", "query": QUERY, "documents": texts, "return_documents": True, "top_n": 3}
    status, document, _ = post(server, "/v1/rerank", body)
    assert status == 200, document
    expected = scores_of(ranker, QUERY, texts)
    assert [result["index"] for result in document["results"]] == sorted(
        range(len(texts)), key=lambda index: (-expected[index], index)
    )[:3]
    assert document["results"][0]["document"]["text"] == texts[document["results"][0]["index"]]
    many = [WORDS[number % len(WORDS)] for number in range(2000)]
    for path in ("/v1/embeddings", "/pooling"):
        status, document, _ = post(server, path, {"model": "encoder", "input": many})
        assert status == 200, document
        member = "embedding" if path.endswith("s") else "data"
        assert np.allclose(document["data"][1999][member], vector_of(encoder, many[1999]), atol=1e-5)
    ignored = {"cache_salt": "salt", "wishes": 1}
    for path, fields in (
        ("/v1/rerank", {"model": "ranker", "query": QUERY, "documents": texts}),
        ("/v1/score", {"model": "ranker", "text_1": QUERY, "text_2": texts}),
        ("/pooling", {"model": "encoder", "input": texts}),
        ("/v1/embed", {"model": "encoder", "texts": texts}),
        ("/v2/embed", {"model": "encoder", "texts": texts}),
    ):
        status, document, degraded = post(server, path, {**fields, **ignored})
        assert (status, degraded) == (200, "field_ignored"), document
    huge = {"model": "ranker", "query": QUERY, "documents": ["a" * 2**20] * 17}
    assert refused(server, "/v1/rerank", huge) == "a request may hold 16777216 bytes of text at most, got 17825821"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "'query' must not be empty"),
        ("/v1/rerank", {"query": "a"}, "'documents' must be an array with at least one document"),
        ("/v1/rerank", {"query": "a", "documents": []}, "'documents' must be an array with at least one document"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "2048 documents at most, got 2049"),
        ("/v1/rerank", {"query": "a", "documents": [7]}, "document number 0 of 'documents' must be a string"),
        ("/v1/rerank", {"query": "a", "documents": ["a", {"title": "b"}]}, "number 1 of 'documents' lacks the text"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "'top_n' must be at least 1"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, "must be at least 1, got 0"),
        ("/v1/score", {"text_1": "a"}, "'text_2' must be a text or an array of texts"),
        ("/v1/classify", {"input": [""]}, "'input' must not hold an empty text"),
        ("/pooling", {"input": "a", "task": "plugin"}, "'task' must be"),
        ("/v2/embed", {"texts": ["a"] * 97}, "96 texts at most, got 97"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}, "got 'int4'"),
        ("/v2/embed", {"texts": ["a"], "input_type": "image"}, "'input_type' must be one of"),
        ("/v2/embed", {"texts": ["a"], "truncate": "MIDDLE"}, "'truncate' must be"),
    ],
)
def test_invalid_requests_are_refused_with_the_field(
    server: ConchProcess, path: str, body: dict[str, Any], message: str
) -> None:
    assert message in refused(server, path, {"model": "ranker", **body})


def test_nul_and_surrogates(server: ConchProcess, ranker: Peer) -> None:
    status, document, _ = post(
        server, "/v1/rerank", {"model": "ranker", "query": "cat\0", "documents": ["dog\0\0", "\0"]}
    )
    assert status == 200, document
    lone = rb'{"model": "ranker", "query": "a", "documents": ["\ud800"]}'
    assert "parse the JSON body" in refused(server, "/v1/rerank", lone)
    assert refused(server, "/v1/rerank", {"model": "ranker\0", "query": "a", "documents": ["b"]}, 404)


def test_what_a_model_cannot_do_is_refused_with_what_serves_it(server: ConchProcess) -> None:
    pair = {"query": "a", "documents": ["b"]}
    assert "classifies texts: /v1/classify" in refused(server, "/v1/rerank", {"model": "moods", **pair})
    assert "scores pairs of texts" in refused(server, "/v1/embeddings", {"model": "ranker", "input": "a"})
    assert "makes vectors: /v1/embeddings" in refused(server, "/v1/classify", {"model": "encoder", "input": "a"})
    assert "no output with vectors of tokens" not in refused(
        server, "/pooling", {"model": "moods", "input": "a", "task": "token_embed"}
    )
    assert "generates text" in refused(server, "/v1/rerank", {"model": "words", **pair})
    assert "not an embedding model" in refused(server, "/v1/rerank", {"model": "plain", **pair})
    missing = refused(server, "/v1/rerank", {"model": "absent", **pair}, 404)
    assert missing.startswith("The model `absent` does not exist. Served models: `broken`, `encoder`")
    chat = refused(server, "/v1/completions", {"model": "ranker", "prompt": "a"})
    assert "does not generate text" in chat


def test_scores_that_are_not_numbers_are_an_error(server: ConchProcess) -> None:
    message = refused(server, "/v1/rerank", {"model": "broken", "query": "a", "documents": ["b"]}, 500)
    assert "not finite" in message
