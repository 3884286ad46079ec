"""Responses through senders: none, one, many, from other threads, after `execute`; and senders that are lost."""

import gc
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import Code
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from tests.server.backends.python.running import Runner, running

# Sends as many responses as the input says, in the manner that the request's id names.
COUNTER = """
    import gc
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def response(number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))])

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                how = request.request_id()
                count = int(request.inputs()[0].as_numpy()[0])
                sender = request.get_response_sender()
                if how == "thread":
                    threading.Thread(target=self.count, args=(sender, count)).start()
                elif how == "with last":
                    for number in range(count - 1):
                        sender.send(response(number))
                    sender.send(response(count - 1), flags=FINAL)
                elif how == "lost":
                    for number in range(count):
                        sender.send(response(number))
                elif how == "error":
                    error = pb_utils.TritonError("enough", pb_utils.TritonError.UNAVAILABLE)
                    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                elif how == "error midway":
                    error = pb_utils.TritonError("enough", pb_utils.TritonError.UNAVAILABLE)
                    sender.send(response(0))
                    sender.send(pb_utils.InferenceResponse(error=error))
                    self.count(sender, count)
                elif how == "raise":
                    sender.send(response(0))
                    raise ValueError("halfway")
                elif how == "large":
                    for number in range(count):
                        sender.send(response(np.full(200_000, number)))
                    sender.send(flags=FINAL)
                else:
                    self.count(sender, count)

        def count(self, sender, count):
            for number in range(count):
                sender.send(response(number))
            sender.send(flags=FINAL)
"""

RETURNS_A_LIST = """
    class TritonPythonModel:
        def execute(self, requests):
            return [None for _ in requests]
"""

UNTIL_CANCELLED = """
    import threading
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def response(text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], dtype=object))])

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                sender.send(response("begun"))
                if request.request_id() == "thread":
                    threading.Thread(target=self.wait, args=(request, sender)).start()
                else:
                    self.wait(request, sender)

        def wait(self, request, sender):
            while not sender.is_cancelled():
                time.sleep(0.001)
            assert request.is_cancelled()
            error = pb_utils.TritonError("cancelled by the model", pb_utils.TritonError.CANCELLED)
            sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ASYNC = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.gate = None

        async def execute(self, requests):
            if self.gate is None:
                self.gate = asyncio.Event()
            for request in requests:
                sender = request.get_response_sender()
                if request.request_id() == "open":
                    self.gate.set()
                elif request.request_id() == "raise":
                    raise RuntimeError("in the background")
                else:
                    await self.gate.wait()
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
"""

MISUSE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def attempt(texts, call, *args, **options):
        try:
            call(*args, **options)
            texts.append("")
        except pb_utils.TritonModelException as error:
            texts.append(str(error))

    class TritonPythonModel:
        def execute(self, requests):
            texts = []
            (request,) = requests
            sender = request.get_response_sender()
            response = pb_utils.InferenceResponse([])
            attempt(texts, sender.send)
            attempt(texts, sender.send, response, flags=2)
            attempt(texts, sender.send, flags=FINAL)
            attempt(texts, request.set_release_flags, 3)
            told = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(texts, dtype=object))])
            attempt(texts, sender.send, told)
            attempt(texts, sender.send, response)
            attempt(texts, sender.send, flags=FINAL)
            attempt(texts, sender.send, flags=FINAL)
            pb_utils.Logger.log_info("|".join(texts[4:]))
            return [None]
"""

LATER = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.waiting = []

        def execute(self, requests):
            if requests[0].request_id() == "flush":
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([7]))])
                for sender in self.waiting:
                    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return [response]
            self.waiting = [request.get_response_sender() for request in requests]
            return None
"""


def count(number: int) -> Tensor:
    return Tensor.from_numpy("IN", np.array([number]))


async def numbers(runner: Runner, how: str, number: int) -> list[int]:
    """Return what came, the last response included if it had outputs."""
    caller = runner.submit(count(number), id=how)
    last = await caller.finished()
    responses = [*caller.responses, *([] if last is None else [await caller.response()])]
    await runner.released.wait()
    return [int(response.outputs[0].to_numpy().flat[0]) for response in responses]


