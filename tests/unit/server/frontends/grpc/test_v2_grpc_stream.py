"""ModelStreamInfer through the official clients: ordinary and decoupled models, errors, cancellation, slow readers."""

import asyncio
from contextlib import suppress

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from conch.base.errors import BackendError, Code
from conch.domain.tensor import Tensor
from tests.unit.server.frontends.grpc.fakes import FakePending, hold

OUTPUT = Tensor("OUT", "INT32", (1,), b"\x01\0\0\0")


def request(model: str, request_id: str = "", **parameters) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[bytes(64)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    for key, value in parameters.items():
        message.parameters[key].bool_param = value
    return message


def final(answer: service_pb2.ModelStreamInferResponse) -> bool:
    return answer.infer_response.parameters["triton_final_response"].bool_param


class Stream:
    """One stream of messages over its own channel."""

    def __init__(self, channel: grpc.aio.Channel, **options) -> None:
        self.call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(**options)

    async def send(self, *messages) -> None:
        for message in messages:
            await self.call.write(message)

    async def answer(self) -> service_pb2.ModelStreamInferResponse:
        async with asyncio.timeout(60):
            return await self.call.read()

    async def rest(self) -> list[service_pb2.ModelStreamInferResponse]:
        """Say that no more requests follow; return what still comes."""
        await self.call.done_writing()
        answers = []
        while (answer := await self.answer()) is not grpc.aio.EOF:
            answers.append(answer)
        return answers

    async def failure(self) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.rest()
        return caught.value


@pytest.fixture
async def open_stream(frontend):
    channels = []

    def open_one(**options) -> Stream:
        channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}"))
        return Stream(channels[-1], **options)

    yield open_one
    for channel in channels:
        await channel.close()


# ---- what arrives


async def test_an_ordinary_model_answers_once_and_finally(open_stream):
    stream = open_stream()
    await stream.send(request("echo", "a"), request("echo", "b", triton_enable_empty_final_response=True))
    answers = await stream.rest()
    assert [answer.infer_response.id for answer in answers] == ["a", "b"]
    assert all(final(answer) for answer in answers)
    assert all(answer.infer_response.raw_output_contents == [bytes(64)] for answer in answers)


