"""Encode requests with tensors: KServe v2 over HTTP and gRPC, and Triton's generate."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import orjson

from conch.domain.tensor import Tensor
from conch.measure.bench.generator import ResponseKind
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.targets.server_api import model_path
from conch.measure.bench.targets.target import BenchTarget, ModelKind, Protocol, TargetModel
from conch.protocols.v2_json.data import write_exactly

ParameterMap = Mapping[str, Any]


class TensorRequestEncoder(ABC):
    """Encodes the requests of one model. `response` is how their answers are read."""

    response: ResponseKind

    @abstractmethod
    def encode(self, tensors: Sequence[Tensor], parameters: ParameterMap, id_: str = "") -> tuple[bytes, bytes]:
        """Return head and body of a request (see PreparedRequest)."""


def tensor_encoder(target: BenchTarget, settings: InputSettings) -> TensorRequestEncoder:
    """Return the encoder for a target's protocol."""
    if target.protocol is Protocol.HTTP:
        return _V2Http(target, json_tensors=settings.json_tensors)
    if target.protocol is Protocol.GENERATE:
        return _Generate(target, streaming=settings.streaming)
    return _V2Grpc(target)


def http_head(path: str, content_type: str, *more: str) -> bytes:
    """Return the head of a POST without the fields of the connection."""
    lines = [f"POST {path} HTTP/1.1", f"Content-Type: {content_type}", *more]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


class _V2Http(TensorRequestEncoder):
    response = ResponseKind.UNARY

    def __init__(self, target: BenchTarget, *, json_tensors: bool) -> None:
        self._path = model_path(target.base_path, target.model.name, target.model.version) + "/infer"
        self._json = json_tensors

    def encode(self, tensors: Sequence[Tensor], parameters: ParameterMap, id_: str = "") -> tuple[bytes, bytes]:
        inputs = [self._entry(tensor) for tensor in tensors]
        given = dict(parameters) if self._json else {**parameters, "binary_data_output": True}
        document: dict[str, Any] = {"id": id_} if id_ else {}
        if given:
            document["parameters"] = given
        document["inputs"] = inputs
        header = orjson.dumps(document)
        if self._json:
            return http_head(self._path, "application/json"), header
        length = f"Inference-Header-Content-Length: {len(header)}"
        head = http_head(self._path, "application/octet-stream", length)
        return head, header + b"".join(bytes(tensor.data) for tensor in tensors)

    def _entry(self, tensor: Tensor) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if self._json:
            entry["data"] = orjson.Fragment(json_data(tensor))
        else:
            entry["parameters"] = {"binary_data_size": tensor.nbytes}
        return entry


def json_data(tensor: Tensor) -> bytes:
    """Return the elements as a JSON array. Raises InputError for FP16 and BF16, which have no JSON form."""
    if tensor.datatype in ("FP16", "BF16"):
        raise InputError(f"input '{tensor.name}' is {tensor.datatype}, which JSON cannot have; send binary tensors")
    return write_exactly(tensor)


class _Generate(TensorRequestEncoder):
    """A flat JSON object; one element is sent as a scalar."""

    def __init__(self, target: BenchTarget, *, streaming: bool) -> None:
        streams = streaming and (target.model.decoupled or target.model.kind is ModelKind.LANGUAGE)
        action = "generate_stream" if streams else "generate"
        self.response = ResponseKind.GENERATE_STREAM if streams else ResponseKind.UNARY
        base = model_path(target.base_path, target.model.name, target.model.version)
        self._head = http_head(f"{base}/{action}", "application/json")

    def encode(self, tensors: Sequence[Tensor], parameters: ParameterMap, id_: str = "") -> tuple[bytes, bytes]:
        document: dict[str, Any] = {**parameters, "id": id_} if id_ else dict(parameters)
        for tensor in tensors:
            written = json_data(tensor)
            document[tensor.name] = orjson.Fragment(written[1:-1] if prod(tensor.shape) == 1 else written)
        return self._head, orjson.dumps(document)


class _V2Grpc(TensorRequestEncoder):
    def __init__(self, target: BenchTarget) -> None:
        from conch.measure.bench.targets.kserve_grpc import method_path

        stream = target.protocol is Protocol.GRPC_STREAM
        self.response = ResponseKind.GRPC_STREAM if stream else ResponseKind.UNARY
        self._head = method_path("ModelStreamInfer" if stream else "ModelInfer").encode()
        self._model: TargetModel = target.model

    def encode(self, tensors: Sequence[Tensor], parameters: ParameterMap, id_: str = "") -> tuple[bytes, bytes]:
        from conch.domain.triton_messages import service_pb2
        from conch.protocols.v2_proto.parameters import encode_parameters

        name, version = self._model.name, self._model.version
        message = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=id_)
        encode_parameters(parameters, message.parameters)
        for tensor in tensors:
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(bytes(tensor.data))
        return self._head, message.SerializeToString()
