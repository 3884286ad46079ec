"""Tensors to a model and back: every datatype, in the message and through shared memory."""

import asyncio
import gc
from pathlib import Path

import numpy as np
import pytest

from conch.domain.tensor import ITEM_SIZES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.server.backends.python import tensor_exchange
from tests.server.backends.python.running import IDENTITY, TIMEOUT_S, Runner, running

LARGE = 100_000

BORROWER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.kept = None

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            if self.kept is None:
                self.kept = array[10:20]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", self.kept.copy())])]
"""

ODD_ARRAYS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            outputs = {
                "transposed": array.reshape(2, -1).T,
                "strided": array[::2],
                "foreign": array.astype(array.dtype.newbyteorder(">")),
                "scalar": array[3],
                "text": np.array(["größe", b"\\x00\\x01\\x00", 7], dtype=object),
                "fixed": np.array(["ab", "c"]),
            }
            tensors = [pb_utils.Tensor(name, np.asarray(value)) for name, value in outputs.items()]
            return [pb_utils.InferenceResponse(tensors)]
"""

IN_PLACE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            arrays = [t.as_numpy() for t in requests[0].inputs()]
            for array in arrays:
                assert array.flags.writeable and array.flags.aligned
                array *= 2
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT%d" % i, a) for i, a in enumerate(arrays)])]
"""

THREE_OUTPUTS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                names = json.dumps(sorted(request.requested_output_names()))
                tensors = [pb_utils.Tensor(name, np.array([names], dtype=object)) for name in ("A", "B", "C")]
                responses.append(pb_utils.InferenceResponse(tensors))
            return responses
"""


def example(datatype: str, count: int) -> Tensor:
    """Return a tensor with every bit pattern that random bytes hold, of any datatype."""
    rng = np.random.default_rng(len(datatype) * count)
    if datatype == "BYTES":
        return Tensor("IN0", datatype, (count,), pack_bytes(rng.bytes(int(n)) for n in rng.integers(0, 9, count)))
    if datatype == "BOOL":
        return Tensor.from_numpy("IN0", rng.integers(0, 2, count).astype(bool))
    return Tensor("IN0", datatype, (count,), rng.bytes(count * ITEM_SIZES[datatype]))


def inputs_in_use(runner: Runner) -> int:
    """Bytes of shared memory that the model still uses."""
    return runner.tensors.inputs.used


def outputs_in_use(runner: Runner) -> int:
    """Outputs in shared memory that this process still uses."""
    return runner.tensors.outputs.in_use


@pytest.mark.parametrize("count", [0, 1, 5, LARGE])
async def test_every_datatype_comes_back_as_it_went(tmp_path: Path, count: int) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        for datatype in NUMPY_DTYPES:
            tensor = example(datatype, count)
            (returned,) = (await runner.infer(tensor)).outputs
            assert (returned.name, returned.datatype, returned.shape) == ("OUT0", datatype, (count,))
            assert bytes(returned.data) == bytes(tensor.data), datatype


async def test_several_tensors_of_mixed_sizes(tmp_path: Path) -> None:
    sizes = [3, LARGE, 0, 1, 2 * LARGE, 8000, 8000]
    arrays = [np.arange(size, dtype=np.float32) + number for number, size in enumerate(sizes)]
    tensors = [Tensor.from_numpy(f"IN{number}", array) for number, array in enumerate(arrays)]
    async with running(tmp_path, IDENTITY) as runner:
        for _ in range(3):
            response = await runner.infer(*tensors)
            for returned, array in zip(response.outputs, arrays, strict=True):
                assert np.array_equal(returned.to_numpy(), array)


async def test_shape_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        for shape in [(), (1,), (2, 3, 4), (2, 0, 4)]:
            response = await runner.infer(Tensor.from_numpy("IN0", np.ones(shape, np.int16)))
            assert response.outputs[0].shape == shape


async def test_arrays_of_any_layout_can_be_returned(tmp_path: Path) -> None:
    for size in (8, LARGE):
        array = np.arange(size, dtype=np.int32)
        async with running(tmp_path, ODD_ARRAYS) as runner:
            response = await runner.infer(Tensor.from_numpy("IN0", array))
        returned = {tensor.name: tensor.to_numpy() for tensor in response.outputs}
        assert np.array_equal(returned["transposed"], array.reshape(2, -1).T)
        assert np.array_equal(returned["strided"], array[::2])
        assert np.array_equal(returned["foreign"], array)
        assert returned["scalar"] == 3
        assert returned["text"].tolist() == ["größe".encode(), b"\x00\x01\x00", b"7"]
        assert returned["fixed"].tolist() == [b"ab", b"c"]


