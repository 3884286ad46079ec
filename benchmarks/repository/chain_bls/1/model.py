"""The three steps of the ensemble `chain` once more, called one after the other (BLS)."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0, after three models have had it."""

    def execute(self, requests):
        """Send the tensor of each request through the steps."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        for step in ("first", "second", "third"):
            call = pb_utils.InferenceRequest(
                model_name=step,
                inputs=[pb_utils.Tensor("INPUT0", values.as_numpy())],
                requested_output_names=["OUTPUT0"],
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            values = pb_utils.get_output_tensor_by_name(response, "OUTPUT0")
        return pb_utils.InferenceResponse([values])
