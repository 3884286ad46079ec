"""What `execute` returns and raises, and what the callers get."""

import json
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import BackendError, Code
from conch.domain.request import InferRequest
from conch.domain.tensor import Tensor
from tests.server.backends.python.running import IDENTITY, Runner, running

FAILED = "Failed to process the request(s) for model 'model_0_0', message:"

# The first input's text says what it does.
ACTOR = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class Boom(RuntimeError):
        pass

    def answer(text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], dtype=object))])

    class TritonPythonModel:
        def execute(self, requests):
            texts = [request.inputs()[0].as_numpy()[0].decode() for request in requests]
            if "raise" in texts:
                raise RuntimeError("boom")
            if "deep" in texts:
                self.deeper()
            if "exit" in texts:
                raise SystemExit(3)
            if "short" in texts:
                return [answer("only one")]
            if "string" in texts:
                return "a string"
            responses = []
            for text, request in zip(texts, requests):
                kind, _, rest = text.partition(":")
                if kind == "error":
                    code = getattr(pb_utils.TritonError, rest) if rest else None
                    error = pb_utils.TritonError("no luck") if code is None else pb_utils.TritonError("no luck", code)
                    responses.append(pb_utils.InferenceResponse(error=error))
                elif kind == "none":
                    responses.append(None)
                elif kind == "number":
                    responses.append(42)
                elif kind == "unserializable":
                    array = np.array([answer], dtype=object)
                    class Rude:
                        def __str__(self):
                            raise ValueError("unspeakable")
                    array[0] = Rude()
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
                elif kind == "parameters":
                    responses.append(pb_utils.InferenceResponse([], parameters={"s": "x", "i": 1, "b": True, "f": 0.5}))
                else:
                    responses.append(answer(text))
            return responses

        def deeper(self):
            raise Boom("deep down")
"""

ALL_FIELDS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for r in requests:
                told = dict(
                    id=r.request_id(), correlation=r.correlation_id(), flags=r.flags(), timeout=r.timeout(),
                    parameters=r.parameters(), trace=r.trace().get_context(), cancelled=r.is_cancelled(),
                    names=[t.name() for t in r.inputs()], shapes=[t.shape() for t in r.inputs()],
                    types=[t.triton_dtype() for t in r.inputs()],
                    found=pb_utils.get_input_tensor_by_name(r, "B") is r.inputs()[1],
                    absent=pb_utils.get_input_tensor_by_name(r, "C"),
                )
                responses.append(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(told)], dtype=object))])
                )
            return responses
"""

ASYNC = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            async def one(request):
                await asyncio.sleep(0)
                if request.request_id() == "bad":
                    raise RuntimeError("async boom")
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))])
            return await asyncio.gather(*[one(request) for request in requests])
