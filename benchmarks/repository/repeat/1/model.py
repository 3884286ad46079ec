"""A decoupled model that answers every request as many times as its configuration says."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0, again and again."""

    def initialize(self, args):
        """Read how often."""
        self._responses = int(json.loads(args["model_config"])["parameters"]["responses"]["string_value"])

    def execute(self, requests):
        """Send all responses of each request, then its end."""
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for _ in range(self._responses):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
