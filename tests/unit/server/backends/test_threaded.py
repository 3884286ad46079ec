"""The thread of an instance: mailbox, way home, failures, end."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conch.base.errors import BackendError, ConchError, ModelLoadError, Unsupported
from conch.domain.model_config import InstanceKind, ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.base import InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.threaded import Arrays, Lanes, ThreadedInstance

CONFIG = ModelConfig("m", "x", "", 8, (TensorSpec("IN", "INT64", (1,)),), (TensorSpec("OUT", "INT64", (1,)),))


class Doubling(ThreadedInstance):
    """OUT = 2 · IN; what happens besides is scripted."""

    def __init__(self, on_load: Callable[[], None] = lambda: None) -> None:
        super().__init__(InstancePlan(ModelSource(CONFIG, 1, Path(), {}), "m_0", InstanceKind.CPU, 0, 1))
        self.on_load = on_load
        self.threads: list[str] = []
        self.runs: list[int] = []
        self.unloaded = False

    def load(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.on_load()

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        assert list(outputs) == ["OUT"]
        self.threads.append(threading.current_thread().name)
        self.runs.append(len(inputs["IN"]))
        if (inputs["IN"] < 0).any():
            raise ArithmeticError("negative")
        if (inputs["IN"] > 99).any():
            raise Unsupported("too large")
        return {"OUT": inputs["IN"] * 2}

    def unload(self) -> None:
        self.unloaded = True


class Asked:
    def __init__(self, value: int, done: Callable[[], None]) -> None:
        self.request = InferRequest("m", [Tensor.from_numpy("IN", np.array([[value]]))])
        self.cancelled = False
        self.answer: InferResponse | ConchError | None = None
        self.thread = ""
        self._done = done

    def on_cancel(self, notify: Callable[[], None]) -> None: ...

    def send(self, response: InferResponse) -> None: ...

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        self.answer = answer
        self.thread = threading.current_thread().name


async def run(instance: Doubling, *values: int) -> list[Asked]:
    released = asyncio.Event()
    asked = [Asked(value, released.set) for value in values]
    batch = Batch(asked, lambda _: released.set())
    instance.execute(batch)
    await released.wait()
    return asked


def doubled(asked: Asked) -> object:
    assert isinstance(asked.answer, InferResponse)
    return asked.answer.outputs[0].to_numpy().tolist()


async def test_work_is_in_the_thread_and_answers_on_the_loop() -> None:
    instance = Doubling()
    assert not instance.ready
    await instance.start()
    assert instance.ready
    asked = await run(instance, 1, 2, 3)
    await instance.stop()
    assert [doubled(call) for call in asked] == [[[2]], [[4]], [[6]]]
    assert set(instance.threads) == {"m_0"}
    assert {call.thread for call in asked} == {threading.current_thread().name}
    assert instance.runs == [3]


async def test_a_failing_batch_is_run_one_by_one() -> None:
    instance = Doubling()
    await instance.start()
    first, second, third, fourth = await run(instance, 1, -2, 100, 4)
    await instance.stop()
    assert instance.runs == [4, 1, 1, 1, 1]
    assert (doubled(first), doubled(fourth)) == ([[2]], [[8]])
    assert isinstance(second.answer, BackendError)
    assert second.answer.message == "model instance 'm_0' failed to execute: ArithmeticError: negative"
    assert isinstance(third.answer, Unsupported)


async def test_a_failing_request_alone_is_run_once() -> None:
    instance = Doubling()
    await instance.start()
    (asked,) = await run(instance, -1)
    await instance.stop()
    assert instance.runs == [1]
    assert isinstance(asked.answer, BackendError)


class Meeting(Doubling):
    """Two batches meet: each waits for the other in its computation."""

    def __init__(self) -> None:
        super().__init__()
        self.overlaps = True
        self.meeting = threading.Barrier(2)

    def load(self) -> None:
        super().load()
        self.lanes = Lanes(2)

    def compute_part(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        self.meeting.wait(60)
        return self.compute(inputs, outputs)


class Laned(Doubling):
    """Has three threads, and notes which of them compute."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    def load(self) -> None:
        super().load()
        self.lanes = Lanes(3)

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        self.used.add(threading.get_ident())
        return super().compute(inputs, outputs)


async def test_batches_run_beside_each_other_in_lanes() -> None:
    instance = Meeting()
    await instance.start()
    released = asyncio.Event()
    batches = [Batch([Asked(value, lambda: None)], lambda _: released.set()) for value in (1, 2)]
    batches[0].waiting = 1
    assert instance.takes(0)
    instance.execute(batches[0])
    assert instance.takes(1)
    instance.execute(batches[1])
    assert not instance.takes(2)
    while not all(execution.answer for batch in batches for execution in batch.executions):
        await released.wait()
        released.clear()
    await instance.stop()
    assert [doubled(batch.executions[0]) for batch in batches] == [[[2]], [[4]]]
    assert instance.unloaded
    assert instance.working_since == 0
    assert "m_0" not in {thread.name for thread in threading.enumerate()}


async def test_batches_that_run_alone_run_in_one_thread() -> None:
    instance = Laned()
    await instance.start()
    for value in range(5):
        await run(instance, value)
    await instance.stop()
    assert len(instance.used) == 1


async def test_the_end_of_an_instance() -> None:
    instance = Doubling()
    await instance.start()
    await instance.stop()
    await instance.stop()
    assert instance.unloaded
    assert not instance.ready
    assert "m_0" not in {thread.name for thread in threading.enumerate()}
    assert repr(instance) == "<Doubling m_0 not ready>"


def fail_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModelLoadError("no such file"), "no such file"),
        (OSError("disk on fire"), "model instance 'm_0' failed to load: disk on fire"),
    ],
)
async def test_a_failure_to_load(error: Exception, said: str) -> None:
    instance = Doubling(fail_with(error))
    with pytest.raises(ModelLoadError) as raised:
        await instance.start()
    assert raised.value.message == said
    assert not instance.ready
    await instance.stop()
    assert not instance.unloaded


async def test_a_start_given_up_while_loading() -> None:
    may_load = threading.Event()
    instance = Doubling(lambda: may_load.wait() and None)
    starting = asyncio.create_task(instance.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    may_load.set()
    await instance.stop()
    assert instance.unloaded
    assert not instance.ready
