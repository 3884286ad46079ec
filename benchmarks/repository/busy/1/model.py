"""A model that computes for 5 ms of processor time, so a server that spends processor time takes it from the model."""

import time

import triton_python_backend_utils as pb_utils

SECONDS = 0.005


class TritonPythonModel:
    """OUTPUT0 is INPUT0, after 5 ms of work."""

    def execute(self, requests):
        """Work for each request, then answer it with its own tensor."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        end = time.thread_time() + SECONDS
        while time.thread_time() < end:
            pass
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
