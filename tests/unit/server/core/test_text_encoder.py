"""Texts as tensors: truncation, lengths, groups, and rows of answers."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.base.errors import BackendError, ConchError, InvalidRequest
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.server.core.text_encoder import (
    BUCKETS,
    Encoded,
    Text,
    TextEncoder,
    Truncation,
    activated,
    open_text_encoder,
    slices,
)
from tests.support.encoders import write_tokenizer

IDS, MASK = (TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask"))
PLAIN = Truncation()
HIDDEN = TensorSpec("last_hidden_state", "FP32", (-1, 2))


def opened(folder: Path, *inputs: TensorSpec, batch: int = 4) -> TextEncoder:
    write_tokenizer(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 20}')
    encoder = open_text_encoder(ModelConfig("m", "onnxruntime", "", batch, inputs, (HIDDEN,)), folder)
    assert encoder is not None
    return encoder


def encoded(encoder: TextEncoder, texts: list[Text], truncation: Truncation = PLAIN) -> Encoded:
    """Encode texts whose first is number 10 of its call. Raises what the encoder answers."""

    async def run() -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        encoder.submit(texts, 10, truncation, answer.set_result, "text number {}".format)
        return await answer

    answer = asyncio.run(run())
    if isinstance(answer, ConchError):
        raise answer
    assert isinstance(answer, Encoded)
    return answer


def shapes(answer: Encoded) -> list[Any]:
    return [(places, tensors[0].shape) for places, tensors in answer.groups]


def test_texts_of_a_length_share_requests(tmp_path: Path) -> None:
    encoder = opened(tmp_path, IDS, MASK, batch=2)
    answer = encoded(encoder, ["a " * 9, "a", "b", "a cat", "c", "a " * 18])
    # With two special tokens each; the model takes 20 tokens.
    assert shapes(answer) == [([11, 12], (2, 4)), ([14, 13], (2, 4)), ([10], (1, 12)), ([15], (1, 20))]
    assert (answer.tokens, answer.truncated) == (11 + 3 + 3 + 4 + 3 + 20, 0)
    ids, mask = (tensor.to_numpy() for tensor in answer.groups[1][1])
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert ids[0, 3] == 0


def test_a_model_without_a_mask_sees_no_padding(tmp_path: Path) -> None:
    encoder = opened(tmp_path, IDS)
    assert shapes(encoded(encoder, ["a", "a cat", "b"])) == [([10, 12], (2, 3)), ([11], (1, 4))]


def test_a_model_of_a_fixed_length_gets_it(tmp_path: Path) -> None:
    encoder = opened(tmp_path, TensorSpec("input_ids", "INT32", (6,)), TensorSpec("attention_mask", "INT32", (6,)))
    answer = encoded(encoder, ["a", "a cat sat on a mat"], Truncation(-1))
    assert shapes(answer) == [([10, 11], (2, 6))]
    assert (answer.truncated, answer.groups[0][1][0].datatype) == (1, "INT32")


def test_truncation_keeps_what_is_asked_for(tmp_path: Path) -> None:
    encoder = opened(tmp_path, IDS, MASK)

    def ids(texts: list[Text], *truncation: Any) -> list[int]:
        (_, (tensor, mask)), *_ = encoded(encoder, texts, Truncation(*truncation)).groups
        return [int(token) for token in tensor.to_numpy()[0, : mask.to_numpy()[0].sum()]]

    full = ids(["a cat sat"])
    assert ids(["a cat sat"], 4) == [*full[:3], full[-1]]
    assert ids(["a cat sat"], 4, True) == [full[0], *full[2:]]
    assert ids([[7, 8, 9]], 2) == [7, 8]
    assert ids([[7, 8, 9]], 2, True) == [8, 9]
    pair = ids([("a", "cat sat on")], -1, False, 2)
    assert len(pair) == 1 + 2 + 3
    with pytest.raises(InvalidRequest, match="text number 11 has 32 tokens"):
        encoded(encoder, ["a", "a " * 30])
    with pytest.raises(InvalidRequest, match="text number 10 has 21 tokens"):
        encoded(encoder, [[7] * 21])
    with pytest.raises(InvalidRequest, match="token id 999999 of text number 10 is out of the vocabulary"):
        encoded(encoder, [[999999]])
    with pytest.raises(InvalidRequest, match="the query has 18 tokens, which leaves no room"):
        encoded(encoder, [("a " * 18, "b")], Truncation(-1, False, 4096))
    with pytest.raises(InvalidRequest, match="texts truncated to 2 tokens are empty"):
        encoded(encoder, ["a"], Truncation(2))


def test_endless_texts_are_not_encoded(tmp_path: Path) -> None:
    encoder = opened(tmp_path, IDS, MASK)
    for text, truncation in (("x" * 2000, PLAIN), (("x" * 2000, "y"), PLAIN), (("x" * 2000, "y"), Truncation(-1))):
        with pytest.raises(InvalidRequest, match=r"text number 10 has 2000 characters: .* so 1280 characters at most"):
            encoded(encoder, [text], truncation)
    for text in (" " * 2000, ("x", " " * 2000)):
        assert encoded(encoder, [text], Truncation(-1)).truncated == 1


def test_calls_are_encoded_in_slices() -> None:
    assert [*slices(["a"] * 3)] == [(0, 3)]
    assert [*slices(["a"] * 600)] == [(0, 256), (256, 512), (512, 600)]
    assert [*slices([("a" * 200_000, "b" * 100_000)] * 3)] == [(0, 1), (1, 2), (2, 3)]


def test_rows_are_pooled_without_the_padding(tmp_path: Path) -> None:
    encoder = opened(tmp_path, IDS, MASK)
    ((_, tensors),) = encoded(encoder, ["a", "a cat"]).groups
    request = encoder.request(tensors, 1, Timeline(), tokens=False)
    values = np.full((2, 4, 2), 9, np.float32)
    values[0, :3] = (3, 4)
    answer = InferResponse("m", 1, [Tensor.from_numpy(HIDDEN.name, values)])
    first, second = encoder.rows(request, answer, raw=False, tokens=False)
    assert np.allclose(first, (0.6, 0.8))
    assert np.allclose(second, (0.5**0.5, 0.5**0.5))
    assert np.allclose(encoder.rows(request, answer, raw=True, tokens=False)[0], (3, 4))
    assert [row.shape for row in encoder.rows(request, answer, raw=True, tokens=True)] == [(3, 2), (4, 2)]
    for wrong in (np.zeros((2, 3, 2), np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(BackendError, match="has the shape"):
            encoder.rows(
                request, InferResponse("m", 1, [Tensor.from_numpy(HIDDEN.name, wrong)]), raw=False, tokens=False
            )


def test_activations_do_not_overflow() -> None:
    logits = np.array([[-2000, 0, 2000]], np.float32)
    assert activated(logits, "sigmoid").tolist() == [[0, 0.5, 1]]
    assert activated(logits, "softmax").tolist() == [[0, 0, 1]]
    assert activated(logits, "identity") is logits


def test_lengths_hold_little_padding() -> None:
    steps = [(after - before) / before for before, after in itertools.pairwise(BUCKETS) if before >= 32]
    assert max(steps) <= 0.25
    assert [*BUCKETS] == sorted({*BUCKETS})


def test_a_damaged_tokenizer_leaves_the_tensors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert open_text_encoder(ModelConfig("m", "onnxruntime", "", 4, (IDS,), (HIDDEN,)), tmp_path) is None
    assert "model 'm' serves tensors only, no texts: " in caplog.text
