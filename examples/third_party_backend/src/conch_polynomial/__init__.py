"""`backend: "polynomial"`: Y = c0 + c1·X + c2·X² + …, with the coefficients in a text file.

All that a backend needs for Conch: it says what a model takes and gives, and computes on arrays in a thread. Batching,
queues, protocols, metrics and reloads are the server's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import ModelLoadError
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.model_file import model_path
from conch.server.backends.signature import Signature, TensorInfo, check_signature, complete_document
from conch.server.backends.threaded import Arrays, ThreadedInstance

_MODEL_FILE = "coefficients.txt"

# The first dimension is the batch; -1 is any size.
_SIGNATURE = Signature(
    inputs=(TensorInfo("X", "FP32", (-1, -1)),),
    outputs=(TensorInfo("Y", "FP32", (-1, -1)),),
)


class PolynomialBackend(Backend):
    """One for all models of the server."""

    name = "polynomial"
    default_model_filename = _MODEL_FILE

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add inputs, outputs and batching to a configuration that leaves them out."""
        return complete_document(source.config.document, _SIGNATURE, default_max_batch_size=64)

    def instance(self, plan: InstancePlan) -> Instance:
        """Make an instance; it is loaded in its `start`."""
        return PolynomialInstance(plan)


class PolynomialInstance(ThreadedInstance):
    """One polynomial, in its own thread."""

    def load(self) -> None:
        """Read the coefficients and check that the configuration fits."""
        path = model_path(self.plan.source, _MODEL_FILE, self.plan.name)
        check_signature(self.plan.source.config, _SIGNATURE)
        try:
            self._coefficients = [np.float32(word) for word in path.read_text().split()]
        except ValueError as error:
            raise ModelLoadError(f"'{path}' must hold numbers: {error}") from error

    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Compute Y for a batch: requests are joined before and cut apart afterwards."""
        x = inputs["X"]
        y = np.zeros_like(x)
        for coefficient in reversed(self._coefficients):
            y = y * x + coefficient
        return {"Y": y}
