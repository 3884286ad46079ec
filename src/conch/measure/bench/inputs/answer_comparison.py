"""Compare answers with checked ones: tensors exactly or with a tolerance for floats, texts exactly."""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, pack_bytes, unpack_bytes
from conch.measure.bench.inputs.text.sessions import answer_text
from conch.measure.bench.prepared_request import Answer, ExpectedAnswer

_FLOATS = ("FP16", "BF16", "FP32", "FP64")
_ABSOLUTE_TOLERANCE = 1e-6
_MAX_SHOWN = 60
_DECODER = json.JSONDecoder()


class ExpectedTensors(ExpectedAnswer):
    """Named outputs. Others of the answer are not compared, nor are ids, versions and parameters."""

    def __init__(self, outputs: Mapping[str, Tensor], tolerance: float) -> None:
        self._outputs = {name: (tensor.datatype, tensor.shape, bytes(tensor.data)) for name, tensor in outputs.items()}
        self._tolerance = tolerance
        self._equal = b""  # the last body that was equal: most answers are the same bytes

    def difference(self, answer: Answer) -> str:
        if self._equal and answer.body == self._equal:
            return ""
        try:
            outputs = self._read(answer.body)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return f"not well-formed: {error}"
        for name, (datatype, shape, data) in self._outputs.items():
            output = outputs.get(name)
            if output is None:
                return f"output '{name}' is missing"
            if tuple(output.shape) != tuple(shape):
                return f"output '{name}' has shape {list(output.shape)}, expected {list(shape)}"
            if bytes(output.data) != data:
                found = self._compared(name, datatype, bytes(output.data), data)
                if found:
                    return found
        self._equal = answer.body
        return ""

    @abstractmethod
    def _read(self, body: bytes) -> Mapping[str, Tensor]:
        """Return the outputs of an answer. Raises ValueError and others for one that is not well-formed."""

    def _compared(self, name: str, datatype: str, got: bytes, wanted: bytes) -> str:
        if datatype == BYTES:
            pairs = enumerate(zip(unpack_bytes(got), unpack_bytes(wanted), strict=True))
            at, (was, should) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            return f"output '{name}' element {at} is {was[:_MAX_SHOWN]!r}, expected {should[:_MAX_SHOWN]!r}"
        values, expected = _numbers(got, datatype), _numbers(wanted, datatype)
        if datatype in _FLOATS:
            close = np.isclose(values, expected, rtol=self._tolerance, atol=_ABSOLUTE_TOLERANCE, equal_nan=True)
            wrong = np.flatnonzero(~close)
        else:
            wrong = np.flatnonzero(values != expected)
        if not len(wrong):
            return ""
        first = int(wrong[0])
        count = f" ({len(wrong)} elements differ)" if len(wrong) > 1 else ""
        return f"output '{name}' element {first} is {values[first]:g}, expected {expected[first]:g}{count}"


def _numbers(data: bytes, datatype: str) -> Any:
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return np.frombuffer(data, NUMPY_DTYPES[datatype])


class ExpectedHttpTensors(ExpectedTensors):
    """Of a v2 answer over HTTP: JSON, or JSON followed by binary outputs."""

    def _read(self, body: bytes) -> Mapping[str, Tensor]:
        return read_http_outputs(body)


class ExpectedGrpcTensors(ExpectedTensors):
    """Of a ModelInferResponse."""

    def _read(self, body: bytes) -> Mapping[str, Tensor]:
        return read_grpc_outputs(body)


class ExpectedGrpcResponses(ExpectedGrpcTensors):
    """Of all responses of a ModelStreamInfer, in their order."""

    def difference(self, answer: Answer) -> str:
        if found := super().difference(answer):
            return found
        surplus = [name for name in self._read(answer.body) if name not in self._outputs]
        return f"output '{surplus[0]}' is not expected" if surplus else ""


