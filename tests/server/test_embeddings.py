"""/v1/embeddings of a real server, asked by the official client, and the same of its models by tritonclient."""

import http.client
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import openai
import pytest
import tritonclient.http as triton

from tests.server.ir_encoder import WORDS, write_encoder
from tests.support.models import tensor, write_python, write_scripted
from tests.support.server_process import ConchProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
TABLE = np.random.default_rng(1).normal(size=(len(WORDS), 8)).astype(np.float32)
# Counts the letters a, b and c; refuses what holds an x.
LETTERS = """
texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)]
if any("x" in text for text in texts):
    error = pb_utils.TritonError("no x, please", pb_utils.TritonError.INVALID_ARG)
    return pb_utils.InferenceResponse(output_tensors=[], error=error)
counts = np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32)
return pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", counts)])
"""

# Answers when there is a file of its folder's name with ".open" behind it.
GATE = """
while not os.path.exists(os.path.dirname(__file__) + ".open"):
    time.sleep(0.01)
return pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", np.ones((4, 3), np.float32))])
"""
LETTERS_TENSORS = f"input {tensor('TEXT', 'STRING', 1)} output {tensor('COUNTS', 'FP32', 3)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("embeddings")
    models = folder / "models"
    for name in ("sentences", "sentence_tokens", "sentence_encoder"):
        shutil.copytree(EXAMPLES / name, models / name)
    write_python(models, "letters", f"max_batch_size: 4 {LETTERS_TENSORS}", LETTERS)
    write_python(
        models, "scores", f"input {tensor('TEXT', 'STRING', 1)} output {tensor('SCORE', 'FP32', 1)}", "return None"
    )
    write_scripted(models, "words", {"rules": []})
    for pooling in ("mean", "last_token"):
        (models / pooling).mkdir()
        (models / pooling / "config.pbtxt").write_text('backend: "openvino_genai"')
        write_encoder(models / pooling / "1", TABLE)
        options = {"task": "embed", "pooling_type": pooling, "normalize": pooling == "mean"}
        (models / pooling / "1" / "model.json").write_text(json.dumps(options))
    with ConchProcess(models, log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as made:
        yield made


def until_counted(server: ConchProcess, start: str, least: int) -> None:
    """Return when the metric whose line begins so has come to this number, or is above."""
    deadline = time.monotonic() + 60
    while not any(int(line.split()[-1]) >= least for line in server.metrics().splitlines() if line.startswith(start)):
        assert time.monotonic() < deadline, server.metrics()
        time.sleep(0.02)


def similar(vector: list[float], other: list[float]) -> float:
    return float(np.dot(vector, other))


def test_paraphrases_are_nearer_than_other_texts(client: openai.OpenAI) -> None:
    texts = [
        "How do I copy a folder with everything in it?",
        "Recursively copy a directory tree.",
        "Return the sine of an angle.",
        "how can the server be stopped",
        "Press Ctrl-C or send SIGTERM: the server finishes the requests in flight and ends.",
    ]
    answer = client.embeddings.create(model="sentences", input=texts)
    copying, copytree, sine, stopping, signals = [entry.embedding for entry in answer.data]
    assert similar(copying, copytree) > max(similar(copying, other) for other in (sine, stopping, signals)) + 0.1
    assert similar(stopping, signals) > max(similar(stopping, other) for other in (copying, copytree, sine)) + 0.1
    assert np.allclose([np.linalg.norm(entry.embedding) for entry in answer.data], 1, atol=1e-5)
    assert answer.model == "sentences"
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3, 4]


def test_an_embedding_is_what_the_model_gives_by_the_other_protocol(
    server: ConchProcess, client: openai.OpenAI
) -> None:
    texts = ["load a model", "a text that is a good deal longer than the other one, so that it is padded"]
    # The client asks for base64 by default.
    coded = client.embeddings.create(model="sentences", input=texts)
    plain = client.embeddings.create(model="sentences", input=texts, encoding_format="float")
    given = triton.InferInput("TEXT", [2, 1], "BYTES")
    given.set_data_from_numpy(np.array(texts, object).reshape(2, 1))
    with closing(triton.InferenceServerClient(server.http)) as direct:
        result = direct.infer("sentences", [given])
    for answer in (coded, plain):
        vectors = np.array([entry.embedding for entry in answer.data], np.float32)
        assert np.array_equal(vectors, result.as_numpy("embedding"))
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == result.as_numpy("num_input_tokens").sum()


