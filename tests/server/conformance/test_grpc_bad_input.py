"""What a mistaken request gets over gRPC: Triton's status and words, and never anything of another request."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.server_process import ConchProcess

INVALID = grpc.StatusCode.INVALID_ARGUMENT
FOUR = np.array([1, 2, 3, 4], np.int32).tobytes()


@pytest.fixture
def stub(conch: ConchProcess) -> Iterator[Any]:
    with grpc.insecure_channel(conch.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name: str, *shape: int, datatype: str = "INT32") -> Any:
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)


def right() -> Any:
    return service_pb2.ModelInferRequest(
        model_name="addsub",
        inputs=[tensor("INPUT0", 1, 4), tensor("INPUT1", 1, 4)],
        raw_input_contents=[FOUR, FOUR],
    )


def refused(stub: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, timeout=60)
    answer = stub.ModelInfer(right(), timeout=60)
    assert np.frombuffer(answer.raw_output_contents[0], np.int32).tolist() == [2, 4, 6, 8]
    return caught.value.code(), caught.value.details()


def with_parameter(**values: Any) -> Any:
    request = right()
    for name, (field, value) in values.items():
        setattr(request.parameters[name], field, value)
    return request


def mistakes() -> Iterator[Any]:
    """Each: id, how the right request is spoiled, code, words."""

    def spoil(id: str, change: Any, words: str, code: grpc.StatusCode = INVALID) -> Any:
        request = right()
        change(request)
        return pytest.param(request, code, words, id=id)

    not_found = grpc.StatusCode.NOT_FOUND
    yield spoil("model", lambda r: setattr(r, "model_name", "nope"), "unknown model: 'nope' is not found", not_found)
    yield spoil("version", lambda r: setattr(r, "model_version", "9"), "version 9 is not found", not_found)
    yield spoil("version word", lambda r: setattr(r, "model_version", "abc"), "version")
    yield spoil("nothing ready", lambda r: setattr(r, "model_name", "broken"), "no available versions", not_found)
    yield spoil("no data", lambda r: r.raw_input_contents.pop(), "unable to find data for input tensor 'INPUT1'")
    yield spoil("short data", lambda r: r.raw_input_contents.__setitem__(0, FOUR[:12]), "Expected 16, got 12")
    yield spoil("datatype", lambda r: setattr(r.inputs[0], "datatype", "FP32"), "expects 'INT32'")
    yield spoil("no datatype", lambda r: setattr(r.inputs[0], "datatype", "int"), "invalid datatype")
    yield spoil("input", lambda r: setattr(r.inputs[0], "name", "ZZZ"), "unexpected inference input 'ZZZ'")
    yield spoil("twice", lambda r: setattr(r.inputs[1], "name", "INPUT0"), "input 'INPUT0' already exists")
    yield spoil("rank", lambda r: r.inputs[0].shape.pop(), "")
    yield spoil("batch", lambda r: r.inputs[0].shape.__setitem__(0, 2), "batch size does not match")
    yield spoil("negative", lambda r: r.inputs[0].shape.__setitem__(1, -4), "")
    yield spoil("output", lambda r: r.outputs.add(name="NOPE"), "unexpected inference output 'NOPE'")
    yield pytest.param(with_parameter(triton_x=("int64_param", 1)), INVALID, "reserved", id="reserved")
    yield pytest.param(with_parameter(priority=("string_param", "x")), INVALID, "'priority' parameter", id="priority")
    yield pytest.param(
        with_parameter(sequence_start=("int64_param", 1)), INVALID, "'sequence_start' parameter", id="sequence"
    )


@pytest.mark.parametrize(("request_message", "code", "words"), list(mistakes()))
def test_a_mistake(stub: Any, request_message: Any, code: grpc.StatusCode, words: str) -> None:
    got, text = refused(stub, request_message)
    assert (got, words in text) == (code, True), text


def test_typed_and_raw_contents_do_not_mix(stub: Any) -> None:
    request = right()
    request.inputs[0].contents.int_contents.extend([1, 2, 3, 4])
    code, text = refused(stub, request)
    assert code is INVALID
    assert "contents field must not be specified when using raw_input_contents" in text


def test_contents_of_another_type(stub: Any) -> None:
    request = right()
    del request.raw_input_contents[:]
    for tensor in request.inputs:
        tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    code, text = refused(stub, request)
    assert code is INVALID
    assert "unexpected explicit tensor data for input tensor 'INPUT0'" in text


def test_classification_of_bytes(stub: Any) -> None:
    request = service_pb2.ModelInferRequest(
        model_name="identity_bytes",
        inputs=[tensor("INPUT0", 1, datatype="BYTES")],
        raw_input_contents=[b"\1\0\0\0x"],
    )
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 1
    code, text = refused(stub, request)
    assert code is INVALID
    assert "OUTPUT0" in text


@pytest.mark.parametrize(
    ("word", "code"),
    [("raise", grpc.StatusCode.INTERNAL), ("error", grpc.StatusCode.NOT_FOUND), ("none", grpc.StatusCode.INTERNAL)],
)
def test_a_model_that_fails(stub: Any, word: str, code: grpc.StatusCode) -> None:
    request = service_pb2.ModelInferRequest(
        model_name="faulty",
        inputs=[tensor("INPUT0", 1, datatype="BYTES")],
        raw_input_contents=[len(word).to_bytes(4, "little") + word.encode()],
    )
    assert refused(stub, request)[0] is code


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
        ("CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest()),
    ],
)
def test_shared_memory_is_refused_where_it_is_not_allowed(stub: Any, method: str, message: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(message, timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "--allow-client-shm=true" in caught.value.details()
