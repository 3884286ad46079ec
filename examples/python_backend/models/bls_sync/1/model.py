"""Business logic scripting: which model answers is decided by the request."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 and OUTPUT1 are those of the model that MODEL_NAME names, for INPUT0 and INPUT1."""

    def execute(self, requests):
        """Call the model for each request and wait for it."""
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()[0].decode()
        call = pb_utils.InferenceRequest(
            model_name=name,
            requested_output_names=["OUTPUT0", "OUTPUT1"],
            inputs=[pb_utils.get_input_tensor_by_name(request, tensor) for tensor in ("INPUT0", "INPUT1")],
        )
        response = call.exec()
        if response.has_error():  # an error is a value: this model could also do without the answer
            error = pb_utils.TritonError(response.error().message(), response.error().code())
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse(response.output_tensors())
