"""Business logic scripting: two calls at once."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0 + INPUT1 and OUTPUT1 is INPUT1 - INPUT0, each by a separate call of `add_sub`."""

    async def execute(self, requests):
        """Answer all requests side by side."""
        return await asyncio.gather(*[self._respond(request) for request in requests])

    async def _respond(self, request):
        input0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        input1 = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        responses = await asyncio.gather(call(input0, input1, "OUTPUT0"), call(input1, input0, "OUTPUT1"))
        for response in responses:
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([tensor for response in responses for tensor in response.output_tensors()])


def call(input0, input1, output):
    """Return what can be awaited for one output of add_sub."""
    request = pb_utils.InferenceRequest(
        model_name="add_sub",
        requested_output_names=[output],
        inputs=[pb_utils.Tensor("INPUT0", input0), pb_utils.Tensor("INPUT1", input1)],
    )
    return request.async_exec()