@pytest.mark.parametrize("how", ["", "thread", "with last", "large"])
async def test_responses_come_in_order(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        for number in (1, 2, 20):
            assert await numbers(runner, how, number) == list(range(number))


async def test_no_response_at_all(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        caller = runner.submit(count(0))
        assert await caller.finished() is None
        assert caller.responses == []


async def test_many_requests_of_a_batch_interleave(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        callers = runner.batch(*(InferRequest("model", [count(30)], id="thread") for _ in range(5)))
        for caller in callers:
            assert await caller.finished() is None
            assert [int(r.outputs[0].to_numpy()[0]) for r in caller.responses] == list(range(30))


async def test_an_error_ends_the_request(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        error = await runner.error(count(1), id="error")
        assert (error.message, error.code) == ("enough", Code.UNAVAILABLE)
        assert await numbers(runner, "", 2) == [0, 1]


async def test_responses_after_an_error_are_delivered(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        caller = runner.submit(count(3), id="error midway")
        assert await caller.finished() is None
        assert [(error.message, error.code) for error in caller.errors] == [("enough", Code.UNAVAILABLE)]
        assert [int(response.outputs[0].to_numpy().flat[0]) for response in caller.responses] == [0, 0, 1, 2]


async def test_an_exception_ends_what_is_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        done, halfway, never = runner.batch(
            InferRequest("model", [count(1)], id="with last"),
            InferRequest("model", [count(1)], id="raise"),
            InferRequest("model", [count(1)]),
        )
        assert (await done.response()).outputs
        assert "ValueError: halfway" in (await halfway.error()).message
        assert len(halfway.responses) == 1
        assert "ValueError: halfway" in (await never.error()).message


async def test_a_lost_sender_ends_the_request(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER, decoupled=True) as runner:
        caller = runner.submit(count(2), id="lost")
        error = await caller.error()
        assert "dropped the response sender before sending the final flag" in error.message
        assert len(caller.responses) == 2


async def test_a_decoupled_model_must_return_none(tmp_path: Path) -> None:
    async with running(tmp_path, RETURNS_A_LIST, decoupled=True) as runner:
        error = await runner.error(count(2))
    assert "is using the decoupled mode and the execute function must return None." in error.message


async def test_none_without_a_sender_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path, RETURNS_A_LIST) as runner:
        error = await runner.error(count(2))
    assert "execute returned None for a request whose response sender the model has not taken." in error.message


@pytest.mark.parametrize("how", ["", "thread"])
async def test_cancellation_is_seen(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, UNTIL_CANCELLED, decoupled=True) as runner:
        caller = runner.submit(count(0), id=how)
        await runner.next_response(caller)
        caller.cancel()
        error = await caller.error()
        assert (error.message, error.code) == ("cancelled by the model", Code.CANCELLED)


async def test_async_batches_overlap(tmp_path: Path) -> None:
    async with running(tmp_path, ASYNC, decoupled=True) as runner:
        waiting = runner.submit()
        await runner.released.wait()
        opening = runner.submit(id="open")
        for caller in (opening, waiting):
            assert (await caller.response()).outputs
        error = await runner.error(id="raise")
        assert "message: RuntimeError: in the background\n\nAt:\n" in error.message


async def test_misuse_of_a_sender(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(tmp_path, MISUSE) as runner:
        response = await runner.infer(count(0))
    texts = [text.decode() for text in response.outputs[0].to_numpy()]
    assert texts == [
        "Inference Response object must be provided when the response flags is set to zero.",
        "Unable to send response. Unsupported flag provided.",
        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        "Unable to set release flags. Unsupported flag provided.",
    ]
    (later,) = [record.getMessage() for record in caplog.records if "|" in record.getMessage()]
    assert later.split("|") == [
        "",
        "Unable to send response. Non-decoupled model cannot send more than one response.",
        "",
        "Unable to send response. Response sender has been closed.",
    ]


async def test_a_coupled_model_may_answer_later(tmp_path: Path) -> None:
    async with running(tmp_path, LATER) as runner:
        early = runner.batch(InferRequest("model", [], id="a"), InferRequest("model", [], id="b"))
        await runner.released.wait()
        assert await runner.infer(id="flush")
        for caller in early:
            assert (await caller.response()).outputs[0].to_numpy().tolist() == [7]


async def test_large_responses_reuse_shared_memory(tmp_path: Path) -> None:
    options = {"shm-limit-byte-size": str(8 << 20)}
    async with running(tmp_path, COUNTER, decoupled=True, settings=options) as runner:
        caller = runner.submit(count(100), id="large")
        seen = 0
        while seen < 100:
            response = await runner.next_response(caller)
            assert np.all(response.outputs[0].to_numpy() == seen)
            seen += 1
            del response
        assert await caller.finished() is None
        gc.collect()
        assert runner.tensors.outputs.in_use == 0
