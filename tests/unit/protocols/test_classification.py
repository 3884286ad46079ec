import struct

import pytest

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Tensor, pack_bytes, unpack_bytes
from conch.protocols.classification import classify


def classes(datatype: str, code: str, values, shape, count: int, labels=(), batched: bool = False):
    result = classify(
        Tensor("OUT", datatype, shape, struct.pack(f"<{len(values)}{code}", *values)), count, labels, batched
    )
    assert (result.name, result.datatype) == ("OUT", "BYTES")
    return result.shape, [element.decode() for element in unpack_bytes(result.data)]


def test_the_largest_values_first_with_position_and_label():
    shape, elements = classes("FP32", "f", [0.25, 2, -1, 0.5], (4,), 3, ["a", "b", "c"])
    assert shape == (3,)
    assert elements == ["2.000000:1:b", "0.500000:3", "0.250000:0:a"]


def test_each_item_of_a_batch_by_itself():
    shape, elements = classes("INT32", "i", [1, 2, 3, 6, 5, 4], (2, 3), 2, batched=True)
    assert shape == (2, 2)
    assert elements == ["3:2", "2:1", "6:0", "5:1"]


def test_items_of_more_than_one_dimension_are_flat():
    assert classes("INT8", "b", [1, 2, 3, 4], (1, 2, 2), 1, batched=True) == ((1, 1), ["4:3"])


def test_not_more_classes_than_there_are():
    assert classes("UINT8", "B", [1, 200], (2,), 9) == ((2,), ["200:1", "1:0"])


def test_equal_values_keep_their_order():
    assert classes("INT64", "q", [5, 7, 5, 7], (4,), 4)[1] == ["7:1", "7:3", "5:0", "5:2"]


def test_extreme_integers():
    assert classes("INT8", "b", [-128, 127, 0], (3,), 3)[1] == ["127:1", "0:2", "-128:0"]
    assert classes("UINT64", "Q", [0, 2**64 - 1], (2,), 2)[1] == ["18446744073709551615:1", "0:0"]


def test_nan_is_the_smallest():
    nan = float("nan")
    assert classes("FP64", "d", [nan, 1, float("inf")], (3,), 3)[1] == ["inf:2", "1.000000:1", "nan:0"]


def test_halves_and_booleans():
    assert classes("FP16", "e", [0.5, 1.5], (2,), 1)[1] == ["1.500000:1"]
    assert classes("BOOL", "?", [False, True], (2,), 1)[1] == ["1:1"]
    bfloat16 = struct.pack("<2f", 1.0, -2.0)
    tensor = Tensor("OUT", "BF16", (2,), bfloat16[2:4] + bfloat16[6:8])
    assert unpack_bytes(classify(tensor, 2, (), False).data) == [b"1.000000:0", b"-2.000000:1"]


def test_empty_labels_are_left_out():
    assert classes("INT8", "b", [1], (1,), 1, [""])[1] == ["1:0"]


def test_an_empty_batch():
    assert classes("INT8", "b", [], (0, 3), 2, batched=True) == ((0, 2), [])


@pytest.mark.parametrize(
    ("tensor", "batched"),
    [
        (Tensor("OUT", "BYTES", (1,), pack_bytes(["x"])), False),
        (Tensor("OUT", "FP32", (2,), b"1234"), False),
        (Tensor("OUT", "FP32", (), b"1234"), True),
    ],
)
def test_outputs_without_classes(tensor, batched):
    with pytest.raises(InvalidRequest, match=r"class result not available for output .*'OUT'"):
        classify(tensor, 1, (), batched)