"""


def text(value: str) -> Tensor:
    return Tensor.from_numpy("IN", np.array([value], dtype=object))


def act_request(value: str) -> InferRequest:
    return InferRequest("model", [text(value)])


async def outcomes(runner: Runner, *texts: str) -> list[str]:
    """Execute a batch and return the text of each answer, error or not."""
    callers = runner.batch(*map(act_request, texts))
    answers = []
    for caller in callers:
        answer = await caller.finished()
        answers.append(answer.message if isinstance(answer, BackendError) else answer.outputs[0].to_numpy()[0].decode())
    await runner.released.wait()
    return answers


async def test_each_request_of_a_batch_gets_its_own_answer(tmp_path: Path) -> None:
    requests = [InferRequest("model", [Tensor.from_numpy("IN0", np.array([i]))], id=f"r{i}") for i in range(50)]
    async with running(tmp_path, IDENTITY) as runner:
        for size in (1, 2, 50):
            callers = runner.batch(*requests[:size])
            for number, caller in enumerate(callers):
                response = await caller.response()
                assert (response.id, response.model_name, response.model_version) == (f"r{number}", "model", 1)
                assert response.outputs[0].to_numpy().tolist() == [number]
            assert 0 < runner.last_batch.input_done <= runner.last_batch.infer_done


async def test_an_exception_fails_the_batch_as_triton_says_it(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        answers = await outcomes(runner, "fine", "raise", "fine")
        assert len(set(answers)) == 1
        head, _, frames = answers[0].partition("\n\nAt:\n")
        assert head == f"{FAILED} RuntimeError: boom"
        line = ACTOR.splitlines().index('                raise RuntimeError("boom")') + 1
        assert frames == f"  {tmp_path}/1/model.py({line}): execute\n"
        assert await outcomes(runner, "fine") == ["fine"]


async def test_frames_are_listed_innermost_first(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        (answer,) = await outcomes(runner, "deep")
        assert "message: Boom: deep down\n" in answer
        names = [line.rpartition(": ")[2] for line in answer.partition("At:\n")[2].splitlines()]
        assert names == ["deeper", "execute"]


async def test_the_traceback_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, ACTOR) as runner:
        await outcomes(runner, "raise")
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.name == "conch.model"
    assert record.instance == "model_0_0"
    assert "Traceback (most recent call last)" in record.block
    assert "RuntimeError: boom" in record.block


async def test_sys_exit_is_an_exception_like_others(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        (answer,) = await outcomes(runner, "exit")
        assert "message: SystemExit: 3" in answer
        assert await outcomes(runner, "fine") == ["fine"]


@pytest.mark.parametrize("code", list(Code))
async def test_error_codes_reach_the_caller(tmp_path: Path, code: Code) -> None:
    async with running(tmp_path, ACTOR) as runner:
        error = await runner.error(text(f"error:{code.name}"))
    assert (error.message, error.code) == ("no luck", code)


async def test_an_error_without_code_is_internal(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        error = await runner.error(text("error"))
    assert error.code is Code.INTERNAL


@pytest.mark.parametrize("position", range(3))
async def test_one_bad_answer_spoils_no_other(tmp_path: Path, position: int) -> None:
    async with running(tmp_path, ACTOR) as runner:
        for bad, reason in [
            ("error:NOT_FOUND", "no luck"),
            ("none", "whose response sender the model has not taken"),
            (
                "number",
                "an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
            ),
            ("unserializable", "unspeakable"),
        ]:
            texts = ["x", "y", "z"]
            texts[position] = bad
            answers = await outcomes(runner, *texts)
            assert reason in answers[position]
            del texts[position], answers[position]
            assert answers == texts


async def test_a_list_of_the_wrong_length(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        answers = await outcomes(runner, "short", "x")
        expected = (
            f"{FAILED} Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1\n"
        )
        assert answers == [expected, expected]
        (answer,) = await outcomes(runner, "string")
        assert "Expected a list in the execute return, found type '<class 'str'>'." in answer


async def test_parameters_of_a_response(tmp_path: Path) -> None:
    async with running(tmp_path, ACTOR) as runner:
        response = await runner.infer(text("parameters"))
    assert response.parameters == {"s": "x", "i": 1, "b": True, "f": 0.5}
    assert [type(value) for value in response.parameters.values()] == [str, int, bool, float]


async def test_a_model_sees_every_field_of_a_request(tmp_path: Path) -> None:
    tensors = [Tensor.from_numpy("A", np.zeros((2, 3), np.float16)), text("x")]
    tensors[1].name = "B"
    async with running(tmp_path, ALL_FIELDS) as runner:
        response = await runner.infer(
            *tensors,
            id="r1",
            correlation_id=2**64 - 1,
            flags=3,
            timeout_us=5_000_000,
            parameters={"a": 1, "b": "ü", "c": True},
        )
        seen = json.loads(response.outputs[0].to_numpy()[0])
        assert json.loads(seen.pop("parameters")) == {"a": 1, "b": "ü", "c": True}
        assert seen == {
            "id": "r1",
            "correlation": 2**64 - 1,
            "flags": 3,
            "timeout": 5_000_000,
            "trace": None,
            "cancelled": False,
            "names": ["A", "B"],
            "shapes": [[2, 3], [1]],
            "types": [10, 13],
            "found": True,
            "absent": None,
        }
        response = await runner.infer(*tensors, correlation_id="a sequence")
        seen = json.loads(response.outputs[0].to_numpy()[0])
        assert (seen["correlation"], seen["parameters"]) == ("a sequence", "{}")


async def test_execute_may_be_async(tmp_path: Path) -> None:
    async with running(tmp_path, ASYNC) as runner:
        callers = runner.batch(InferRequest("model", []), InferRequest("model", []))
        for caller in callers:
            assert (await caller.response()).outputs[0].to_numpy().tolist() == [1]
        error = await runner.error(id="bad")
        assert "message: RuntimeError: async boom\n\nAt:\n" in error.message
        assert await runner.infer()