class ExpectedText(ExpectedAnswer):
    """The text of an answer of the OpenAI API or of generate."""

    def __init__(self, text: str) -> None:
        self._text = text

    def difference(self, answer: Answer) -> str:
        text = answer_text(answer) or generated_text(answer.body)
        if text == self._text:
            return ""
        pairs = enumerate(zip(text, self._text, strict=False))
        at = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(text), len(self._text)))
        got, wanted = text[at : at + _MAX_SHOWN], self._text[at : at + _MAX_SHOWN]
        return f"the text differs at character {at}: {got!r}, expected {wanted!r}"


class ExpectedEmbedding(ExpectedAnswer):
    """The vectors of an answer of /v1/embeddings."""

    def __init__(self, body: bytes, tolerance: float) -> None:
        self._vectors = _vectors(body)
        self._tolerance = tolerance

    def difference(self, answer: Answer) -> str:
        try:
            vectors = _vectors(answer.body)
        except (ValueError, KeyError, TypeError) as error:
            return f"not well-formed: {error}"
        if vectors.shape != self._vectors.shape:
            return f"embeddings of shape {list(vectors.shape)}, expected {list(self._vectors.shape)}"
        far = float(np.max(np.abs(vectors - self._vectors), initial=0.0))
        limit = self._tolerance * float(np.max(np.abs(self._vectors), initial=0.0)) + _ABSOLUTE_TOLERANCE
        return "" if far <= limit else f"the embedding differs by up to {far:g}"


def _vectors(body: bytes) -> Any:
    return np.array([entry["embedding"] for entry in orjson.loads(body)["data"]], np.float64)


def generated_text(body: bytes) -> str:
    """Return `text_output` of an answer to generate, "" if there is none."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return ""
    return str(document.get("text_output", "")) if isinstance(document, dict) else ""


def read_http_outputs(body: bytes) -> dict[str, Tensor]:
    """Return the outputs of a v2 answer. The JSON ends where the binary outputs begin, as its sizes say.

    Raises ValueError, KeyError or TypeError for an answer that is not well-formed.
    """
    # The header with the length of the JSON is not at hand; JSON in latin-1 has the same offsets as the bytes.
    try:
        document, end = orjson.loads(body), len(body)
    except ValueError:
        document, end = _DECODER.raw_decode(body.decode("latin-1"))
        document = json.loads(body[:end])
    found: dict[str, Tensor] = {}
    for entry in document["outputs"]:
        name, datatype, shape = entry["name"], entry["datatype"], entry["shape"]
        size = (entry.get("parameters") or {}).get("binary_data_size")
        if size is None:
            found[name] = Tensor(name, datatype, shape, _packed(datatype, entry["data"]))
            continue
        if end + size > len(body):
            raise ValueError(f"output '{name}' is cut off")
        found[name] = Tensor(name, datatype, shape, body[end : end + size])
        end += size
    return found


def _packed(datatype: str, data: Any) -> bytes:
    flat = np.array(data, object).ravel().tolist()
    if datatype == BYTES:
        return pack_bytes(flat)
    values = [np.nan if value is None else value for value in flat]
    return np.array(values, NUMPY_DTYPES[datatype]).tobytes()


def read_grpc_outputs(body: bytes) -> dict[str, Tensor]:
    """Return the outputs of ModelInferResponses with raw contents, one after the other. Raises ValueError.

    The name of an output that comes again is followed by the number of its response.
    """
    from conch.domain.triton_messages import service_pb2

    try:
        message = service_pb2.ModelInferResponse.FromString(body)
    except Exception as error:
        raise ValueError(str(error)) from None
    if len(message.raw_output_contents) != len(message.outputs):
        raise ValueError("outputs without raw contents")
    found: dict[str, Tensor] = {}
    seen: Counter[str] = Counter()
    for output, data in zip(message.outputs, message.raw_output_contents, strict=True):
        seen[output.name] += 1
        key = output.name if seen[output.name] == 1 else f"{output.name}, response {seen[output.name]}"
        found[key] = Tensor(output.name, output.datatype, tuple(output.shape), data)
    return found
