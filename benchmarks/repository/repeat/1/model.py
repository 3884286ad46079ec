"""A decoupled model that answers every request four times."""

import triton_python_backend_utils as pb_utils

RESPONSES = 4


class TritonPythonModel:
    """OUTPUT0 is INPUT0, again and again."""

    def execute(self, requests):
        """Send all responses of each request, then its end."""
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for _ in range(RESPONSES):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
