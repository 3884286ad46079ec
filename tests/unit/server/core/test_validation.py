"""Validation of requests: each error of Triton that depends on the configuration."""

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.model_config import TensorSpec
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from conch.server.core.validation import RequestValidator
from tests.unit.server.core.scripted import config

ADDSUB = config(
    "addsub",
    max_batch_size=4,
    inputs=(
        TensorSpec("INPUT0", "INT32", (4,)),
        TensorSpec("INPUT1", "INT32", (4,)),
        TensorSpec("OPT", "INT32", (4,), optional=True),
    ),
    outputs=(TensorSpec("OUTPUT0", "INT32", (4,)),),
)
TEXT = config("text", inputs=(TensorSpec("IN", "BYTES", (2,)),), outputs=())


def ints(name: str, *shape: int, datatype: str = "INT32", data: bytes | None = None) -> Tensor:
    return Tensor(name, datatype, shape, np.zeros(shape, np.int32).tobytes() if data is None else data)


def refusal(*inputs: Tensor, model: object = ADDSUB, **fields: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        RequestValidator(model).check(InferRequest("addsub", list(inputs), **fields))
    return caught.value.message


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    return ints("INPUT0", *shape), ints("INPUT1", *shape)


@pytest.mark.parametrize("batch", [1, 4])
def test_valid_request_gets_its_batch_size(batch: int) -> None:
    request = InferRequest("addsub", list(pair(batch, 4)), outputs=("OUTPUT0",))
    RequestValidator(ADDSUB).check(request)
    assert request.batch_size == batch


def test_optional_input() -> None:
    RequestValidator(ADDSUB).check(InferRequest("addsub", [*pair(1, 4), ints("OPT", 1, 4)]))


def test_unknown_output() -> None:
    message = "unexpected inference output 'NOPE' for model 'addsub'; its outputs are ['OUTPUT0']"
    assert refusal(*pair(1, 4), outputs=("NOPE",)) == message


def test_no_inputs() -> None:
    assert refusal() == (
        "[request id: <id_unknown>] expected number of inputs between 2 and 3 but got 0 inputs for model 'addsub'. "
        "Got input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all required input(s)."
    )


def test_a_missing_input_and_the_request_id_are_named() -> None:
    text = refusal(ints("INPUT0", 1, 4), id="seven")
    assert text.startswith("[request id: seven] ")
    assert "Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']" in text


def test_without_optional_inputs_one_number_is_expected() -> None:
    assert "expected 1 inputs but got 0 inputs for model 'text'" in refusal(model=TEXT)


def test_unknown_input() -> None:
    text = refusal(*pair(1, 4), ints("ZZZ", 1, 4))
    inputs = "['INPUT0','INPUT1','OPT']"
    assert text == f"unexpected inference input 'ZZZ' for model 'addsub'; its inputs are {inputs}"


def test_duplicate_input() -> None:
    assert "input 'INPUT0' already exists in request" in refusal(*pair(1, 4), ints("INPUT0", 1, 4))


def test_wrong_datatype() -> None:
    text = refusal(ints("INPUT0", 1, 4, datatype="FP32"), ints("INPUT1", 1, 4))
    assert "inference input 'INPUT0' data-type is 'FP32', but model 'addsub' expects 'INT32'" in text


def test_wrong_shape() -> None:
    text = refusal(*pair(1, 3))
    assert "unexpected shape for input 'INPUT1' for model 'addsub'. Expected [-1,4], got [1,3]. NOTE: Setting" in text


def test_wrong_shape_without_batching() -> None:
    text = refusal(Tensor("IN", "BYTES", (1,), b"\0\0\0\0"), model=TEXT)
    assert text.endswith("Expected [2], got [1]. ")


def test_batch_sizes_differ() -> None:
    text = refusal(ints("INPUT0", 1, 4), ints("INPUT1", 2, 4))
    assert "input 'INPUT0' batch size does not match other inputs for 'addsub'" in text
    assert text.endswith("its shape is [1,4], the batch size of the others is 2")


def test_no_dimensions_at_all() -> None:
    text = refusal(ints("INPUT0", 1, 4), ints("INPUT1"))
    assert text.endswith("input 'INPUT1' has no shape but model requires batch dimension for 'addsub'")


def test_batch_too_large() -> None:
    assert "inference request batch-size must be <= 4 for 'addsub'" in refusal(*pair(5, 4))


def test_empty_batch() -> None:
    text = refusal(*pair(0, 4))
    assert "input byte size mismatch for input 'INPUT1' for model 'addsub'. Expected 16, got 0: its batch" in text
    text = refusal(ints("INPUT0", 1, 4), ints("INPUT1", 0, 4))
    assert "input byte size mismatch for input 'INPUT1' for model 'addsub'. Expected 16, got 0: its batch" in text


def test_missing_batch_dimension_gets_a_hint() -> None:
    text = refusal(*pair(5))
    assert "inference request batch-size must be <= 4 for 'addsub'; the shape of input 'INPUT0' is [5]" in text
    assert "expected [-1,4]. NOTE: Setting a non-zero max_batch_size" in text


def test_the_number_of_inputs_is_checked_before_their_names() -> None:
    text = refusal(ints("ZZZ", 1, 4))
    assert "expected number of inputs between 2 and 3 but got 1 inputs" in text
    assert "Got input(s) ['ZZZ'], but missing required input(s) ['INPUT0','INPUT1']" in text


def test_number_of_bytes_does_not_match_the_shape() -> None:
    text = refusal(ints("INPUT0", 1, 4, data=bytes(12)), ints("INPUT1", 1, 4))
    assert "input byte size mismatch for input 'INPUT0' for model 'addsub'. Expected 16, got 12" in text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\1\0\0\0a", "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
        (
            b"\1\0\0\0a" * 4,
            "unexpected number of string elements 3 for inference input 'IN' for model 'text', expecting 2",
        ),
        (b"\1\0\0\0a\1\0", "incomplete string length indicator for inference input 'IN' for model 'text', expecting 4"),
        (b"\1\0\0\0a\xc8\0\0\0hi", "expecting string of length 200 but only 2 bytes available"),
    ],
)
def test_malformed_bytes_elements(data: bytes, text: str) -> None:
    assert text in refusal(Tensor("IN", "BYTES", (2,), data), model=TEXT)
