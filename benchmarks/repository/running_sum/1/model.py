"""A model that remembers: each answer is the sum of what its sequence has sent so far."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0 and all that came before it in the sequence."""

    def initialize(self, args):  # noqa: ARG002 - so it is called
        """Begin without sequences."""
        self._sums = {}

    def execute(self, requests):
        """Answer one request of each of several sequences."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        sequence = _control(request, "CORRID")
        total = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if not _control(request, "START"):
            total = total + self._sums[sequence]
        if _control(request, "END"):
            self._sums.pop(sequence, None)
        else:
            self._sums[sequence] = total
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)])


def _control(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
