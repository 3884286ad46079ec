"""Embeddings, scores and classes as tensors."""

from typing import Any

import numpy as np
import pytest

from conch.base.errors import BackendError, ConchError, InvalidRequest, Unsupported
from conch.domain.llm.text_form import TextForm, cut
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import BYTES, Tensor, unpack_bytes

TEXT = TensorSpec("TEXT", BYTES, (1,))
VECTOR = TensorSpec("vector", "FP32", (3,))


def config(*tensors: TensorSpec, batch: int = 2, **more: Any) -> ModelConfig:
    inputs = tuple(tensor for tensor in tensors if tensor.name.isupper())
    outputs = tuple(tensor for tensor in tensors if not tensor.name.isupper())
    return ModelConfig("m", "python", "", batch, inputs, outputs, **more)


def sent(form: TextForm, inputs: Any) -> list[Any]:
    """What goes to the model: the places of the texts, and the tensor's shape."""
    requests = form.requests(inputs, 1, Timeline())
    return [(places, request.inputs[0].shape) for places, request in requests]


def answer(values: Any, *more: Tensor) -> InferResponse:
    return InferResponse("m", 1, [Tensor.from_numpy("vector", np.array(values)), *more])


@pytest.mark.parametrize(
    ("tensors", "batch", "shapes"),
    [
        ((TEXT, VECTOR), 2, [([0, 1], (2, 1)), ([2], (1, 1))]),
        ((TensorSpec("TEXT", BYTES, (-1,)), TensorSpec("v", "FP16", (-1,))), 4, [([0, 1, 2], (3, 1))]),
        ((TensorSpec("TEXT", BYTES, (-1,)), TensorSpec("v", "FP32", (-1, 3))), 0, [([0, 1, 2], (3,))]),
        ((TensorSpec("TEXT", BYTES, (-1, 1)), TensorSpec("v", "FP32", (-1, 3))), 0, [([0, 1, 2], (3, 1))]),
        ((TEXT, VECTOR), 0, [([0], (1,)), ([1], (1,)), ([2], (1,))]),
    ],
)
def test_texts_are_sent_together_as_the_model_takes_them(tensors: Any, batch: int, shapes: Any) -> None:
    assert sent(TextForm(config(*tensors, batch=batch)), ["a", "bé", "c"]) == shapes


def test_a_request_has_the_texts_and_one_output() -> None:
    others = (TensorSpec("LANGUAGE", BYTES, (1,), optional=True), TensorSpec("label", BYTES, (1,)))
    form = TextForm(config(TEXT, VECTOR, *others))
    ((_, request),) = form.requests(["a", "bé"], 7, Timeline())
    assert unpack_bytes(request.inputs[0].data) == [b"a", "bé".encode()]
    assert (request.outputs, request.version) == (("vector",), 7)


def test_token_ids_go_to_a_model_that_takes_them_in_lists_of_one_length() -> None:
    form = TextForm(config(TensorSpec("IDS", "INT64", (-1,)), VECTOR))
    assert sent(form, [[1, 2], [3], [4, 5], [6, 7]]) == [([1], (1, 1)), ([0, 2], (2, 2)), ([3], (1, 2))]
    ((_, request),) = form.requests([[1, 2], [4, 5]], 1, Timeline())
    assert request.inputs[0].to_numpy().tolist() == [[1, 2], [4, 5]]
    assert form.rows(request, answer([[1.0, 2, 3]] * 2)).tokens == 4
    with pytest.raises(Unsupported, match="takes token ids, 'input' holds text"):
        sent(form, ["a"])
    with pytest.raises(Unsupported, match="takes text, 'input' holds token ids"):
        sent(TextForm(config(TEXT, VECTOR)), [[1]])


def test_tokens_are_counted_if_the_model_reports_them() -> None:
    form = TextForm(config(TEXT, VECTOR, TensorSpec("num_input_tokens", "INT32", (1,))))
    ((_, request),) = form.requests(["a", "b"], 1, Timeline())
    assert request.outputs == ("vector", "num_input_tokens")
    counts = Tensor.from_numpy("num_input_tokens", np.array([[3], [4]], np.int32))
    vectors = form.rows(request, answer(np.eye(2, 3, dtype=np.float16), counts))
    assert (vectors.values.dtype, vectors.values.tolist(), vectors.tokens) == (np.float32, [[1, 0, 0], [0, 1, 0]], 7)


