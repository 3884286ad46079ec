"""A model that takes as long as another one did: the code of stand-ins, which `stand_in` copies to repositories.

Durations by batch size are in service_times.json, in the order in which they were recorded.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sleeps, and answers with zeros."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the durations."""
        folder = Path(args["model_repository"]) / args["model_version"]
        times = json.loads((folder / "service_times.json").read_text())
        self.times: dict[int, list[int]] = {int(size): values for size, values in times.items()}
        self.used = dict.fromkeys(self.times, 0)
        config = json.loads(args["model_config"])
        self.batched = config["max_batch_size"] > 0
        self.outputs = [
            (output["name"], pb_utils.triton_string_to_numpy(output["data_type"]), output["dims"])
            for output in config["output"]
        ]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request after the time of a batch of their size."""
        begun = time.monotonic_ns()
        sizes = [self.size(request) for request in requests]
        responses = [pb_utils.InferenceResponse(self.zeros(size)) for size in sizes]
        until = begun + self.duration(sum(sizes))
        left = until - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        return responses

    def size(self, request: Any) -> int:
        """Return the batch size of a request."""
        return int(request.inputs()[0].shape()[0]) if self.batched else 1

    def zeros(self, size: int) -> list[Any]:
        """Return outputs of zeros; variable dimensions are 1."""
        batch = [size] if self.batched else []
        return [
            pb_utils.Tensor(name, np.zeros(batch + [max(dim, 1) for dim in dims], dtype))
            for name, dtype, dims in self.outputs
        ]

    def duration(self, size: int) -> int:
        """Return the next recorded duration (ns) of a batch size; of the nearest one, scaled, if it was not seen."""
        nearest = min(self.times, key=lambda known: abs(known - size))
        values = self.times[nearest]
        value = values[self.used[nearest] % len(values)]
        self.used[nearest] += 1
        return value * size // nearest if size > nearest else value