def test_token_ids_go_to_a_model_that_takes_them(server: ConchProcess, client: openai.OpenAI) -> None:
    given = triton.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([["load a model"]], object))
    with closing(triton.InferenceServerClient(server.http)) as direct:
        padded = direct.infer("sentence_tokens", [given]).as_numpy("input_ids")[0].tolist()
    tokens = [token for token in padded if token]
    (text,) = client.embeddings.create(model="sentences", input="load a model").data
    alone = client.embeddings.create(model="sentence_encoder", input=tokens)
    both = client.embeddings.create(model="sentence_encoder", input=[tokens[:1], tokens])
    assert np.allclose(alone.data[0].embedding, text.embedding, atol=1e-5)
    assert np.allclose(both.data[1].embedding, text.embedding, atol=1e-5)
    assert (alone.usage.prompt_tokens, both.usage.prompt_tokens) == (len(tokens), len(tokens) + 1)


def test_token_ids_of_a_pipeline_go_to_its_encoder(client: openai.OpenAI) -> None:
    given = client.embeddings.create(model="sentences", input=[[5, 6, 7], [8]])
    direct = client.embeddings.create(model="sentence_encoder", input=[[5, 6, 7], [8]])
    assert [entry.embedding for entry in given.data] == [entry.embedding for entry in direct.data]
    assert (given.model, given.usage.prompt_tokens) == ("sentences", 4)
    answer = client.embeddings.with_raw_response.create(
        model="sentences", input=[[5, 6, 7, 1], [8]], extra_body={"truncate_prompt_tokens": 3}
    )
    cut = answer.parse()
    assert answer.headers["X-Conch-Degraded"] == "prompt_truncated"
    assert [entry.embedding for entry in cut.data] == [entry.embedding for entry in given.data]


def test_an_engine_takes_token_ids_and_truncates(client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model="mean", input=["two threes one", "one"])
    by_ids = client.embeddings.create(model="mean", input=[[3, 4, 5, 2], [2]])
    assert np.allclose([entry.embedding for entry in by_ids.data], [entry.embedding for entry in plain.data], atol=1e-6)
    assert by_ids.usage.prompt_tokens == 5
    long = "one two three one two three"
    for extra, text in (
        ({"truncate_prompt_tokens": -1}, "one two three one two"),
        ({"truncate_prompt_tokens": 2}, "one two"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "two three"),
    ):
        answer = client.embeddings.with_raw_response.create(model="mean", input=long, extra_body=extra)
        assert answer.headers["X-Conch-Degraded"] == "prompt_truncated"
        cut = answer.parse()
        whole = client.embeddings.with_raw_response.create(model="mean", input=text, extra_body=extra)
        assert "X-Conch-Degraded" not in whole.headers
        wanted = client.embeddings.create(model="mean", input=text)
        assert np.allclose(cut.data[0].embedding, wanted.data[0].embedding, atol=1e-6), extra
    with pytest.raises(openai.BadRequestError, match="text_input: token id 9999 is out of the vocabulary"):
        client.embeddings.create(model="mean", input=[9999])
    assert client.embeddings.create(model="letters", input="a", extra_body={"truncate_prompt_tokens": -1}).data
    with pytest.raises(openai.BadRequestError, match="'truncate_prompt_tokens' is not supported"):
        client.embeddings.create(model="letters", input="a", extra_body={"truncate_prompt_tokens": 3})


def test_vectors_are_cut_where_the_model_is_made_for_it(client: openai.OpenAI) -> None:
    whole, cut = [
        client.embeddings.create(model="sentences", input="load a model", dimensions=size).data[0].embedding
        for size in (128, 32)
    ]
    assert len(whole) == 128
    assert np.allclose(cut, np.array(whole[:32]) / np.linalg.norm(whole[:32]), atol=1e-6)
    for model, size, words in (("sentences", 50, "may be truncated to 32, 64"), ("letters", 2, "cannot be truncated")):
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            client.embeddings.create(model=model, input="load a model", dimensions=size)
        assert refused.value.param == "dimensions"


def test_many_texts_are_answered_in_their_order(client: openai.OpenAI) -> None:
    texts = ["a" * (number % 7) + "b" * (number % 5) + "c" for number in range(500)]
    answer = client.embeddings.create(model="letters", input=texts)
    assert [entry.embedding for entry in answer.data] == [[n % 7, n % 5, 1] for n in range(500)]
    assert answer.usage.prompt_tokens == 0  # the model does not tell


