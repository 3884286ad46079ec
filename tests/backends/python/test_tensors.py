"""Tensors to a model and back: every datatype, inline and through shared memory."""

from pathlib import Path

import numpy as np
import pytest

from conch.tensor import Tensor
from tests.backends.python.running import IDENTITY, running


async def test_small(tmp_path: Path) -> None:
    async with running(tmp_path, IDENTITY) as runner:
        response = await runner.infer(Tensor.from_numpy("IN0", np.arange(4, dtype=np.float32)))
        assert response.outputs[0].name == "OUT0"
        assert response.outputs[0].to_numpy().tolist() == [0, 1, 2, 3]
