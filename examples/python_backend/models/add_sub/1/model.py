"""Sum and difference of two tensors."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1."""

    def execute(self, requests):
        """One response for each request."""
        responses = []
        for request in requests:
            one = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            other = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", one + other), pb_utils.Tensor("OUTPUT1", one - other)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
