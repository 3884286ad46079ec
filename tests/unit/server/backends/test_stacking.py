"""Joining requests along the batch axis, and splitting outputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import BackendError
from conch.domain.request import InferRequest
from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor
from conch.server.backends.stacking import join, split


def request(*inputs: Tensor) -> InferRequest:
    return InferRequest("m", list(inputs))


def test_one_request_is_not_copied() -> None:
    data = bytearray(np.arange(6, dtype=np.int32).tobytes())
    joined = join([request(Tensor("a", "INT32", (2, 3), data))])
    data[0] = 9
    assert joined["a"].tolist() == [[9, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("datatype", "shared"), [("INT32", False), ("INT64", False), ("FP32", True), ("UINT8", True)])
def test_large_indices_cannot_change_while_they_are_used(datatype: str, shared: bool) -> None:
    data = np.zeros(2**16, np.uint8)  # as a model's process may still write to
    count = len(data) // NUMPY_DTYPES[datatype].itemsize
    array = join([request(Tensor("X", datatype, (count,), data))])["X"]
    data[:] = 1
    assert array.any() == shared


def test_requests_of_several_sizes_are_joined_in_order() -> None:
    parts = [np.full((size, 2), size, np.float32) for size in (1, 3, 2)]
    joined = join([request(Tensor.from_numpy("a", part)) for part in parts])
    assert joined["a"].tolist() == np.concatenate(parts).tolist()


def test_inputs_are_found_by_name() -> None:
    a, b = Tensor.from_numpy("a", np.array([[1]])), Tensor.from_numpy("b", np.array([[2]]))
    joined = join([request(a, b), request(b, a)])
    assert (joined["a"].tolist(), joined["b"].tolist()) == ([[1], [1]], [[2], [2]])


def test_bytes_are_objects() -> None:
    tensors = [Tensor.from_numpy("s", np.array(rows, object)) for rows in ([[b"a", b""]], [[b"\xff", b"b" * 9]])]
    joined = join([request(tensor) for tensor in tensors])
    assert joined["s"].tolist() == [[b"a", b""], [b"\xff", b"b" * 9]]


def test_bf16_is_its_bits() -> None:
    joined = join([request(Tensor("h", "BF16", (1, 2), b"\x01\x02\x03\x04"))] * 2)
    assert joined["h"].dtype == np.uint16
    assert joined["h"].tolist() == [[0x0201, 0x0403]] * 2


def test_a_single_request_may_have_any_rank() -> None:
    assert join([request(Tensor("x", "FP32", (), np.float32(3).tobytes()))])["x"].shape == ()


def test_outputs_are_split_without_copying() -> None:
    array = np.arange(8, dtype=np.int64).reshape(4, 2)
    parts = split("o", "INT64", array, [1, 3])
    assert [(part.name, part.shape) for part in parts] == [("o", (1, 2)), ("o", (3, 2))]
    array[3, 1] = 70
    assert parts[1].to_numpy().tolist() == [[2, 3], [4, 5], [6, 70]]


def test_an_output_without_batch_axis_is_whole() -> None:
    (part,) = split("o", "FP32", np.zeros((5, 2), np.float32), None)
    assert part.shape == (5, 2)


@pytest.mark.parametrize("sizes", [[1], [3], [1, 2]])
@pytest.mark.parametrize("shape", [(), (2,), (4, 3)])
def test_a_first_dimension_that_is_not_the_batch(shape: tuple[int, ...], sizes: list[int]) -> None:
    said = rf"output 'o' has shape {list(shape)} for a batch of {sum(sizes)}: ".replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(BackendError, match=said):
        split("o", "FP32", np.zeros(shape, np.float32), sizes)


@given(
    datatype=st.sampled_from(sorted(NUMPY_DTYPES)),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_splitting_undoes_joining(datatype: str, sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    tensors = []
    for size in sizes:
        raw = random.integers(0, 2, (size, 3)) if datatype == "BOOL" else random.integers(0, 100, (size, 3))
        values = raw.astype("S3").astype(object) if datatype == BYTES else raw.astype(NUMPY_DTYPES[datatype])
        tensors.append(Tensor.from_numpy("t", values, datatype))
    parts = split("t", datatype, join([request(tensor) for tensor in tensors])["t"], sizes)
    assert [(part.shape, bytes(part.data)) for part in parts] == [
        (tensor.shape, bytes(tensor.data)) for tensor in tensors
    ]
