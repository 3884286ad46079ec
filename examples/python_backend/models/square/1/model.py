"""A decoupled model that responds from its own threads: `execute` returns before the responses are there."""

from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUT is IN, as many times as IN says; together they are its square. For 0 there is no response but the end."""

    def initialize(self, args):
        """Start the threads: up to 4 requests are answered concurrently."""
        self._threads = ThreadPoolExecutor(4)

    def execute(self, requests):
        """Hand each request on. What is needed of it later must be taken out of it now."""
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy()
            self._threads.submit(answer, request.get_response_sender(), value)

    def finalize(self):
        """Wait for the requests that are still being answered."""
        self._threads.shutdown()


def answer(sender, value):
    """Send all responses to one request, then say that there are no more."""
    for _ in range(value.item()):
        if sender.is_cancelled():
            break
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
