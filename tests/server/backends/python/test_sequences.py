"""What is particular to models whose requests come in sequences."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import Code
from conch.domain.request import InferRequest
from tests.server.backends.python.running import running

# Answers with the number of requests that it was given, having waited for a file.
COUNTS = """
    import os, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "go")):
                time.sleep(0.001)
            count = pb_utils.Tensor("OUT", np.array([len(requests)], np.float32))
            return [pb_utils.InferenceResponse([count]) for _ in requests]
"""


@pytest.mark.parametrize(("strategy", "given"), [("direct", 2), ("oldest", 1)])
async def test_a_cancelled_request_keeps_its_place_where_that_means_something(
    tmp_path: Path, strategy: str, given: int
) -> None:
    document: dict[str, Any] = {"name": "model", "input": [], "output": [], "sequence_batching": {strategy: {}}}
    async with running(tmp_path, COUNTS, outputs=("OUT",), document=document) as runner:
        runner.submit()
        first, second = runner.batch(InferRequest("model", []), InferRequest("model", []))
        first.cancel()
        (tmp_path / "1" / "go").touch()
        response = await second.response()
        assert response.outputs[0].to_numpy().tolist() == [given]
        if strategy == "oldest":
            assert (await first.error()).code is Code.CANCELLED
        await asyncio.wait_for(runner.released.wait(), 60)
