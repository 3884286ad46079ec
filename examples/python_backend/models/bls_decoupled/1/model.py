"""Business logic scripting: a call of a decoupled model, whose responses are taken as they come."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """SUM is the sum of what `repeat` makes of IN."""

    def execute(self, requests):
        """One response for each request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        call = pb_utils.InferenceRequest(
            model_name="repeat",
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
        )
        total = np.zeros(1, np.int32)
        for response in call.exec(decoupled=True):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            if response.output_tensors():  # the last response may have none
                total += pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
