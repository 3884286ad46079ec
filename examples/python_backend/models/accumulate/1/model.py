"""A model with a memory: the requests of a sequence reach one instance, in their order."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """TOTAL is the sum of IN over the sequence so far. The server says in START, END and ID which sequence it is."""

    def initialize(self, args):
        """Know no sequence."""
        self._totals = {}

    def execute(self, requests):
        """Answer several sequences; each has one request among these."""
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        sequence = control(request, "ID")
        total = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if not control(request, "START"):
            total = total + self._totals[sequence]
        self._totals[sequence] = total
        if control(request, "END"):
            del self._totals[sequence]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", total)])


def control(request, name):
    """Return what the server says of the sequence."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
