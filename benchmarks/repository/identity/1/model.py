"""The cheapest Python model: what is measured with it is the server."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0."""

    def execute(self, requests):
        """Answer each request with its own tensor."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
