"""Tensors that are fetched when a batch is sent: from where they lie to where the model looks at them."""

import os
import signal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.request import InferRequest
from conch.domain.sliced_copy import MIN_SLICED_BYTES
from conch.domain.tensor import Buffer, Tensor
from conch.server.backends.child.conch_child.ipc.arena import MAX_INLINE_BYTES
from tests.server.backends.python.running import IDENTITY, running

LARGE = 2 * MAX_INLINE_BYTES
SLICED = 2 * MIN_SLICED_BYTES + 5


class Memory:
    """A source of `size` bytes of 7, or one that raises."""

    def __init__(self, size: int, gone: bool = False) -> None:
        self.size = size
        self.reads = 0
        self.gone = gone

    def read(self) -> Buffer:
        target = np.empty(self.size, np.uint8)
        self.read_into(target)
        return target.data

    def room(self) -> npt.NDArray[np.uint8]:
        return np.empty(self.size, np.uint8)

    def read_into(self, target: npt.NDArray[np.uint8], offset: int = 0) -> None:
        self.reads += offset == 0
        target[:] = 7
        if self.gone:
            raise InvalidRequest("it has gone")


def asked(*sources: Memory) -> InferRequest:
    return InferRequest(
        "model",
        [Tensor(f"IN{number}", "UINT8", [source.size], source=source) for number, source in enumerate(sources)],
    )


@pytest.mark.parametrize("size", [16, LARGE, SLICED])
async def test_a_tensor_is_fetched_once(tmp_path: Path, size: int) -> None:
    memory = Memory(size)
    async with running(tmp_path, IDENTITY) as runner:
        response = await runner.batch(asked(memory))[0].response()
        assert bytes(response.outputs[0].data) == b"\7" * size
        assert memory.reads == 1


@pytest.mark.parametrize("size", [16, LARGE, SLICED])
async def test_what_has_gone_costs_its_request_only(tmp_path: Path, size: int) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        for _ in range(3):
            lost, kept = runner.batch(asked(Memory(LARGE), Memory(size, gone=True)), asked(Memory(size)))
            assert (await lost.error()).message == "it has gone"
            assert bytes((await kept.response()).outputs[0].data) == b"\7" * size
            await runner.released.wait()
        # With nothing else in the batch, the model is not called.
        (lost,) = runner.batch(asked(Memory(LARGE), Memory(size, gone=True)))
        await lost.error()
        await runner.released.wait()
        assert runner.last_batch.infer_done == 0
        await runner.infer(Tensor("IN", "UINT8", [1], b"\7"))
        assert runner.tensors.inputs.used == 0


async def test_what_is_too_large_for_the_arena_travels(tmp_path: Path) -> None:
    memory = Memory(2 << 20)
    async with running(tmp_path, IDENTITY, settings={"shm-limit-byte-size": "1048576"}) as runner:
        response = await runner.batch(asked(memory))[0].response()
        assert bytes(response.outputs[0].data) == b"\7" * memory.size
        assert memory.reads == 1


async def test_batches_with_large_tensors_keep_their_order(tmp_path: Path) -> None:
    """Small ones that come while a large tensor is copied are sent after it."""
    async with running(tmp_path, IDENTITY) as runner:
        data = np.arange(SLICED, dtype=np.uint8)
        large = InferRequest("model", [Tensor("IN0", "UINT8", [SLICED], data.data)])
        callers = [*runner.batch(large), *runner.batch(asked(Memory(16))), *runner.batch(asked(Memory(SLICED)))]
        answers = [(await caller.response()).outputs[0] for caller in callers]
        assert bytes(answers[0].data) == data.tobytes()
        assert bytes(answers[1].data) == b"\7" * 16
        assert bytes(answers[2].data) == b"\7" * SLICED


async def test_a_request_that_is_cancelled_while_it_is_copied_ends_once(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        (caller,) = runner.batch(asked(Memory(SLICED)))
        caller.cancel()
        (after,) = runner.batch(asked(Memory(16)))
        assert (await after.response()).outputs
        await caller.finished()


async def test_a_process_that_dies_while_a_tensor_is_copied_fails_the_request(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        os.kill(runner.pid, signal.SIGKILL)
        # More than is copied until the end of the process is known.
        callers = [*runner.batch(asked(Memory(16 * SLICED))), *runner.batch(asked(Memory(16)))]
        assert "is not healthy" in (await callers[0].error()).message
