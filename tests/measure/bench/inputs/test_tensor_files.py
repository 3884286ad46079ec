"""perf_analyzer's `--input-data`: the forms that Triton documents."""

import json
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferRequest
from conch.domain.tensor import NUMPY_DTYPES, unpack_bytes
from conch.measure.bench.generator import Answer
from conch.measure.bench.input_settings import Amount, InputError, InputSettings
from conch.measure.bench.targets.target import TensorMetadata
from tests.measure.bench.inputs.making import decoded, fixed, model, script, target

MATRIX = model(TensorMetadata("A", "INT32", (2, 2)), outputs=[TensorMetadata("SUM", "INT32", (2, 2))])
TEXT = model(TensorMetadata("TEXT", "BYTES", (-1, 1)), batch=4)
OPEN = model(TensorMetadata("A", "INT32", (-1, -1)))


def written(folder: Path, document: Any) -> str:
    file = folder / "input.json"
    file.write_text(json.dumps(document))
    return str(file)


def rows(folder: Path, of: Any, document: Any, **more: Any) -> list[InferRequest]:
    settings = InputSettings(input_data=written(folder, document), **more)
    return [decoded(request) for request in fixed(target(of), settings)]


def numbers(request: InferRequest) -> Any:
    tensor = request.inputs[0]
    return np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype]).reshape(tensor.shape).tolist()


def test_flat_lists_are_sent_in_turn(tmp_path: Path) -> None:
    requests = rows(tmp_path, MATRIX, {"data": [{"A": [1, 2, 3, 4]}, {"A": [[5, 6], [7, 8]]}]})
    assert [numbers(request) for request in requests] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_content_with_shape_and_base64(tmp_path: Path) -> None:
    raw = b64encode(struct.pack("<6i", *range(6))).decode()
    document = {
        "data": [
            {"A": {"content": [1, 2, 3], "shape": [3, 1]}},
            {"A": {"content": {"b64": raw}, "shape": [2, 3]}},
            {"A": {"content": [1, 2, 3, 4, 5, 6]}},
        ]
    }
    requests = rows(tmp_path, OPEN, document, shapes={"A": (3, 2)})
    assert [request.inputs[0].shape for request in requests] == [(3, 1), (2, 3), (3, 2)]
    assert numbers(requests[1]) == [[0, 1, 2], [3, 4, 5]]


def test_base64_beside_the_name(tmp_path: Path) -> None:
    raw = b64encode(struct.pack("<4i", 9, 8, 7, 6)).decode()
    assert numbers(rows(tmp_path, MATRIX, {"data": [{"A": {"b64": raw}}]})[0]) == [[9, 8], [7, 6]]


def test_rows_fill_a_batch_in_turn(tmp_path: Path) -> None:
    requests = rows(tmp_path, TEXT, {"data": [{"TEXT": [word]} for word in ("a", "b", "c")]}, batch_size=2)
    assert [request.inputs[0].shape for request in requests] == [(2, 1)] * 3
    assert [unpack_bytes(request.inputs[0].data) for request in requests] == [[b"a", b"b"], [b"b", b"c"], [b"c", b"a"]]


def test_base64_texts_have_their_lengths(tmp_path: Path) -> None:
    raw = b64encode(struct.pack("<I", 3) + b"abc").decode()
    (request,) = rows(tmp_path, TEXT, {"data": [{"TEXT": {"b64": raw}}]})
    assert unpack_bytes(request.inputs[0].data) == [b"abc"]


def test_validation_data_is_compared(tmp_path: Path) -> None:
    document = {"data": [{"A": [1, 2, 3, 4]}], "validation_data": [{"SUM": [2, 4, 6, 8]}]}
    (request,) = fixed(target(MATRIX), InputSettings(input_data=written(tmp_path, document)))
    assert request.expected is not None
    output = {"name": "SUM", "datatype": "INT32", "shape": [2, 2]}
    good = json.dumps({"id": "7", "outputs": [{**output, "data": [2, 4, 6, 8]}]}).encode()
    bad = json.dumps({"outputs": [{**output, "data": [2, 4, 6, 9]}]}).encode()
    assert request.expected.difference(Answer(200, good)) == ""
    assert request.expected.difference(Answer(200, bad)) == "output 'SUM' element 3 is 9, expected 8"


