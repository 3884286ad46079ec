"""Runs the model.onnx beside it through onnxruntime, for a server that has only the Python backend."""

from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Inputs and outputs are those of the ONNX file; requests are joined along axis 0 and executed as one batch."""

    def initialize(self, args):
        """Open the session with onnxruntime's own defaults."""
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def execute(self, requests):
        """Run all requests in one call and give each its rows."""
        columns = {name: [_array(request, name) for request in requests] for name in self._inputs}
        sizes = [len(array) for array in columns[self._inputs[0]]]
        joined = {name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for name, arrays in columns.items()}
        results = self._session.run(self._outputs, joined)
        parts = [np.split(result, np.cumsum(sizes)[:-1]) for result in results]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(*named) for named in zip(self._outputs, rows, strict=True)])
            for rows in zip(*parts, strict=True)
        ]


def _array(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
