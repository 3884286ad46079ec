"""One small client for both protocols, so that a test says once what holds for both."""

from typing import Any, Self

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.support.server_process import ConchProcess

_WIRE = {np.dtype(np.float32): "FP32", np.dtype(np.int32): "INT32", np.dtype(np.int64): "INT64"}


class Client:
    """The official client of one protocol, "http" or "grpc", for arrays."""

    def __init__(self, conch: ConchProcess, protocol: str) -> None:
        self._module = {"http": http, "grpc": grpc}[protocol]
        address = {"http": conch.http, "grpc": conch.grpc}[protocol]
        limits = {"network_timeout": 30, "concurrency": 8} if protocol == "http" else {}
        self.client = self._module.InferenceServerClient(address, **limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def inputs(self, arrays: dict[str, Any]) -> list[Any]:
        """Make the client's inputs."""
        inputs = []
        for name, array in arrays.items():
            given = self._module.InferInput(name, list(array.shape), _WIRE.get(array.dtype, "BYTES"))
            given.set_data_from_numpy(array)
            inputs.append(given)
        return inputs

    def ask(self, model: str, arrays: dict[str, Any], *, outputs: tuple[str, ...] = (), **fields: Any) -> Any:
        """Return the result of one request."""
        wanted = [self._module.InferRequestedOutput(name) for name in outputs] or None
        return self.client.infer(model, self.inputs(arrays), outputs=wanted, **fields)

    def statistics(self, model: str) -> dict[str, Any]:
        """Return the statistics of the one version of a model."""
        keywords = {"as_json": True} if self._module is grpc else {}
        (row,) = self.client.get_inference_statistics(model, **keywords)["model_stats"]
        return dict(row)


def response_id(result: Any) -> str:
    """The id of a result of either protocol."""
    response = result.get_response()
    return str(response.get("id", "") if isinstance(response, dict) else response.id)
