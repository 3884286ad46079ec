"""Every datatype there and back, alone and in a batch."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from conch.base.errors import InvalidRequest
from conch.domain.tensor import NUMPY_DTYPES, Tensor, pack_bytes
from tests.server.backends.driving import answers, complete, request, started
from tests.server.backends.onnxruntime.onnx_models import write_identity

FIXED = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}


def wire(datatype: str, seed: int) -> bytes:
    """Bytes of a [1, 3] tensor in which every bit matters."""
    if datatype == "BOOL":
        return bytes([seed % 2, 1, 0])
    dtype = NUMPY_DTYPES.get(datatype, np.dtype("<u2"))
    if dtype.kind == "f":
        return (np.arange(3) * 1.5 - seed).astype(dtype).tobytes()
    return np.array([seed, 2, np.iinfo(dtype).max - seed], dtype).tobytes()


@pytest.mark.parametrize("datatype", [*FIXED, "BF16"])
async def test_fixed_size_elements(tmp_path: Path, datatype: str) -> None:
    element = FIXED.get(datatype, TensorProto.BFLOAT16)
    instance = await started(write_identity(tmp_path / "m", element, ["n", 3]))
    assert instance.plan.source.config.inputs[0].datatype == datatype
    inputs = [Tensor("IN", datatype, (1, 3), wire(datatype, seed)) for seed in range(3)]
    alone = await answers(instance, request(inputs[0]))
    together = await answers(instance, *(request(tensor) for tensor in inputs))
    await instance.stop()
    assert alone[0].outputs[0].name == "OUT"
    for answer, tensor in zip(alone + together, inputs[:1] + inputs, strict=True):
        (output,) = answer.outputs
        assert (output.datatype, output.shape, bytes(output.data)) == (datatype, (1, 3), tensor.data)


async def test_strings(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", TensorProto.STRING, ["n", 2]))
    elements = [["", "Hündin"], ["猫\0", "x" * 300]]
    asked = [request(Tensor("IN", "BYTES", (1, 2), pack_bytes(row)), id=str(n)) for n, row in enumerate(elements)]
    got = await answers(instance, *asked)
    await instance.stop()
    for number, (answer, row) in enumerate(zip(got, elements, strict=True)):
        assert answer.id == str(number)
        assert answer.outputs[0].datatype == "BYTES"
        assert answer.outputs[0].to_numpy().tolist() == [[text.encode() for text in row]]


async def test_bytes_that_are_not_text_fail_only_their_request(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", TensorProto.STRING, ["n", 2]))
    good = request(Tensor("IN", "BYTES", (1, 2), pack_bytes([b"a", b"b"])))
    bad = request(Tensor("IN", "BYTES", (1, 2), pack_bytes([b"a", b"ab\xff"])))
    first, second, third = await answers(instance, good, bad, good)
    await instance.stop()
    assert isinstance(second, InvalidRequest)
    assert second.message == (
        "input 'IN': element 1 is not UTF-8 (invalid start byte at byte 2); string tensors of ONNX models must be UTF-8"
    )
    assert first.outputs[0].to_numpy().tolist() == third.outputs[0].to_numpy().tolist() == [[b"a", b"b"]]


async def test_empty_tensors(tmp_path: Path) -> None:
    instance = await started(write_identity(tmp_path / "m", TensorProto.FLOAT, ["n", "k"]))
    (answer,) = await answers(instance, request(Tensor("IN", "FP32", (2, 0), b""), batch_size=2))
    await instance.stop()
    assert (answer.outputs[0].shape, answer.outputs[0].nbytes) == ((2, 0), 0)


async def test_datatypes_in_the_configuration(tmp_path: Path) -> None:
    config = await complete(write_identity(tmp_path / "m", TensorProto.STRING, [2]))
    assert config.document["input"][0]["data_type"] == "TYPE_STRING"
