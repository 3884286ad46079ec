"""Generated tensors, read back by the server's own codecs."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.domain.tensor import BYTES, DATATYPES, NUMPY_DTYPES, Tensor, byte_size, unpack_bytes
from conch.domain.triton_messages import service_pb2
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.tensor_request import tensor_encoder
from conch.measure.bench.inputs.tensors import to_wire
from conch.measure.bench.targets.target import Protocol, TensorMetadata
from tests.measure.bench.inputs.making import decoded, fixed, model, target

DIMS = st.lists(st.integers(1, 4), max_size=3).map(tuple)
IN_JSON = sorted(DATATYPES - {"FP16", "BF16"})


def values(tensor: Tensor) -> np.ndarray:
    if tensor.datatype == "BF16":
        return (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])


@settings(max_examples=60)
@given(st.sampled_from(sorted(DATATYPES)), DIMS, st.integers(0, 3), st.sampled_from(["random", "zero"]))
def test_binary_tensors_fill_their_shapes(datatype: str, dims: tuple[int, ...], batch: int, kind: str) -> None:
    shape = (-1, *dims) if batch else dims
    made = target(model(TensorMetadata("IN", datatype, shape), batch=batch))
    request = fixed(made, InputSettings(input_data=kind, batch_size=batch or 1, distinct=2))[1]
    (tensor,) = decoded(request).inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", datatype, ((batch,) if batch else ()) + dims)
    if datatype == BYTES:
        lengths = {len(element) for element in unpack_bytes(tensor.data)}
        assert lengths == {128 if kind == "random" else 0}
        return
    assert len(tensor.data) == byte_size(datatype, tensor.shape)
    numbers = values(tensor).astype(np.float64)
    assert np.isfinite(numbers).all()
    assert (numbers == 0).all() if kind == "zero" else (numbers >= 0).all()


@settings(max_examples=40)
@given(st.sampled_from(IN_JSON), DIMS)
def test_json_has_the_same_values_as_binary_tensors(datatype: str, dims: tuple[int, ...]) -> None:
    made = target(model(TensorMetadata("IN", datatype, dims)))
    (binary,) = decoded(fixed(made, InputSettings(distinct=1))[0]).inputs
    (in_json,) = decoded(fixed(made, InputSettings(distinct=1, json_tensors=True))[0]).inputs
    assert bytes(binary.data) == bytes(in_json.data)


@settings(max_examples=40)
@given(st.sampled_from(sorted(DATATYPES)), DIMS)
def test_grpc_has_the_same_bytes_as_http(datatype: str, dims: tuple[int, ...]) -> None:
    form = model(TensorMetadata("IN", datatype, dims))
    (over_http,) = decoded(fixed(target(form), InputSettings(distinct=1))[0]).inputs
    request = fixed(target(form, Protocol.GRPC), InputSettings(distinct=1))[0]
    message = service_pb2.ModelInferRequest.FromString(request.body)
    assert request.head == b"/inference.GRPCInferenceService/ModelInfer"
    assert (message.inputs[0].datatype, tuple(message.inputs[0].shape)) == (datatype, dims)
    assert message.raw_input_contents[0] == bytes(over_http.data)


@pytest.mark.parametrize("protocol", [Protocol.HTTP, Protocol.GENERATE, Protocol.GRPC])
def test_a_request_can_have_an_id(protocol: Protocol) -> None:
    encoder = tensor_encoder(target(model(), protocol), InputSettings())
    _, body = encoder.encode([Tensor("IN", "FP32", (1,), bytes(4))], {"p": 1}, "some id")
    if protocol is Protocol.GRPC:
        assert service_pb2.ModelInferRequest.FromString(body).id == "some id"
    else:
        assert json.JSONDecoder().raw_decode(body.decode())[0]["id"] == "some id"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_json(datatype: str) -> None:
    with pytest.raises(InputError, match=f"input 'IN' is {datatype}, which JSON cannot have; send binary tensors"):
        fixed(target(model(TensorMetadata("IN", datatype, (1,)))), InputSettings(json_tensors=True))


def test_bf16_is_rounded_to_the_nearest() -> None:
    numbers = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.14159], np.float32)
    read = values(Tensor("x", "BF16", (5,), to_wire(numbers, "BF16")))
    assert read.tolist() == [1.0, 1.0, 1.015625, -2.5, 3.140625]  # ties to even


def test_requests_are_distinct_and_the_same_for_the_same_seed() -> None:
    made = target(model(TensorMetadata("IN", "FP32", (8,))))
    first = [request.body for request in fixed(made, InputSettings(seed=1))]
    assert len(set(first)) == 16
    assert first == [request.body for request in fixed(made, InputSettings(seed=1))]
    assert first != [request.body for request in fixed(made, InputSettings(seed=2))]


@pytest.mark.parametrize(
    ("datatype", "low", "high"), [("INT8", -3, 3), ("UINT64", 5, 9), ("FP16", -1, 1), ("FP64", 10, 20)]
)
def test_ranges_bound_the_values(datatype: str, low: float, high: float) -> None:
    made = target(model(TensorMetadata("IN", datatype, (500,))))
    (tensor,) = decoded(fixed(made, InputSettings(ranges={"IN": (low, high)}, distinct=1))[0]).inputs
    numbers = values(tensor).astype(np.float64)
    assert low <= numbers.min() < numbers.max() <= high


@pytest.mark.parametrize(
    ("form", "given_settings", "message"),
    [
        (("IN", "FP32", (-1, 3, -1)), {}, r"input 'IN' has variable dimensions \[3, -1\].*--shape IN:3,N"),
        (("IN", "FP32", (-1, 3, -1)), {"shapes": {"IN": (4, 5)}}, r"--shape IN:4,5 does not fit .*\[3, -1\]"),
        (("IN", "FP32", (-1, 3)), {"shapes": {"OUT": (3,)}}, "--shape OUT: model 'm' has IN, no input 'OUT'"),
        (("IN", "UINT8", (-1, 3)), {"ranges": {"IN": (0, 256)}}, r"not a range of UINT8 \(0 to 255\)"),
        (("IN", "FP32", (-1, 3)), {"batch_size": 5}, "the max_batch_size of model 'm' is 4"),
        (("IN", "FP32", (-1, 3)), {"prompt_tokens": 5}, "--prompt-tokens is for language models"),
    ],
)
def test_errors_name_the_input_and_the_flag(
    form: tuple[str, str, tuple[int, ...]], given_settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fixed(target(model(TensorMetadata(*form), batch=4)), InputSettings(**given_settings))  # type: ignore[arg-type]


def test_a_batch_needs_a_model_that_batches() -> None:
    with pytest.raises(InputError, match="model 'm' does not batch"):
        fixed(target(model(TensorMetadata("IN", "FP32", (3,)))), InputSettings(batch_size=2))


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_a_shape_may_have_the_batch(shape: tuple[int, ...]) -> None:
    made = target(model(TensorMetadata("IN", "FP32", (-1, 3, -1)), batch=4))
    size = 1 if len(shape) == 3 else 2
    (tensor,) = decoded(fixed(made, InputSettings(shapes={"IN": shape}, batch_size=size))[0]).inputs
    assert tensor.shape == (2, 3, 5)


def test_optional_inputs_are_left_out_unless_they_have_a_shape() -> None:
    forms = model(TensorMetadata("IN", "FP32", (3,)), TensorMetadata("MASK", "BOOL", (-1,), optional=True))
    (only,) = decoded(fixed(target(forms), InputSettings())[0]).inputs
    assert only.name == "IN"
    both = decoded(fixed(target(forms), InputSettings(shapes={"MASK": (7,)}))[0]).inputs
    assert [(tensor.name, tensor.shape) for tensor in both] == [("IN", (3,)), ("MASK", (7,))]


def test_large_requests_are_fewer() -> None:
    made = target(model(TensorMetadata("IN", "UINT8", (100 * 2**20,))))
    assert len(fixed(made, InputSettings(input_data="zero"))) == 3
