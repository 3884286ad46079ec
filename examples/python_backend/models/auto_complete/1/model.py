"""A model whose configuration is in its code: config.pbtxt has nothing but the backend."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0 + INPUT1, OUTPUT1 is INPUT0 - INPUT1, for batches of up to four."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Add what config.pbtxt leaves open. What it does say must agree, or the model is not loaded."""
        for name in ("INPUT0", "INPUT1"):
            auto_complete_model_config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ("OUTPUT0", "OUTPUT1"):
            auto_complete_model_config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests):
        """One response for each request."""
        responses = []
        for request in requests:
            input0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            input1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", input0 + input1), pb_utils.Tensor("OUTPUT1", input0 - input1)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
