"""Ragged batches: batch inputs of a model, and outputs split along the requests."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import BackendError
from conch.domain.model_config import BatchInput, BatchInputKind, BatchOutput, ModelConfig, TensorSpec
from conch.domain.request import InferRequest
from conch.domain.tensor import BYTES, Tensor
from conch.server.backends.ragged import RaggedLayout, batch_input
from tests.unit.server.core.scripted import config


def ragged(*dims: int, max_batch_size: int = 8, datatype: str = "FP32", **fields: object) -> ModelConfig:
    """A model with a ragged input IN, a fixed one SIZE and an output OUT."""
    inputs = (TensorSpec("IN", datatype, dims, allow_ragged_batch=True), TensorSpec("SIZE", "FP32", (1,)))
    return config(max_batch_size=max_batch_size, inputs=inputs, **fields)


def asked(array: np.ndarray, *, datatype: str | None = None) -> InferRequest:
    batch_size = array.shape[0]
    size = Tensor.from_numpy("SIZE", np.full((batch_size, 1), batch_size, np.float32))
    request = InferRequest("m", [Tensor.from_numpy("IN", array, datatype), size])
    request.batch_size = batch_size
    return request


def given_input(kind: BatchInputKind, *shapes: tuple[int, ...], batches: bool = True) -> list[object]:
    return batch_input(BatchInput(kind, ("T",), "INT32", "IN"), shapes, batches=batches).tolist()


SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(st.integers(1, 3), *[st.integers(0, 4)] * rank), min_size=1, max_size=4)
)


@given(SHAPES)
def test_every_kind_says_what_its_name_says(shapes: list[tuple[int, ...]]) -> None:
    elements = [len(range(prod(shape))) for shape in shapes]
    running = [sum(elements[: end + 1]) for end in range(len(elements))]
    items = [list(shape[1:]) for shape in shapes for _ in range(shape[0])]
    assert given_input(BatchInputKind.ELEMENT_COUNT, *shapes) == elements
    assert given_input(BatchInputKind.ACCUMULATED_ELEMENT_COUNT, *shapes) == running
    assert given_input(BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, *shapes) == [0, *running]
    assert len(given_input(BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE, *shapes)) == max(elements)
    assert given_input(BatchInputKind.ITEM_SHAPE, *shapes) == items
    assert given_input(BatchInputKind.ITEM_SHAPE_FLATTEN, *shapes) == [size for item in items for size in item]


def test_item_shapes_as_in_tritons_example() -> None:
    shapes = (2, 3, 1), (1, 2, 2)
    assert given_input(BatchInputKind.ITEM_SHAPE, *shapes) == [[3, 1], [3, 1], [2, 2]]
    assert given_input(BatchInputKind.ITEM_SHAPE_FLATTEN, *shapes) == [3, 1, 3, 1, 2, 2]
    assert given_input(BatchInputKind.ITEM_SHAPE, (2, 3), batches=False) == [[2, 3]]


def test_a_batch_input_may_have_several_names_and_be_fp32() -> None:
    spec = BatchInput(BatchInputKind.ELEMENT_COUNT, ("A", "B"), "FP32", "IN")
    layout = RaggedLayout(ragged(-1, batch_inputs=(spec,)))
    joined = layout.join([asked(np.zeros((1, 3), np.float32)), asked(np.zeros((1, 5), np.float32))])
    assert joined["A"].tolist() == joined["B"].tolist() == [3, 5]
    assert joined["A"].dtype == np.float32


@given(SHAPES)
def test_elements_follow_each_other_and_scatter_back(shapes: list[tuple[int, ...]]) -> None:
    rank = len(shapes[0]) - 1
    model = ragged(
        *[-1] * rank, outputs=(TensorSpec("OUT", "FP32", (-1,) * rank),), batch_outputs=(BatchOutput(("OUT",), "IN"),)
    )
    layout = RaggedLayout(model)
    arrays = [np.arange(prod(shape), dtype=np.float32).reshape(shape) + place for place, shape in enumerate(shapes)]
    requests = [asked(array) for array in arrays]
    joined = layout.join(requests)
    assert joined["IN"].tolist() == [value for array in arrays for value in array.ravel()]
    assert joined["SIZE"].tolist() == [[shape[0]] for shape in shapes for _ in range(shape[0])]
    parts = layout.split("OUT", "FP32", joined["IN"], requests)
    for part, array in zip(parts, arrays, strict=True):
        np.testing.assert_array_equal(part.to_numpy(), array)


def test_fixed_dimensions_of_an_output_stay_and_variable_ones_are_the_inputs() -> None:
    model = ragged(-1, 3, outputs=(TensorSpec("OUT", "FP32", (-1, 2)),), batch_outputs=(BatchOutput(("OUT",), "IN"),))
    requests = [asked(np.zeros((1, length, 3), np.float32)) for length in (1, 4)]
    parts = RaggedLayout(model).split("OUT", "FP32", np.arange(10, dtype=np.float32), requests)
    assert [part.shape for part in parts] == [(1, 1, 2), (1, 4, 2)]
    assert parts[1].to_numpy().ravel().tolist() == list(range(2, 10))


def test_an_output_that_does_not_fill_the_shapes_is_the_models_fault() -> None:
    model = ragged(-1, outputs=(TensorSpec("OUT", "FP32", (-1,)),), batch_outputs=(BatchOutput(("OUT",), "IN"),))
    with pytest.raises(BackendError, match=r"output 'OUT' has 4 elements .* input 'IN' scatter 5"):
        RaggedLayout(model).split("OUT", "FP32", np.zeros(4, np.float32), [asked(np.zeros((1, 5), np.float32))])


def test_strings_can_be_ragged() -> None:
    rows = [np.array([["a", "bb"]], object), np.array([["c"]], object)]
    joined = RaggedLayout(ragged(-1, datatype=BYTES)).join([asked(row, datatype=BYTES) for row in rows])
    assert joined["IN"].tolist() == [b"a", b"bb", b"c"]


def test_without_a_batch_dimension_nothing_is_flattened() -> None:
    model = ragged(-1, -1, max_batch_size=0)
    assert RaggedLayout.of(model) is None
    assert RaggedLayout.of(ragged(-1)) is not None


def test_outputs_that_are_not_scattered_are_split_by_batch_size() -> None:
    layout = RaggedLayout(ragged(-1))
    requests = [asked(np.zeros((size, 2), np.float32)) for size in (1, 2)]
    parts = layout.split("OUT", "FP32", np.arange(6, dtype=np.float32).reshape(3, 2), requests)
    assert [part.shape for part in parts] == [(1, 2), (2, 2)]
