"""One question to a model and its bytes on each wire, for load generators that send the same bytes again and again."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

Array = npt.NDArray[Any]

_FRAME = struct.Struct(">BI")

SEQUENCE_ID = 10**9
"""The one in the request from which `wrk/sequence.lua` makes all others."""


class Wire(StrEnum):
    """How tensors travel: JSON or binary over HTTP, unary or streaming gRPC, or not at all, being in shared memory."""

    JSON = "json"
    BINARY = "binary"
    GRPC = "grpc"
    STREAM = "stream"
    SHARED_HTTP = "shm-http"
    SHARED_GRPC = "shm-grpc"

    @property
    def is_http(self) -> bool:
        """Whether it is HTTP without gRPC."""
        return self in (Wire.JSON, Wire.BINARY, Wire.SHARED_HTTP)

    @property
    def is_shared(self) -> bool:
        """Whether tensors stay in shared memory."""
        return self in (Wire.SHARED_HTTP, Wire.SHARED_GRPC)


@dataclass(frozen=True)
class Question:
    """What is asked of a model, and what a right answer is.

    `inputs` maps tensor names to arrays in the shape that is sent (batch dimension included where the model has one);
    `check` is given the tensor `output` of the answer and raises AssertionError when it is wrong.

    `responses` is how many a decoupled model gives, each of which must be right. `sequence` is in how many requests a
    sequence asks the same, the last of which must be answered right; 0 where the model knows no sequences.
    """

    model: str
    inputs: Mapping[str, Array]
    output: str
    check: Callable[[Array], None]
    responses: int = 1
    sequence: int = 0

    @property
    def input_bytes(self) -> int:
        """Size of all input tensors."""
        return sum(array.nbytes for array in self.inputs.values())


@dataclass(frozen=True)
class Payload:
    """One request as bytes: where it goes, with which headers, and how many answers it brings."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    answers: int = 1

    @property
    def message(self) -> bytes:
        """The first message of a body for gRPC, without its frame."""
        _, size = _FRAME.unpack_from(self.body)
        return self.body[_FRAME.size : _FRAME.size + size]

    @property
    def is_sequence(self) -> bool:
        """Whether sequences are to be made of it."""
        return "sequence-length" in self.headers


def encode(question: Question, wire: Wire, messages: int = 1) -> Payload:
    """Return the request for `wire`; `messages` is how many times a stream carries the question.

    That of a sequence is one in its midst: the load generator makes the others of it.
    """
    if wire.is_http:
        return _http(question, binary=wire is Wire.BINARY)
    method = "ModelInfer" if wire is Wire.GRPC else "ModelStreamInfer"
    return Payload(
        path=f"/inference.GRPCInferenceService/{method}",
        body=length_prefixed(grpc_message(question)) * messages,
        headers={"content-type": "application/grpc", "te": "trailers"},
        answers=messages,
    )


def grpc_message(question: Question) -> bytes:
    """Return the question as a serialised ModelInferRequest with raw tensors."""
    request = service_pb2.ModelInferRequest(model_name=question.model)
    for name, array in question.inputs.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        request.raw_input_contents.append(_raw(array))
    request.outputs.add(name=question.output)
    return bytes(request.SerializeToString())


def _http(question: Question, *, binary: bool) -> Payload:
    inputs = []
    for name, array in question.inputs.items():
        tensor = http_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    return http_payload(question, inputs, http_client.InferRequestedOutput(question.output, binary_data=binary))


def http_payload(
    question: Question, inputs: list[http_client.InferInput], output: http_client.InferRequestedOutput
) -> Payload:
    """Return the request with these inputs and this output."""
    body, header_length = http_client.InferenceServerClient.generate_request_body(
        inputs, outputs=[output], sequence_id=SEQUENCE_ID if question.sequence else 0
    )
    headers = {"content-type": "application/json"}
    if header_length is not None:
        headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(header_length)}
    if question.sequence:
        headers["sequence-length"] = str(question.sequence)
    return Payload(path=f"/v2/models/{question.model}/infer", body=bytes(body), headers=headers)


def length_prefixed(message: bytes) -> bytes:
    """Frame a message as gRPC over HTTP/2 does: one byte for "not compressed", four for the length."""
    return _FRAME.pack(0, len(message)) + message


def _raw(array: Array) -> bytes:
    if array.dtype == np.object_:
        return bytes(serialize_byte_tensor(array).item())
    return array.tobytes()
