"""A question whose tensors stay in shared memory: only where they are travels."""

from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, shared_memory

from benchmarks.harness.payloads import Payload, Question, Wire, http_payload, length_prefixed
from benchmarks.harness.peers import Server


class SharedQuestion:
    """A question to an identity model, its tensors in regions that `server` knows; a context manager.

    All regions hold as much as the inputs have bytes, the output's, too.
    """

    def __init__(self, question: Question, server: Server, wire: Wire) -> None:
        self._question = question
        self._wire = wire
        self._client: Any = (
            http_client.InferenceServerClient(server.http_address)
            if wire.is_http
            else grpc_client.InferenceServerClient(server.grpc_address)
        )
        self._regions: dict[str, Any] = {}
        self._prefix = f"conch-bench-{uuid4().hex}"

    def __enter__(self) -> Self:
        for name, array in self._question.inputs.items():
            self._share(name)
            shared_memory.set_shared_memory_region(self._regions[name], [array])
        self._share(self._question.output)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for region in self._regions.values():
            shared_memory.destroy_shared_memory_region(region)
        for name in self._regions:
            self._client.unregister_system_shared_memory(self._region(name))
        self._client.close()

    def verify(self) -> None:
        """Put the question by `tritonclient`; AssertionError when the answer is wrong."""
        (array,) = self._question.inputs.values()
        answer = self._regions[self._question.output]
        shared_memory.set_shared_memory_region(answer, [np.zeros_like(array)])
        self._client.infer(self._question.model, self._inputs(), outputs=[self._output()])
        self._question.check(shared_memory.get_contents_as_numpy(answer, array.dtype, array.shape))

    def payload(self) -> Payload:
        """Return the request for load generators."""
        if self._wire.is_http:
            return http_payload(self._question, self._inputs(), self._output())
        request = service_pb2.ModelInferRequest(model_name=self._question.model)
        request.inputs.extend(tensor._get_tensor() for tensor in self._inputs())
        request.outputs.append(self._output()._get_tensor())
        return Payload(
            path="/inference.GRPCInferenceService/ModelInfer",
            body=length_prefixed(request.SerializeToString()),
            headers={"content-type": "application/grpc", "te": "trailers"},
        )

    def _share(self, name: str) -> None:
        region, size = self._region(name), self._question.input_bytes
        self._regions[name] = shared_memory.create_shared_memory_region(region, f"/{region}", size)
        self._client.register_system_shared_memory(region, f"/{region}", size)

    def _region(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _inputs(self) -> list[Any]:
        library = http_client if self._wire.is_http else grpc_client
        inputs = []
        for name, array in self._question.inputs.items():
            tensor = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_shared_memory(self._region(name), array.nbytes)
            inputs.append(tensor)
        return inputs

    def _output(self) -> Any:
        library = http_client if self._wire.is_http else grpc_client
        output = library.InferRequestedOutput(self._question.output)
        output.set_shared_memory(self._region(self._question.output), self._question.input_bytes)
        return output
