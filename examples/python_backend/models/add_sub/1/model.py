"""Sum and difference of two tensors."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1."""

    def execute(self, requests):
        """One response for each request."""
        responses = []
        for request in requests:
            input0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            input1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", input0 + input1), pb_utils.Tensor("OUTPUT1", input0 - input1)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
