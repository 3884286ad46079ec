"""A model whose executions take a time by its parameters, in which they wait or compute."""

import json
import os
import random
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0, `batch_ms` and `item_ms` for each item later, times a log-normal factor."""

    def initialize(self, args):
        """Read the parameters."""
        parameters = {
            key: value["string_value"] for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        self._batch_s = float(parameters["batch_ms"]) / 1000
        self._item_s = float(parameters["item_ms"]) / 1000
        self._spread = float(parameters["spread"])
        self._computes = parameters["computes"] == "true"
        self._random = random.Random(os.getpid())

    def execute(self, requests):
        """Take the time of the batch, then answer each request with its own tensor."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        items = sum(len(values) for values in inputs)
        seconds = (self._batch_s + self._item_s * items) * self._random.lognormvariate(0, self._spread)
        if self._computes:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        else:
            time.sleep(seconds)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)]) for values in inputs]
