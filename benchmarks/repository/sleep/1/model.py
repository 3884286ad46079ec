"""A model that takes 2 ms for a batch of any size, as an accelerator would, without using the processor."""

import time

import triton_python_backend_utils as pb_utils

SECONDS = 0.002


class TritonPythonModel:
    """OUTPUT0 is INPUT0, 2 ms after the batch began."""

    def execute(self, requests):
        """Sleep once for the batch, then answer each request with its own tensor."""
        time.sleep(SECONDS)
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
