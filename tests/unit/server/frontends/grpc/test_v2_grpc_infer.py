"""ModelInfer through the official clients."""

import asyncio

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conch.base.errors import BackendError, Code, QueueFull
from conch.domain.request import SEQUENCE_END, SEQUENCE_START
from conch.domain.scheduling.queue import QUEUE_IS_FULL
from conch.domain.tensor import Tensor
from tests.unit.server.frontends.grpc.test_v2_grpc import refusal

ARRAYS = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([1.5, np.inf], np.float16),
    "FP32": np.array([1.5, -0.0], np.float32),
    "FP64": np.array([1e300, 5e-324], np.float64),
    "BYTES": np.array([b"", "ä\0".encode()], object),
}


def tensor(array: np.ndarray, datatype: str, name: str = "INPUT0") -> triton.InferInput:
    return triton.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


ONES = np.ones((1, 16), np.float32)


async def test_all_datatypes_come_back_as_they_went(client, blocking_client):
    inputs = [tensor(array, datatype, datatype) for datatype, array in ARRAYS.items()]
    for result in (
        await client.infer("echo", inputs, request_id="7"),
        await asyncio.to_thread(blocking_client.infer, "echo", inputs, request_id="7"),
    ):
        response = result.get_response()
        assert (response.model_name, response.model_version, response.id) == ("echo", "1", "7")
        assert [output.datatype for output in response.outputs] == list(ARRAYS)
        for datatype, array in ARRAYS.items():
            np.testing.assert_array_equal(result.as_numpy(f"OUT_{datatype}"), array)


async def test_large_and_empty_tensors(client):
    large = np.arange(1_300_000, dtype=np.float32)
    empty = np.zeros((0, 4), np.int32)
    result = await client.infer("echo", [tensor(large, "FP32", "L"), tensor(empty, "INT32", "E")])
    np.testing.assert_array_equal(result.as_numpy("OUT_L"), large)
    assert result.as_numpy("OUT_E").shape == (0, 4)


async def test_what_a_request_says_of_itself_reaches_the_core(client, inference):
    await client.infer(
        "echo",
        [tensor(ONES, "FP32")],
        model_version="1",
        outputs=[triton.InferRequestedOutput("A"), triton.InferRequestedOutput("B")],
        sequence_id=2**53 + 1,
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout=50_000,
        parameters={"text": "t", "flag": True, "number": -4, "fraction": 0.25},
    )
    request = inference.admitted[0].request
    assert (request.version, request.outputs) == (1, ("A", "B"))
    assert (request.correlation_id, request.flags) == (2**53 + 1, SEQUENCE_START | SEQUENCE_END)
    assert (request.priority, request.timeout_us) == (3, 50_000)
    assert request.parameters == {"text": "t", "flag": True, "number": -4, "fraction": 0.25}
    assert request.timeline.received > 0


async def test_parameters_of_the_response(client, inference):
    given = {"s": "x", "b": False, "i": -1, "u": 2**64 - 1, "f": 2.5}
    inference.add("talker", lambda pending: pending.answer(parameters=given))
    response = (await client.infer("talker", [tensor(ONES, "FP32")])).get_response()
    got = {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in response.parameters.items()}
    assert got == given


async def test_classification_is_text_with_labels(client, inference):
    scores = np.array([[0.1, 0.7, 0.2], [3, 2, 1]], np.float32)
    inference.add(
        "scores",
        lambda pending: pending.answer(Tensor.from_numpy("SCORES", scores)),
        labels={"SCORES": ["cat", "dog", "cow"]},
    )
    wanted = [triton.InferRequestedOutput("SCORES", class_count=2)]
    result = await client.infer("scores", [tensor(ONES, "FP32")], outputs=wanted)
    assert result.as_numpy("SCORES").tolist() == [
        [b"0.700000:1:dog", b"0.200000:2:cow"],
        [b"3.000000:0:cat", b"2.000000:1:dog"],
    ]


async def test_classification_of_text_is_refused_and_the_server_lives(client, inference):
    inference.add("text", lambda pending: pending.answer(Tensor("T", "BYTES", (1, 1), b"\x01\0\0\0a")))
    wanted = [triton.InferRequestedOutput("T", class_count=2)]
    status, text = await refusal(client.infer("text", [tensor(ONES, "FP32")], outputs=wanted))
    assert status == "INVALID_ARGUMENT"
    assert "BYTES" in text
    assert await client.is_server_live()


