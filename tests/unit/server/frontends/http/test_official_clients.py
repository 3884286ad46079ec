"""Triton's own clients are the judges of whether this is Triton's protocol."""

import asyncio

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.unit.server.frontends.http.scripted_core import model

NUMBERS = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture
def official(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


def tensor(name: str, array: np.ndarray, datatype: str, binary: bool = True) -> triton.InferInput:
    value = triton.InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array, binary_data=binary)
    return value


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_numbers(official, binary_in, binary_out, compression):
    result = official.infer(
        "identity",
        [tensor("INPUT0", NUMBERS, "FP32", binary_in)],
        outputs=[triton.InferRequestedOutput("OUTPUT0", binary_data=binary_out)],
        request_id="42",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), NUMBERS)
    assert result.get_response()["id"] == "42"


def test_all_outputs_come_as_binary_if_none_is_named(official):
    result = official.infer("identity", [tensor("INPUT0", NUMBERS, "FP32")])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), NUMBERS)
    assert result.get_output("OUTPUT0")["parameters"] == {"binary_data_size": 64}


@pytest.mark.parametrize("binary", [True, False])
def test_strings(official, binary):
    strings = np.array([["grün"]], dtype=np.object_)
    result = official.infer(
        "text",
        [tensor("INPUT0", strings, "BYTES", binary)],
        outputs=[triton.InferRequestedOutput("OUTPUT0", binary_data=binary)],
    )
    assert result.as_numpy("OUTPUT0").tolist() in ([["grün".encode()]], [["grün"]])


def test_halves(official):
    halves = np.array([[1.5, -2, 0, 65504]], dtype=np.float16)
    result = official.infer("half", [tensor("INPUT0", halves, "FP16")])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), halves)


def test_sequences_priorities_and_parameters(official, inference):
    official.infer(
        "identity",
        [tensor("INPUT0", NUMBERS, "FP32")],
        sequence_id=7,
        sequence_start=True,
        priority=3,
        timeout=500,
        parameters={"mine": "yes"},
    )
    request = inference.admitted[0].request
    assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == (7, 1, 3, 500)
    assert request.parameters == {"mine": "yes"}


def test_classification(official):
    output = triton.InferRequestedOutput("OUTPUT0", binary_data=True, class_count=2)
    result = official.infer("identity", [tensor("INPUT0", NUMBERS, "FP32")], outputs=[output])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"15.000000:15", b"14.000000:14"]]


def test_requests_in_parallel(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4) as official:
        pending = [official.async_infer("identity", [tensor("INPUT0", NUMBERS + index, "FP32")]) for index in range(32)]
        for index, request in enumerate(pending):
            np.testing.assert_array_equal(request.get_result().as_numpy("OUTPUT0"), NUMBERS + index)


def test_errors_arrive_with_status_and_text(official):
    with pytest.raises(InferenceServerException) as caught:
        official.infer("nope", [tensor("INPUT0", NUMBERS, "FP32")])
    assert caught.value.status() == "404"
    assert caught.value.message() == "Request for unknown model: 'nope' is not found"


def test_questions(official):
    assert official.is_server_live()
    assert official.is_server_ready()
    assert official.is_model_ready("identity")
    assert not official.is_model_ready("nope")
    assert official.get_server_metadata()["name"] == "triton"
    assert official.get_model_metadata("identity", "1")["inputs"][0]["shape"] == [-1, 16]
    assert official.get_model_config("identity")["max_batch_size"] == 8
    assert official.get_inference_statistics("identity")["model_stats"][0]["version"] == "1"
    assert official.get_model_repository_index()[1] == {"name": "never"}


def test_model_control(official, control):
    official.load_model("m", config='{"max_batch_size": 2}', files={"file:1/model.onnx": b"\0onnx"})
    official.unload_model("m", unload_dependents=True)
    assert control.loaded == [("m", '{"max_batch_size": 2}', {"1/model.onnx": b"\0onnx"})]
    assert control.unloaded == [("m", True)]


def test_the_asynchronous_client(server, inference):
    inference.models["wide"] = model("wide", "INT64", (-1,))
    numbers = np.arange(100_000, dtype=np.int64).reshape(1, -1)

    async def ask() -> list[np.ndarray]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as official:
            requests = [official.infer("wide", [tensor("INPUT0", numbers + index, "INT64")]) for index in range(4)]
            return [result.as_numpy("OUTPUT0") for result in await asyncio.gather(*requests)]

    for index, answer in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(answer, numbers + index)