async def test_inputs_may_be_written_to(tmp_path: Path) -> None:
    small, large = np.arange(3, dtype=np.float64), np.arange(LARGE, dtype=np.float32)
    async with running(tmp_path, IN_PLACE) as runner:
        response = await runner.infer(
            Tensor.from_numpy("IN0", small[:1].astype(np.int8)),
            Tensor.from_numpy("IN1", small),
            Tensor.from_numpy("IN2", large),
        )
    assert np.array_equal(response.outputs[1].to_numpy(), np.arange(3) * 2)
    assert np.array_equal(response.outputs[2].to_numpy(), np.arange(LARGE, dtype=np.float32) * 2)
    assert large[1] == 1


async def test_a_kept_input_is_not_overwritten(tmp_path: Path) -> None:
    async with running(tmp_path, BORROWER) as runner:
        for number in range(4):
            array = np.arange(LARGE, dtype=np.float32) + 100 * number
            response = await runner.infer(Tensor.from_numpy("IN0", array))
            assert response.outputs[0].to_numpy().tolist() == list(range(10, 20))


async def test_shared_memory_is_released_when_the_last_view_dies(tmp_path: Path) -> None:
    array = np.arange(LARGE, dtype=np.float32)
    async with running(tmp_path, IDENTITY) as runner:
        response = await runner.infer(Tensor.from_numpy("IN0", array))
        assert inputs_in_use(runner) == 0
        assert outputs_in_use(runner) == 1
        part = memoryview(response.outputs[0].data)[8:16]
        runner.release_batch()
        del response
        gc.collect()
        assert outputs_in_use(runner) == 1
        assert part == array[2:4].tobytes()
        del part
        gc.collect()
        assert outputs_in_use(runner) == 0


def resident_shared_memory() -> int:
    """Bytes of memory shared with models that this process looks at."""
    total, counting = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            counting = "memfd:conch" in line
        elif counting and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


async def test_an_idle_instance_gives_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_exchange, "_TRIM_AFTER_S", 0.05)
    now = [0.0]  # stands still until the memory has been seen, however late this process gets a processor
    monkeypatch.setattr(tensor_exchange, "monotonic", lambda: now[0])
    array = np.ones(1_000_000)
    gc.collect()
    before = resident_shared_memory()  # of responses that earlier tests of this process have kept
    async with running(tmp_path, IDENTITY, settings={"shm-default-byte-size": "65536"}) as runner:
        response = await runner.infer(Tensor.from_numpy("IN0", array))
        assert np.array_equal(response.outputs[0].to_numpy(), array)
        assert resident_shared_memory() >= before + 2 * array.nbytes
        runner.release_batch()
        del response
        gc.collect()
        async with asyncio.timeout(TIMEOUT_S):
            while resident_shared_memory() > before + 2 * 65536:
                now[0] += 1.0
                await asyncio.sleep(0.01)
        response = await runner.infer(Tensor.from_numpy("IN0", array))
        assert np.array_equal(response.outputs[0].to_numpy(), array)


async def test_what_exceeds_shared_memory_still_travels(tmp_path: Path) -> None:
    array = np.random.default_rng(1).random(1_000_000)
    async with running(tmp_path, IDENTITY, settings={"shm-limit-byte-size": "2097152"}) as runner:
        response = await runner.infer(Tensor.from_numpy("IN0", array), Tensor.from_numpy("IN1", array[:100_000]))
        assert np.array_equal(response.outputs[0].to_numpy(), array)
        assert np.array_equal(response.outputs[1].to_numpy(), array[:100_000])
        assert outputs_in_use(runner) == 1


async def test_only_requested_outputs_are_returned(tmp_path: Path) -> None:
    async with running(tmp_path, THREE_OUTPUTS, outputs=["A", "B"]) as runner:
        everything = await runner.infer()
        assert [tensor.name for tensor in everything.outputs] == ["A", "B"]
        assert everything.outputs[0].to_numpy().tolist() == [b'["A", "B"]']
        some = await runner.infer(outputs=("B",))
        assert [tensor.name for tensor in some.outputs] == ["B"]
        assert some.outputs[0].to_numpy().tolist() == [b'["B"]']


async def test_cut_bytes_are_the_request_s_own_error(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        error = await runner.error(Tensor("IN0", "BYTES", (1,), b"\xc8\0\0\0ab"))
        assert "incomplete string data" in error.message
        response = await runner.infer(Tensor("IN0", "BYTES", (1,), b"\x02\0\0\0ab"))
        assert response.outputs[0].to_numpy().tolist() == [b"ab"]


async def test_an_input_in_memory_of_the_process_is_not_copied(tmp_path: Path) -> None:
    size = 1 << 20
    async with running(tmp_path, IDENTITY) as runner:
        assert runner.instance.input_room is not None
        block = runner.instance.input_room(size)
        assert block is not None
        block[:] = 7
        for _ in range(2):
            caller = runner.submit(Tensor("IN", "UINT8", (size,), block.data))
            assert runner.tensors.inputs.used == size
            response = await caller.response()
            assert bytes(response.outputs[0].data) == b"\7" * size
            del caller, response
            runner.release_batch()
        del block
        runner.tensors.sweep()
        assert runner.tensors.inputs.used == 0