def test_streams_become_sequences(tmp_path: Path) -> None:
    streams = [[{"TEXT": [str(number)]} for number in range(length)] for length in (4, 3, 2)]
    settings = InputSettings(input_data=written(tmp_path, {"data": streams}))
    made = target(TEXT)
    for session, length in enumerate((4, 3, 2)):
        requests = [decoded(request) for request in script(made, settings, session)]
        assert [unpack_bytes(request.inputs[0].data)[0] for request in requests] == [b"%d" % at for at in range(length)]
        assert len({request.correlation_id for request in requests}) == 1
        assert [bool(request.flags & SEQUENCE_START) for request in requests] == [True] + [False] * (length - 1)
        assert [bool(request.flags & SEQUENCE_END) for request in requests] == [False] * (length - 1) + [True]


def test_a_sequence_length_loops_over_the_stream(tmp_path: Path) -> None:
    path = written(tmp_path, {"data": [[{"TEXT": ["1"]}, {"TEXT": ["2"]}]]})
    requests = script(target(TEXT), InputSettings(input_data=path, sequence_length=Amount(5)))
    assert [unpack_bytes(decoded(request).inputs[0].data)[0] for request in requests] == [b"1", b"2", b"1", b"2", b"1"]


def test_a_folder_has_a_file_for_each_tensor(tmp_path: Path) -> None:
    (tmp_path / "A").write_bytes(struct.pack("<4i", 1, 2, 3, 4))
    (tmp_path / "SUM").write_bytes(struct.pack("<4i", 2, 4, 6, 8))
    (request,) = fixed(target(MATRIX), InputSettings(input_data=str(tmp_path)))
    assert numbers(decoded(request)) == [[1, 2], [3, 4]]
    assert request.expected is not None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"rows": []}, 'expected an object with a list "data"'),
        ({"data": [{}]}, "entry 0 lacks the input 'A'"),
        ({"data": [{"A": [1, 2, 3, 4], "B": [1]}]}, "the model has no 'B'; it has A"),
        ({"data": [{"A": [1, 2]}]}, r"'A' has 2 elements; its shape \[2, 2\] needs 4"),
        ({"data": [{"A": [1, 2, 3, "x"]}]}, "'A': .*"),
        ({"data": [{"A": {"b64": "AAAA"}}]}, r"'A' has 3 bytes; INT32\[2, 2\] needs 16"),
        ({"data": [{"A": {"b64": "*"}}]}, '"b64" is not valid base64'),
        ({"data": [[{"A": [1, 2, 3, 4]}], []]}, "a stream has no entries"),
    ],
)
def test_errors_name_the_entry(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows(tmp_path, MATRIX, document)


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match=r"x\.json is not valid JSON"):
        fixed(target(MATRIX), InputSettings(input_data=str(tmp_path / "x.json")))
    with pytest.raises(InputError, match="there is no such file or folder; or use random or zero"):
        fixed(target(MATRIX), InputSettings(input_data=str(tmp_path / "y.json")))


def test_a_recording_is_replayed_with_its_batches(tmp_path: Path) -> None:
    def tensor(number: int, data: str, shape: str) -> dict[str, Any]:
        described = {"name": "TEXT", "data": data, "shape": shape, "dtype": "BYTES"}
        return {"id": number, "activity": "TENSOR_QUEUE_INPUT", "tensor": described}

    trace = [
        {"id": 1, "model_name": "m", "model_version": 1},
        tensor(1, '"one","two"', "2,1"),
        {"id": 2, "model_name": "other", "model_version": 1},
        tensor(2, '"no"', "1,1"),
        {"id": 3, "model_name": "m", "model_version": 1},
        tensor(3, '"a "quoted" text"', "1,1"),
    ]
    requests = rows(tmp_path, TEXT, trace)
    assert [unpack_bytes(request.inputs[0].data) for request in requests] == [[b"one", b"two"], [b'a "quoted" text']]
    with pytest.raises(InputError, match="the trace has no tensors; record with the trace level TENSORS"):
        rows(tmp_path, TEXT, [{"id": 1, "model_name": "m"}])
