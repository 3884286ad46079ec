"""A model that takes as long as another one did: the code of stand-ins, which `stand_in` copies to repositories.

Durations by batch size are in service_times.json, in the order in which they were recorded. Where executions.npy is,
requests come at their recorded times and have their recorded numbers as ids: an execution ends when the recorded one of
its requests did. What to add to recorded times is in clock_shift, which is written when the load begins.
"""

import json
import time
from pathlib import Path
from statistics import median_low
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
        self.executions: dict[int, list[tuple[int, int]]] = {}  # begin and end of those of a request by its number
        if (folder / "executions.npy").exists():
            for number, begun, ended in np.load(folder / "executions.npy").tolist():
                self.executions.setdefault(number, []).append((begun, ended))
        self.clock_shift = folder / "clock_shift"
        self.shift = 0
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
        until = self.recorded_end(requests, begun) or begun + self.duration(sum(sizes))
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

    def recorded_end(self, requests: list[Any], begun: int) -> int:
        """Return when the recorded execution of requests ended (ns); 0 if there was none.

        Of several executions, that of most of the requests counts. If it is over, what was late before catches up.
        """
        if not self.executions:
            return 0
        if not self.shift:
            self.shift = int(self.clock_shift.read_text())
        ends = []
        for request in requests:
            executions = self.executions.get(int(request.request_id()))
            if executions:  # a model can be two steps of an ensemble: the nearest one
                ends.append(min(executions, key=lambda times: abs(times[0] - begun + self.shift))[1])
        return median_low(ends) + self.shift if ends else 0

    def duration(self, size: int) -> int:
        """Return the next recorded duration (ns) of a batch size; of the nearest one, scaled, if it was not seen."""
        nearest = min(self.times, key=lambda known: abs(known - size))
        values = self.times[nearest]
        value = values[self.used[nearest] % len(values)]
        self.used[nearest] += 1
        return value * size // nearest if size > nearest else value