async def test_a_flag_alone_ends_a_decoupled_request_unseen(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled", "d"))
    (pending,) = await inference.wait_for(1)
    pending.send(OUTPUT)
    pending.send(OUTPUT, parameters={"progress": 0.5})
    pending.finish(None)
    answers = await stream.rest()
    assert [final(answer) for answer in answers] == [False, False]
    assert answers[1].infer_response.parameters["progress"].double_param == 0.5


async def test_a_flag_alone_is_shown_to_who_asks(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled", "d", triton_enable_empty_final_response=True))
    (pending,) = await inference.wait_for(1)
    pending.send(OUTPUT)
    pending.finish(None)
    data, end = await stream.rest()
    assert (final(data), final(end)) == (False, True)
    assert end.infer_response.id == "d"
    assert (end.infer_response.model_name, end.infer_response.model_version) == ("decoupled", "1")
    assert not end.infer_response.outputs


async def test_the_last_data_may_carry_the_flag(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled", triton_enable_empty_final_response=True))
    (pending,) = await inference.wait_for(1)
    pending.send(OUTPUT)
    pending.answer(OUTPUT)
    assert [final(answer) for answer in await stream.rest()] == [False, True]


async def test_a_decoupled_model_may_say_nothing(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled"))
    (pending,) = await inference.wait_for(1)
    pending.finish(None)
    assert await stream.rest() == []


async def test_ordinary_responses_come_in_the_order_of_their_requests(open_stream, inference):
    stream = open_stream()
    await stream.send(*(request("held", name) for name in "abc"))
    first, second, third = await inference.wait_for(3)
    third.answer(OUTPUT)
    second.answer(OUTPUT)
    first.answer(OUTPUT)
    assert [answer.infer_response.id for answer in await stream.rest()] == ["a", "b", "c"]


async def test_decoupled_responses_are_sent_as_they_come(open_stream, inference):
    stream = open_stream()
    await stream.send(request("held", "slow"), request("decoupled", "a"), request("decoupled", "b"))
    slow, first, second = await inference.wait_for(3)
    second.answer(OUTPUT)
    first.answer(OUTPUT)
    assert [(await stream.answer()).infer_response.id for _ in range(2)] == ["b", "a"]
    slow.answer(OUTPUT)
    assert [answer.infer_response.id for answer in await stream.rest()] == ["slow"]


async def test_every_response_is_answered_by_one_message(open_stream, inference):
    inference.add("talker", talk, decoupled=True)
    stream = open_stream()
    await stream.send(request("talker"))
    answers = await stream.rest()
    assert [answer.infer_response.parameters["index"].int64_param for answer in answers] == list(range(1000))


def talk(pending: FakePending) -> None:
    for index in range(1000):
        pending.send(OUTPUT, parameters={"index": index})
    pending.finish(None)


# ---- errors


async def test_a_request_that_is_wrong_leaves_the_stream_open(open_stream):
    stream = open_stream()
    await stream.send(request("nope", "1"), request("echo", "2"))
    missing_input = service_pb2.ModelInferRequest(model_name="echo", id="3")
    await stream.send(missing_input, request("echo", "4"))
    answers = await stream.rest()
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3", "4"]
    assert [bool(answer.error_message) for answer in answers] == [True, False, True, False]
    assert answers[0].error_message == "Request for unknown model: 'nope' is not found"
    assert "expected 1 inputs but got 0" in answers[2].error_message
    assert not answers[0].infer_response.parameters


async def test_an_error_of_the_model_leaves_the_stream_open(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled", "d"), request("held", "o"))
    decoupled, ordinary = await inference.wait_for(2)
    decoupled.send(OUTPUT)
    decoupled.finish(BackendError("boom"))
    ordinary.finish(BackendError("bang"))
    _, boom, bang = [await stream.answer() for _ in range(3)]
    assert (boom.error_message, boom.infer_response.id, final(boom)) == ("boom", "d", True)
    assert (bang.error_message, bang.infer_response.id, final(bang)) == ("bang", "o", True)
    await stream.send(request("echo", "after"))
    assert [answer.infer_response.id for answer in await stream.rest()] == ["after"]


async def test_with_status_errors_the_model_ends_the_call(open_stream, inference):
    stream = open_stream(metadata=(("triton_grpc_error", "true"),))
    await stream.send(request("decoupled"), request("held"))
    decoupled, held = await inference.wait_for(2)
    decoupled.send(OUTPUT)
    decoupled.finish(BackendError("custom err", Code.NOT_FOUND))
    assert (await stream.answer()).infer_response.model_name == "decoupled"
    error = await stream.failure()
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "custom err")
    assert held.cancelled.is_set()


async def test_with_status_errors_the_core_ends_the_call(open_stream):
    stream = open_stream(metadata=(("triton_grpc_error", "true"),))
    await stream.send(service_pb2.ModelInferRequest(model_name="echo"))
    assert (await stream.failure()).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_with_status_errors_a_request_for_no_model_still_leaves_the_stream_open(open_stream):
    stream = open_stream(metadata=(("triton_grpc_error", "true"),))
    await stream.send(request("nope", "1"), request("echo", "2"))
    answers = await stream.rest()
    assert [bool(answer.error_message) for answer in answers] == [True, False]


async def test_a_malformed_request_gets_an_error_message(frontend):
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        call = channel.stream_stream(path)()
        await call.write(b"\x0a\xff")
        await call.write(request("echo", "good").SerializeToString())
        await call.done_writing()
        answers = [service_pb2.ModelStreamInferResponse.FromString(await call.read()) for _ in range(2)]
    assert "failed to parse the request" in answers[0].error_message
    assert answers[1].infer_response.id == "good"


async def test_an_ordinary_model_that_says_nothing_is_an_error(open_stream, inference):
    stream = open_stream()
    await stream.send(request("held"))
    (pending,) = await inference.wait_for(1)
    pending.finish(None)
    (answer,) = await stream.rest()
    assert "without a response" in answer.error_message


async def test_classes_that_cannot_be_are_an_error_of_that_request(open_stream, inference):
    stream = open_stream()
    message = request("held", "c")
    message.outputs.add(name="TEXT").parameters["classification"].int64_param = 2
    await stream.send(message)
    (pending,) = await inference.wait_for(1)
    pending.answer(Tensor("TEXT", "BYTES", (1, 1), b"\x01\0\0\0a"))
    (answer,) = await stream.rest()
    assert "BYTES" in answer.error_message
    assert answer.infer_response.id == "c"


# ---- ends


async def test_a_half_close_lets_pending_work_finish(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled", "d"), request("held", "h"))
    await stream.call.done_writing()
    decoupled, held = await inference.wait_for(2)
    held.answer(OUTPUT)
    assert (await stream.answer()).infer_response.id == "h"
    decoupled.send(OUTPUT)
    decoupled.finish(None)
    assert [answer.infer_response.id for answer in await stream.rest()] == ["d"]
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_cancelled_stream_cancels_all_its_requests(open_stream, inference):
    stream = open_stream()
    await stream.send(request("decoupled"), request("held"), request("held"))
    pending = await inference.wait_for(3)
    stream.call.cancel()
    async with asyncio.timeout(60):
        for admitted in pending:
            await admitted.cancelled.wait()


async def test_a_deadline_cancels_all_requests(open_stream, inference):
    for timeout_s in (0.3, 3, 30):  # a busy machine may not send the request within the shorter ones
        stream = open_stream(timeout=timeout_s)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.send(request("decoupled"))
        assert (await stream.failure()).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if inference.admitted:
            break
    async with asyncio.timeout(60):
        await inference.admitted[0].cancelled.wait()


async def test_a_stopping_server_finishes_what_it_has_and_says_so(open_stream, inference, frontend):
    busy, idle = open_stream(), open_stream()
    await busy.send(request("held", "last"))
    (held,) = await inference.wait_for(1)
    await idle.send(request("echo"))
    await idle.answer()
    stopped = asyncio.create_task(frontend.stop(20))
    error = await idle.failure()
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
    held.answer(OUTPUT)
    assert (await busy.answer()).infer_response.id == "last"
    assert (await busy.failure()).code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(60):
        await stopped


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_stopping_server_lets_the_client_end_a_stream_that_it_has_answered(
    open_stream, inference, frontend, monkeypatch, answered
):
    """A proxy resets a call that the server ends first, and gRPC's client discards what it has not read then."""
    monkeypatch.setattr("conch.server.frontends.v2_grpc.infer_stream._LINGER_S", 3600.0)
    stream = open_stream()
    await stream.send(request("held", "last"))
    (held,) = await inference.wait_for(1)
    if answered == "before":
        held.answer(OUTPUT)
        await stream.answer()
    stopped = asyncio.create_task(frontend.stop(20))
    await asyncio.sleep(0.1)
    if answered == "after":
        held.answer(OUTPUT)
        assert (await stream.answer()).infer_response.id == "last"
    await asyncio.sleep(0.1)
    assert not stream.call.done()
    assert (await stream.failure()).code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(60):
        await stopped


async def test_a_client_that_has_ended_its_stream_waits_for_answers_only(open_stream, inference, frontend, monkeypatch):
    monkeypatch.setattr("conch.server.frontends.v2_grpc.infer_stream._LINGER_S", 3600.0)
    stream = open_stream()
    await stream.send(request("held", "last"))
    (held,) = await inference.wait_for(1)
    await stream.call.done_writing()
    stopped = asyncio.create_task(frontend.stop(20))
    await asyncio.sleep(0.1)
    held.answer(OUTPUT)
    async with asyncio.timeout(60):
        assert [message.infer_response.id for message in await stream.rest()] == ["last"]
        await stopped


@pytest.mark.slow
async def test_a_stopping_server_ends_an_answered_stream_that_the_client_keeps_open(open_stream, inference, frontend):
    stream = open_stream()
    await stream.send(request("held", "last"))
    (held,) = await inference.wait_for(1)
    stopped = asyncio.create_task(frontend.stop(20))
    await asyncio.sleep(0.1)
    held.answer(OUTPUT)
    assert (await stream.answer()).infer_response.id == "last"
    async with asyncio.timeout(60):
        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
        await stopped


# ---- several streams, slow readers


async def test_four_streams_at_once(open_stream, inference):
    inference.add("talker", talk, decoupled=True)

    async def ask(name: str) -> list[str]:
        stream = open_stream()
        await stream.send(*(request("talker", f"{name}{index}") for index in range(3)))
        await stream.send(*(request("echo", f"{name}e{index}") for index in range(50)))
        return [answer.infer_response.id for answer in await stream.rest()]

    async with asyncio.timeout(60):
        for name, ids in zip("abcd", await asyncio.gather(*map(ask, "abcd")), strict=True):
            assert len(ids) == 3 * 1000 + 50
            assert [i for i in ids if "e" in i] == [f"{name}e{index}" for index in range(50)]


async def test_four_streams_of_the_official_client_at_once(frontend, inference):
    inference.add("talker", talk, decoupled=True)
    array = np.zeros((1, 16), dtype=np.float32)
    tensor = triton.InferInput("INPUT0", [1, 16], "FP32").set_data_from_numpy(array)

    def ask() -> list:
        answers = []
        with triton.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
            client.start_stream(lambda result, error: answers.append(error or result))
            for _ in range(2):
                client.async_stream_infer("talker", [tensor])
                client.async_stream_infer("echo", [tensor], request_id="echo")
            client.stop_stream()
        return answers

    for answers in await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(4))):
        assert len(answers) == 2 * 1000 + 2
        echoes = [answer for answer in answers if answer.get_response().id == "echo"]
        assert all((answer.as_numpy("OUT_INPUT0") == array).all() for answer in echoes)


async def test_the_asynchronous_official_client(frontend):
    array = np.arange(16, dtype=np.float32).reshape(1, 16)
    tensor = triton.InferInput("INPUT0", [1, 16], "FP32").set_data_from_numpy(array)

    async def requests():
        for index in range(5):
            yield {"model_name": "echo", "inputs": [tensor], "request_id": str(index)}

    async with triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client:
        answers = [pair async for pair in client.stream_infer(requests())]
    assert [result.get_response().id for result, error in answers if error is None] == list("01234")


ANY_SIZE = ("grpc.max_receive_message_length", -1)
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0)]


async def test_a_client_that_does_not_read_is_asked_no_more(frontend, inference):
    """Its requests are left unread: what waits for it stays within the budget, and others are served."""
    megabyte = Tensor("OUT", "UINT8", (2**20,), bytes(2**20))
    inference.add("big", lambda pending: pending.answer(megabyte))
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}", options=SMALL_WINDOW) as channel:
        stalled = channel.stream_stream(path)()
        # Written ahead of any reading; more than fits into the transport's own buffers.
        writing = asyncio.create_task(write_all(stalled, request("big").SerializeToString(), 400))
        await inference.wait_for(60)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as other:
            brisk = Stream(other)
            await brisk.send(*(request("echo", str(index)) for index in range(200)))
            assert len(await brisk.rest()) == 200
        admitted = [pending for pending in inference.admitted if pending.request.model_name == "big"]
        assert 60 <= len(admitted) < 100
        answers = []
        while (answer := await stalled.read()) is not grpc.aio.EOF:
            answers.append(len(answer))
        await writing
    assert len(answers) == 400
    assert all(size > 2**20 for size in answers)


async def write_all(call, message: bytes, count: int) -> None:
    for _ in range(count):
        await call.write(message)
    await call.done_writing()


async def test_a_decoupled_model_cannot_flood_a_client_that_does_not_read(frontend, inference):
    piece = Tensor("OUT", "UINT8", (8 * 2**20,), bytes(8 * 2**20))
    inference.add("flood", hold, decoupled=True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}", options=[*SMALL_WINDOW, ANY_SIZE]) as channel:
        stalled = Stream(channel)
        await stalled.send(request("flood"), request("decoupled"))
        flood, other = await inference.wait_for(2)
        sent = 0
        while not flood.cancelled.is_set() and sent < 100:
            flood.send(piece)
            sent += 1
        assert sent == 1 + 32  # one is on its way
        assert other.cancelled.is_set()
        error = await stalled.failure()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "reads too slowly" in error.details()
