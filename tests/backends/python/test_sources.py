"""Tensors that are fetched when a batch is sent: from where they lie to where the model looks at them."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from conch.backends.python_child.conch_child.arena import INLINE_LIMIT
from conch.errors import InvalidRequest
from conch.request import InferRequest
from conch.tensor import Buffer, Tensor
from tests.backends.python.running import IDENTITY, running

LARGE = 2 * INLINE_LIMIT


class Memory:
    """So many bytes of 7, once for each time that it is read; or none any more."""

    def __init__(self, size: int, gone: bool = False) -> None:
        self.size = size
        self.reads = 0
        self.gone = gone

    def read(self) -> Buffer:
        target = np.empty(self.size, np.uint8)
        self.read_into(target)
        return target.data

    def read_into(self, target: npt.NDArray[np.uint8]) -> None:
        self.reads += 1
        target[:] = 7
        if self.gone:
            raise InvalidRequest("it has gone")


def asked(*sources: Memory) -> InferRequest:
    return InferRequest(
        "model",
        [Tensor(f"IN{number}", "UINT8", [each.size], source=each) for number, each in enumerate(sources)],
    )


@pytest.mark.parametrize("size", [16, LARGE])
async def test_a_tensor_is_fetched_once(tmp_path: Path, size: int) -> None:
    memory = Memory(size)
    async with running(tmp_path, IDENTITY) as runner:
        response = await runner.batch(asked(memory))[0].response()
        assert bytes(response.outputs[0].data) == b"\7" * size
        assert memory.reads == 1


@pytest.mark.parametrize("size", [16, LARGE])
async def test_what_has_gone_costs_its_request_only(tmp_path: Path, size: int) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        for _ in range(3):
            lost, kept = runner.batch(asked(Memory(LARGE), Memory(size, gone=True)), asked(Memory(size)))
            assert (await lost.error()).message == "it has gone"
            assert bytes((await kept.response()).outputs[0].data) == b"\7" * size
            await runner.released.wait()
        # Nothing else being in the batch, the model does not hear of it.
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
