"""Tensors that go through DLPack inside of a model."""

from pathlib import Path

import numpy as np

from conch.domain.tensor import Tensor
from tests.server.backends.python.running import running

ROUND_TRIP = """
    import gc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensors = []
            for tensor in requests[0].inputs():
                assert tensor.is_cpu()
                assert tensor.__dlpack_device__() == (1, 0)
                as_object = pb_utils.Tensor.from_dlpack("object", tensor)
                as_capsule = pb_utils.Tensor.from_dlpack("capsule", tensor.to_dlpack())
                assert as_object.triton_dtype() == as_capsule.triton_dtype() == tensor.triton_dtype()
                tensors += [as_object, as_capsule]
            unused = requests[0].inputs()[0].to_dlpack()
            del unused
            gc.collect()
            return [pb_utils.InferenceResponse(tensors)]
"""

SHARING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensor = requests[0].inputs()[0]
            np.from_dlpack(tensor)[1] = 7
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", tensor.as_numpy())])]
"""

REFUSALS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            text, brain = requests[0].inputs()
            used = pb_utils.Tensor("x", np.zeros(3)).to_dlpack()
            pb_utils.Tensor.from_dlpack("x", used)
            attempts = [
                lambda: text.to_dlpack(),
                lambda: brain.as_numpy(),
                lambda: pb_utils.Tensor.from_dlpack("x", np.zeros((3, 4)).T),
                lambda: pb_utils.Tensor.from_dlpack("x", used),
                lambda: pb_utils.Tensor.from_dlpack("x", [1, 2]),
                lambda: pb_utils.Tensor.from_dlpack("", np.zeros(3)),
            ]
            texts = []
            for attempt in attempts:
                try:
                    attempt()
                    texts.append("nothing was raised")
                except pb_utils.TritonModelException as error:
                    texts.append(error.message())
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", np.array(texts, dtype=object))])]
"""


async def test_round_trip(tmp_path: Path) -> None:
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(100_000, dtype=np.int64), np.ones(3, bool)):
        async with running(tmp_path, ROUND_TRIP) as runner:
            response = await runner.infer(Tensor.from_numpy("IN0", array))
        assert [tensor.name for tensor in response.outputs] == ["object", "capsule"]
        for tensor in response.outputs:
            assert np.array_equal(tensor.to_numpy(), array)


async def test_round_trip_of_bfloat16(tmp_path: Path) -> None:
    async with running(tmp_path, ROUND_TRIP) as runner:
        for count in (0, 3, 100_000):
            data = np.random.default_rng(count).bytes(2 * count)
            response = await runner.infer(Tensor("IN0", "BF16", (1, count), data))
            for tensor in response.outputs:
                assert (tensor.datatype, tensor.shape) == ("BF16", (1, count))
                assert bytes(tensor.data) == data


async def test_memory_is_shared(tmp_path: Path) -> None:
    async with running(tmp_path, SHARING) as runner:
        response = await runner.infer(Tensor.from_numpy("IN0", np.zeros(3, np.float32)))
    assert response.outputs[0].to_numpy().tolist() == [0, 7, 0]


async def test_refusals(tmp_path: Path) -> None:
    async with running(tmp_path, REFUSALS) as runner:
        response = await runner.infer(Tensor("A", "BYTES", (0,), b""), Tensor("B", "BF16", (1,), b"\0\0"))
    texts = [text.decode() for text in response.outputs[0].to_numpy()]
    assert texts[0] == "DLPack does not have support for string tensors."
    assert texts[1].startswith("Tensor dtype is BF16 and cannot be converted to NumPy.")
    assert texts[2].startswith("DLPack tensor is not contiguous.")
    assert texts[3].startswith("Provided tensor is not supported.")
    assert texts[4].startswith("Provided tensor is not supported.")
    assert texts[5] == "Tensor name cannot be an empty string."
