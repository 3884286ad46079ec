"""What an answer of a model must look like, by its metadata: an answer of status 200 may be garbage nevertheless."""

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import orjson

from conch.domain.tensor import BYTES, NUMPY_DTYPES
from conch.measure.bench.generator import AnswerCheck
from conch.measure.bench.targets.target import BenchTarget, Protocol, TargetModel

_SHOWN_BYTES = 80
_SHOWN_CHARACTERS = 200
_DECODER = json.JSONDecoder()
_BF16_BYTES = 2


def answer_check(target: BenchTarget) -> AnswerCheck | None:
    """Return the check of a target's answers; None for the OpenAI API, whose answers are parsed anyway."""
    if target.protocol is Protocol.HTTP:
        return HttpAnswerCheck(target.model)
    if target.protocol is Protocol.GENERATE:
        return GenerateAnswerCheck(target.model)
    if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM):
        return GrpcAnswerCheck(target.model, complete=target.protocol is Protocol.GRPC)
    return None


class _Malformed(Exception):
    """An answer that is not one. The message says why."""


class _ModelCheck(AnswerCheck):
    """Of one model. `complete`: each declared output must be there."""

    def __init__(self, model: TargetModel, *, complete: bool = True) -> None:
        self._model = model
        self._datatypes = {output.name: output.datatype for output in model.outputs}
        self._complete = complete

    def problem(self, body: bytes) -> str:
        try:
            self._check(body)
        except _Malformed as error:
            return str(error)
        return ""

    def _check(self, body: bytes) -> None:
        """Check an answer. Raises _Malformed."""
        raise NotImplementedError

    def _check_model(self, name: object, version: object) -> None:
        """Compare what the answer says of the model; servers may leave it out."""
        if name and name != self._model.name:
            raise _Malformed(f"the answer is of model {_shown(name)}, not of '{self._model.name}'")
        if version and self._model.version and version != self._model.version:
            raise _Malformed(f"the answer is of version {_shown(version)}, not of '{self._model.version}'")

    def _check_names(self, names: Iterable[str]) -> None:
        given = set(names)
        missing = [name for name in self._datatypes if name not in given]
        if missing and (self._complete or not given):
            raise _Malformed(f"output '{missing[0]}' is missing in the answer")

    def _check_output(self, name: object, datatype: object, shape: object) -> int | None:
        """Return the bytes that an output must have, None if its datatype has no fixed size."""
        if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
            raise _Malformed("an output has no name, datatype or shape")
        declared = self._datatypes.get(name, datatype)
        if datatype.removeprefix("TYPE_") != declared.removeprefix("TYPE_"):
            raise _Malformed(f"output '{name}' is {_shown(datatype)}, not {declared} as in the metadata")
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise _Malformed(f"output '{name}' has the shape {_shown(shape)}")
        if datatype == "BF16":
            return _BF16_BYTES * prod(shape)
        if datatype == BYTES or datatype not in NUMPY_DTYPES:
            return None
        return int(NUMPY_DTYPES[datatype].itemsize) * prod(shape)


class HttpAnswerCheck(_ModelCheck):
    """Of a v2 answer over HTTP: JSON, or JSON followed by binary outputs."""

    def _check(self, body: bytes) -> None:
        document, end = _json_object(body)
        self._check_model(document.get("model_name"), document.get("model_version"))
        outputs = document.get("outputs")
        if not isinstance(outputs, list):
            raise _Malformed("the answer has no outputs")
        for output in outputs:
            if not isinstance(output, dict):
                raise _Malformed("an output is not a JSON object")
            end += self._check_content(output, len(body) - end)
        if end != len(body):
            raise _Malformed(f"the answer has {len(body) - end} bytes more than its outputs")
        self._check_names(output["name"] for output in outputs)

    def _check_content(self, output: Mapping[str, Any], left: int) -> int:
        """Return how many binary bytes an output has, of those `left`. Raises _Malformed."""
        name, shape = output.get("name"), output.get("shape")
        wanted = self._check_output(name, output.get("datatype"), shape)
        parameters = output.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        size = parameters.get("binary_data_size")
        if size is None:
            if "shared_memory_region" not in parameters:
                _check_data(name, output.get("data"), shape)
            return 0
        if not isinstance(size, int) or size < 0 or (wanted is not None and size != wanted):
            raise _Malformed(f"output '{name}' has {_shown(size)} bytes for the shape {_shown(shape)}")
        if size > left:
            raise _Malformed(f"output '{name}' is cut off: {left} of {size} bytes")
        return size


