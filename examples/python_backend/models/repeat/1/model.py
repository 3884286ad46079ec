"""A decoupled model: as many responses as the input has elements, one by one."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUT is each element of IN in turn; the last response is empty and says that it was the last."""

    def execute(self, requests):
        """Answer through the senders."""
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for index in range(len(values)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values[index : index + 1])]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