@pytest.mark.parametrize(
    ("model", "version", "status", "text"),
    [
        ("nope", "", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("echo", "9", "NOT_FOUND", "Request for unknown model: 'echo' version 9 is not found"),
        ("echo", "0", "NOT_FOUND", "Request for unknown model: 'echo' version 0 is not found"),
        ("echo", "abc", "INVALID_ARGUMENT", "version should be an integral value > 0"),
        ("decoupled", "", "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    ],
)
async def test_models_that_cannot_be_asked(client, model, version, status, text):
    got_status, got_text = await refusal(client.infer(model, [tensor(ONES, "FP32")], model_version=version))
    assert got_status == status
    assert text in got_text


async def test_shared_memory_is_refused_by_name(client):
    shared = triton.InferInput("INPUT0", [1, 16], "FP32")
    shared.set_shared_memory("region7", 64)
    status, text = await refusal(client.infer("echo", [shared]))
    assert status == "UNIMPLEMENTED"
    assert "'region7'" in text
    output = triton.InferRequestedOutput("OUT")
    output.set_shared_memory("region8", 64)
    status, text = await refusal(client.infer("echo", [tensor(ONES, "FP32")], outputs=[output]))
    assert status == "UNIMPLEMENTED"
    assert "'region8'" in text


@pytest.mark.parametrize("code", list(Code))
async def test_errors_of_the_model_keep_code_and_text(client, inference, code):
    inference.add("bad", lambda pending: pending.finish(BackendError("50 % of ä\nfailed", code)))
    names = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}
    expected = names.get(code.name, code.name)
    assert await refusal(client.infer("bad", [tensor(ONES, "FP32")])) == (expected, "50 % of ä\nfailed")


async def test_refusals_of_the_core(client, inference):
    def refuse(pending):
        raise QueueFull(QUEUE_IS_FULL)

    inference.add("full", refuse)
    assert await refusal(client.infer("full", [tensor(ONES, "FP32")])) == ("UNAVAILABLE", QUEUE_IS_FULL)
    assert (await refusal(client.infer("echo", [])))[0] == "INVALID_ARGUMENT"


async def test_a_text_too_long_for_a_status_is_shortened(client, inference):
    inference.add("verbose", lambda pending: pending.finish(BackendError("é\n" * 20_000)))
    status, text = await refusal(client.infer("verbose", [tensor(ONES, "FP32")]))
    assert status == "INTERNAL"
    assert text.startswith("é\né\n")
    assert text.endswith("left out]")


async def test_a_model_that_says_nothing_is_an_error(client, inference):
    inference.add("mute", lambda pending: pending.finish(None))
    status, text = await refusal(client.infer("mute", [tensor(ONES, "FP32")]))
    assert status == "INTERNAL"
    assert "without a response" in text


async def test_a_response_parameter_that_fits_no_message_is_an_error(client, inference):
    inference.add("huge", lambda pending: pending.answer(parameters={"n": 2**64}))
    status, text = await refusal(client.infer("huge", [tensor(ONES, "FP32")]))
    assert status == "INTERNAL"
    assert "'n'" in text


async def test_a_fault_in_the_core_is_an_internal_error(client, inference, caplog):
    def fault(pending):
        raise KeyError("x")

    inference.add("fault", fault)
    status, text = await refusal(client.infer("fault", [tensor(ONES, "FP32")]))
    assert status == "INTERNAL"
    assert text == "internal error"
    assert "KeyError" in caplog.text


async def test_a_client_that_goes_cancels_its_request(frontend, inference):
    message = service_pb2.ModelInferRequest(model_name="held", raw_input_contents=[b""])
    message.inputs.add(name="A", datatype="FP32", shape=[0])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer(message)
        (pending,) = await inference.wait_for(1)
        call.cancel()
        async with asyncio.timeout(60):
            await pending.cancelled.wait()


async def test_a_deadline_cancels_the_request(client, inference):
    for timeout_s in (0.2, 2, 20):  # a busy machine may not send the request within the shorter ones
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            await client.infer("held", [tensor(ONES, "FP32")], client_timeout=timeout_s)
        if inference.admitted:
            break
    async with asyncio.timeout(60):
        await inference.admitted[0].cancelled.wait()


async def test_many_at_once_get_their_own_answers(client):
    async def ask(index: int) -> bool:
        array = np.full((1, 16), index, np.float32)
        result = await client.infer("echo", [tensor(array, "FP32")], request_id=str(index))
        return result.get_response().id == str(index) and (result.as_numpy("OUT_INPUT0") == array).all()

    assert all(await asyncio.gather(*map(ask, range(200))))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_requests(client, algorithm):
    zeros = np.zeros(100_000, np.float32)
    result = await client.infer("echo", [tensor(zeros, "FP32")], compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("OUT_INPUT0"), zeros)