class GenerateAnswerCheck(_ModelCheck):
    """Of an answer of generate, or of one event of generate_stream: outputs beside each other."""

    def _check(self, body: bytes) -> None:
        document, end = _json_object(body)
        if end != len(body):
            raise _Malformed(f"the answer has {len(body) - end} bytes after its JSON")
        self._check_model(document.get("model_name"), document.get("model_version"))
        if self._datatypes and not self._datatypes.keys() & document.keys():
            raise _Malformed(f"the answer has none of the outputs {', '.join(self._datatypes)}")


class GrpcAnswerCheck(_ModelCheck):
    """Of a ModelInferResponse."""

    def _check(self, body: bytes) -> None:
        from google.protobuf.message import DecodeError

        from conch.domain.triton_messages import service_pb2

        try:
            message = service_pb2.ModelInferResponse.FromString(body)
        except DecodeError:
            raise _Malformed("the answer is not a ModelInferResponse") from None
        self._check_model(message.model_name, message.model_version)
        raw = message.raw_output_contents
        shared = any("shared_memory_region" in output.parameters for output in message.outputs)
        if raw and not shared and len(raw) != len(message.outputs):
            raise _Malformed(f"the answer has {len(message.outputs)} outputs and contents of {len(raw)}")
        for index, output in enumerate(message.outputs):
            wanted = self._check_output(output.name, output.datatype, list(output.shape))
            if raw and not shared and wanted is not None and len(raw[index]) != wanted:
                shape = _shown(list(output.shape))
                raise _Malformed(f"output '{output.name}' has {len(raw[index])} bytes for the shape {shape}")
            if not raw and not shared and prod(output.shape) and not output.HasField("contents"):
                raise _Malformed(f"output '{output.name}' has no contents")
        self._check_names(output.name for output in message.outputs)


def leading_json(body: bytes) -> tuple[Any, int]:
    """Return the JSON value at the start of a body, and where it ends. Raises ValueError, RecursionError."""
    try:
        return orjson.loads(body), len(body)
    except ValueError:  # the header with its length is not at hand; JSON in latin-1 has the same offsets as the bytes
        _, end = _DECODER.raw_decode(body.decode("latin-1"))
        return json.loads(body[:end]), end


def _json_object(body: bytes) -> tuple[dict[str, Any], int]:
    """Return the JSON object at the start of an answer, and where it ends. Raises _Malformed."""
    try:
        document, end = leading_json(body)
    except (ValueError, RecursionError):
        raise _Malformed(f"the answer is not valid JSON: {body[:_SHOWN_BYTES]!r}") from None
    if not isinstance(document, dict):
        raise _Malformed(f"the answer is not a JSON object: {body[:_SHOWN_BYTES]!r}")
    if document.get("error"):
        raise _Malformed(f"an error in an answer of status 200: {_shown(document['error'])}")
    return document, end


def _check_data(name: object, data: object, shape: Any) -> None:
    """Compare the elements of a JSON array, flat or nested, with the shape."""
    if not isinstance(data, list):
        raise _Malformed(f"output '{name}' has no data")
    count = prod(shape)
    nested = bool(data) and isinstance(data[0], list)
    if len(data) != (shape[0] if nested and shape else count):
        raise _Malformed(f"output '{name}' has {len(data)} elements for the shape {_shown(shape)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