def test_an_answer_without_a_vector_for_each_text_is_the_models_fault() -> None:
    form = TextForm(config(TEXT, VECTOR))
    ((_, request),) = form.requests(["a", "b"], 1, Timeline())
    with pytest.raises(BackendError, match=r"\[3, 3\], expected 2 vectors"):
        form.rows(request, answer([[1.0, 2, 3]] * 3))
    with pytest.raises(BackendError, match="lacks the output 'vector'"):
        form.rows(request, InferResponse("m", 1, []))


@pytest.mark.parametrize(
    "unfit",
    [
        config(TEXT, VECTOR, decoupled=True),
        config(TEXT),
        config(TEXT, VECTOR, TensorSpec("second", "FP32", (3,))),
        config(TEXT, TensorSpec("OTHER", BYTES, (1,)), VECTOR),
        config(TensorSpec("TEXT", BYTES, (2,)), VECTOR),
        config(TensorSpec("IMAGE", "FP32", (1,)), VECTOR),
        config(TEXT, TensorSpec("score", "FP32", (1,))),
        config(TEXT, TensorSpec("image", "FP32", (3, 640, 640))),
        config(TensorSpec("CODE", "INT32", (1,)), VECTOR),
        config(TensorSpec("TEXT", BYTES, (-1,)), VECTOR, batch=0),
    ],
)
def test_other_models_make_no_embeddings(unfit: ModelConfig) -> None:
    with pytest.raises(Unsupported, match="`m` is not an embedding model: "):
        TextForm(unfit)


def test_vectors_are_cut_only_as_the_model_says() -> None:
    form = TextForm(config(TEXT, VECTOR, parameters={"matryoshka_dimensions": "1, 2"}))
    for dimensions in (1, 2, 3):
        form.check_dimensions(dimensions)
    (vector,) = cut([np.array([3, 4, 12], np.float32)], 2)
    assert np.allclose(vector, [0.6, 0.8])
    assert cut([np.array([3, 4, 12], np.float32)], 3)[0].tolist() == [3, 4, 12]
    assert cut([np.zeros(3, np.float32)], 2)[0].tolist() == [0, 0]
    refusals: list[ConchError] = []
    for candidate in (form, TextForm(config(TEXT, VECTOR))):
        with pytest.raises(InvalidRequest) as raised:
            candidate.check_dimensions(4)
        refusals.append(raised.value)
    assert [str(error).partition("`m` ")[2] for error in refusals] == [
        "have 3 dimensions and may be truncated to 1, 2.",
        "have 3 dimensions and cannot be truncated.",
    ]


def test_the_task_of_a_model_is_a_parameter() -> None:
    score = TensorSpec("scores", "FP32", (1,))
    form = TextForm(config(TEXT, score, parameters={"text_task": "score"}))
    requests = form.requests(["a", "b", "c"], 1, Timeline(), pairs=["x", "y", "z"], document_tokens=5, raw=True)
    (places, request), (_, last) = requests
    assert places == [0, 1]
    assert [(tensor.name, unpack_bytes(tensor.data)) for tensor in request.inputs] == [
        ("TEXT", [b"a", b"b"]),
        ("text_pair", [b"x", b"y"]),
    ]
    assert unpack_bytes(last.inputs[1].data) == [b"z"]
    assert request.parameters == {"use_activation": False, "document_tokens": 5}
    labelled = config(TEXT, VECTOR, parameters={"text_task": "classify", "labels": '["a", "b", "c"]'})
    assert TextForm(labelled).labels == ["a", "b", "c"]
    assert TextForm(config(TEXT, VECTOR, parameters={"text_task": "classify", "labels": "a, b"})).labels == []
    with pytest.raises(Unsupported, match=r"is not a cross-encoder: .* are not one text and one number each"):
        TextForm(config(TEXT, VECTOR, parameters={"text_task": "score"}))
    with pytest.raises(Unsupported, match="'text_task' of the model `m` is 'rank', not one of embed, score, classify"):
        TextForm(config(TEXT, VECTOR, parameters={"text_task": "rank"}))