def test_an_error_of_the_model_is_the_answer(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no x, please"):
        client.embeddings.create(model="letters", input=["a"] * 99 + ["x"] + ["a"] * 99)
    assert client.embeddings.create(model="letters", input="cab").data[0].embedding == [1, 1, 1]


def test_models_are_for_what_they_are_made_for(client: openai.OpenAI) -> None:
    listed = [model.id for model in client.models.list()]
    assert listed == ["last_token", "letters", "mean", "sentence_encoder", "sentences", "words"]
    assert client.models.retrieve("sentences").id == "sentences"
    with pytest.raises(openai.BadRequestError, match="`words` generates text and makes no embeddings"):
        client.embeddings.create(model="words", input="a")
    with pytest.raises(openai.BadRequestError, match="`scores` is not an embedding model: "):
        client.embeddings.create(model="scores", input="a")
    with pytest.raises(openai.BadRequestError, match="`letters` takes text, 'input' holds token ids"):
        client.embeddings.create(model="letters", input=[1, 2])
    with pytest.raises(openai.BadRequestError, match="does not generate text; it is served by /v1/embeddings"):
        client.chat.completions.create(model="sentences", messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.NotFoundError, match="The model `nothing` does not exist"):
        client.embeddings.create(model="nothing", input="a")


def test_what_is_not_known_is_ignored_and_named(server: ConchProcess) -> None:
    with closing(http.client.HTTPConnection(server.http)) as connection:
        body = json.dumps({"model": "letters", "input": "a", "truncate": True})
        connection.request("POST", "/v1/embeddings", body)
        answer = connection.getresponse()
        assert json.load(answer)["data"]
        assert (answer.status, answer.headers["X-Conch-Ignored"]) == (200, "truncate")
        connection.request("GET", "/v1/embeddings")
        assert connection.getresponse().status == 405


def test_the_v1_protocol_of_kserve_is_named_instead_of_the_method(server: ConchProcess) -> None:
    with closing(http.client.HTTPConnection(server.http)) as connection:
        connection.request("POST", "/v1/models/letters:predict", json.dumps({"instances": [1]}))
        answer = connection.getresponse()
        text = "the V1 protocol of /v1/models/letters:predict is not served: POST tensors to /v2/models/letters/infer"
        assert (answer.status, json.load(answer)["error"]["message"]) == (404, text)
        connection.request("POST", "/v1/models/letters", "{}")
        assert connection.getresponse().status == 405


def test_an_engine_of_openvino_makes_embeddings_of_an_ir_folder(client: openai.OpenAI) -> None:
    texts = ["one", "two threes one", "something else"]
    rows = [[2], [3, 4, 5, 2], [1, 1]]
    means = np.array([TABLE[row].mean(axis=0) for row in rows])
    answer = client.embeddings.create(model="mean", input=texts)
    vectors = np.array([entry.embedding for entry in answer.data])
    assert np.allclose(vectors, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)
    assert answer.usage.prompt_tokens == 7
    answer = client.embeddings.create(model="last_token", input=texts)
    assert np.allclose([entry.embedding for entry in answer.data], [TABLE[row[-1]] for row in rows], atol=1e-5)


def test_a_text_longer_than_the_context_is_refused_alone(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"length is 5 tokens\. However, a text has 6"):
        client.embeddings.create(model="mean", input="one two three one two three")
    assert len(client.embeddings.create(model="mean", input="one two three one two").data) == 1


def test_an_option_that_is_not_known_keeps_the_model_from_loading(tmp_path: Path) -> None:
    write_encoder(tmp_path / "models" / "wrong" / "1", TABLE)
    (tmp_path / "models" / "wrong" / "config.pbtxt").write_text('backend: "openvino_genai"')
    (tmp_path / "models" / "wrong" / "1" / "model.json").write_text('{"task": "embed", "pooling": "mean"}')
    flags = "--exit-on-error=false"
    with ConchProcess(tmp_path / "models", flags, log=tmp_path / "log", wait="live") as process:
        process.until_logged("unknown key .pooling.; known: device, ")


def test_a_disconnect_frees_the_instance_and_every_call_is_traced(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "gate", f"max_batch_size: 4 {LETTERS_TENSORS}", GATE)
    write_python(tmp_path / "models", "letters", f"max_batch_size: 4 {LETTERS_TENSORS}", LETTERS)
    trace = tmp_path / "trace.json"
    flags = (f"--trace-config=triton,file={trace}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as client:
            client.embeddings.create(model="letters", input=["a"] * 6)
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="letters", input="x")
        with closing(http.client.HTTPConnection(server.http)) as leaving:
            leaving.request("POST", "/v1/embeddings", json.dumps({"model": "gate", "input": ["a"] * 400}))
            # Of a hundred requests the model has sixteen, of which the instance holds one or two.
            until_counted(server, 'nv_inference_pending_request_count{model="gate"', 14)
        until_counted(server, 'nv_inference_request_failure{model="gate",reason="CANCELED"', 16)
        (tmp_path / "models" / "gate" / "1.open").touch()
        with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="any", max_retries=0) as client:
            client.embeddings.create(model="gate", input=["a"] * 4)
        until_counted(server, 'nv_inference_request_success{model="gate"', 1)
    calls = [entry for entry in json.loads(trace.read_text()) if "model_name" in entry]
    whole = [(entry["model_name"], entry["id"]) for entry in calls if not entry.get("parent_id")]
    assert sorted(name for name, _ in whole) == ["gate", "gate", "letters", "letters"]
    parts = [entry["model_name"] for entry in calls if entry.get("parent_id") in [number for _, number in whole]]
    assert (parts.count("letters"), parts.count("gate")) == (3, 17)
