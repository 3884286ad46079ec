"""`conch.TestClient`: call declared models in tests, without a server, sockets or processes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType, TracebackType
from typing import Any, Self

import orjson
from google.protobuf.json_format import ParseDict

from conch.base.errors import BackendError, Code, NotFound
from conch.domain.config.from_proto import to_model_config
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.protocols.v2_json import generate
from conch.server.backends.child.conch_child.python.api.responses import InferenceResponse
from conch.server.backends.child.conch_child.python.api.tensor import Tensor as ModelTensor
from conch.server.backends.child.conch_child.python.app.declare import MODEL
from conch.server.backends.child.conch_child.python.app.endpoints import DeclaredModel, endpoints_of, import_app
from conch.server.backends.child.conch_child.python.app.function_model import model_class

_ARGUMENTS = {"model_instance_kind": "CPU", "model_instance_device_id": "0"}
_FINAL = None


class TestClient:
    """Calls models as `POST /v2/models/NAME/generate` does: JSON in, JSON out, with the same checks and conversions.

    `source` is a declared function or class, a module, or the path of a Python file. Models run in this process, so
    that breakpoints, patches and coverage work; they are set up at their first call.
    """

    __test__ = False  # for pytest, which takes it for a class of tests

    def __init__(self, source: Any) -> None:
        module = source
        if isinstance(source, str | Path):
            module = import_app(str(source))
        elif MODEL in getattr(source, "__dict__", ()) and not isinstance(source, ModuleType):
            module = ModuleType(source.__module__)
            module.__dict__[source.__name__] = source
        self._endpoints: dict[str, DeclaredModel] = endpoints_of(module)
        self._models: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Call the models' `teardown`."""
        for model in self._models.values():
            model.finalize()
        self._models.clear()

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return sorted(self._endpoints)

    def generate(self, inputs: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """Return the outputs for inputs as JSON values. Without `model`, the only one is meant.

        Raises InvalidRequest for inputs that the server refuses, BackendError for an exception of the model, NotFound.
        """
        [document] = self.generate_stream(inputs, model)
        return document

    def generate_stream(self, inputs: Mapping[str, Any], model: str = "") -> Iterator[dict[str, Any]]:
        """Yield the outputs of each response. Raises as `generate`."""
        if not model and len(self._endpoints) == 1:
            [model] = self._endpoints
        if model not in self._endpoints:
            raise NotFound(f"unknown model '{model}', name one of: {', '.join(self._endpoints)}")
        endpoint = self._endpoints[model]
        config = to_model_config(ParseDict({**endpoint.config(), "name": model}, ConfigMessage()))
        request = _Request(config, orjson.dumps(dict(inputs), option=orjson.OPT_SERIALIZE_NUMPY))
        if model not in self._models:
            self._models[model] = model_class(endpoint)()
            self._models[model].initialize(_ARGUMENTS)
        returned = self._models[model].execute([request])
        structured = generate.structured_tensors(config)
        for response in returned or iter(request.responses.get, _FINAL):
            yield _document(config.name, response, structured)


class _Request:
    """A request of `execute`, and the sender of its responses."""

    def __init__(self, config: ModelConfig, body: bytes) -> None:
        decoded = generate.decode_request(config, None, body, Timeline())
        missing = {spec.name for spec in config.inputs if not spec.optional} - {
            tensor.name for tensor in decoded.inputs
        }
        if missing:
            raise BackendError(f"inputs are missing: {', '.join(sorted(missing))}", Code.INVALID_ARG)
        self._inputs = [
            ModelTensor.from_wire(tensor.name, tensor.datatype, tensor.shape, bytearray(tensor.data))
            for tensor in decoded.inputs
        ]
        self.responses: SimpleQueue[InferenceResponse | None] = SimpleQueue()

    def inputs(self) -> list[ModelTensor]:
        """Return the tensors."""
        return self._inputs

    def get_response_sender(self) -> Self:
        """Return the sender, which is this object."""
        return self

    def is_cancelled(self) -> bool:
        """Return False: a test waits for its responses."""
        return False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Keep a response."""
        if response is not None:
            self.responses.put(response)
        if flags:
            self.responses.put(_FINAL)


def _document(model: str, response: InferenceResponse, structured: frozenset[str]) -> dict[str, Any]:
    error = response.error()
    if error is not None:
        raise BackendError(error.message(), Code(int(error.code())))
    tensors = []
    for tensor in response.output_tensors():
        name, datatype, shape, data, _ = tensor.wire()
        tensors.append(Tensor(name, datatype, list(shape), data if isinstance(data, bytes) else data.tobytes()))
    encoded = generate.encode_response(InferResponse(model, 1, tensors), structured)
    document: dict[str, Any] = json.loads(encoded)  # which reads NaN
    return {name: value for name, value in document.items() if name not in ("model_name", "model_version")}
