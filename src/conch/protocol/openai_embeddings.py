"""`POST /v1/embeddings` of the OpenAI API: what a body asks for, and the answer."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from conch.protocol.openai_fields import Fields, read_object
from conch.tensor import Buffer

# The API's own limit.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCall:
    """What is asked for. `inputs` are texts, or texts as token ids; none is empty, and all are of one kind."""

    model: str
    inputs: Sequence[str | Sequence[int]]
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def read_embedding(body: Buffer) -> EmbeddingCall:
    """Read the body of a request for embeddings. Raises InvalidField."""
    fields = Fields(read_object(body))
    model = fields.required_text("model")
    inputs = fields.prompts("input", MAX_INPUTS)
    if not all(inputs):
        raise fields.wrong("input", f"'input' must not hold an empty text, as number {_empty(inputs)} is")
    if len({isinstance(each, str) for each in inputs}) > 1:
        raise fields.wrong("input", "'input' must hold either texts or token ids, not both")
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise fields.wrong("encoding_format", f"'encoding_format' must be 'float' or 'base64', got '{encoding}'")
    dimensions = fields.integer("dimensions")
    if dimensions is not None and dimensions < 1:
        raise fields.wrong("dimensions", f"'dimensions' must be at least 1, got {dimensions}")
    fields.take("user")
    fields.done()
    return EmbeddingCall(
        model=model, inputs=inputs, encoding="float" if encoding == "float" else "base64", dimensions=dimensions
    )


def embeddings(name: str, vectors: Sequence[npt.NDArray[np.float32]], prompt_tokens: int, encoding: str) -> bytes:
    """Encode one vector for each input, as numbers or as base64 of their little-endian FP32 bytes."""
    data = [
        {"object": "embedding", "index": index, "embedding": _embedding(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    document = {"object": "list", "data": data, "model": name, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _embedding(vector: npt.NDArray[np.float32], encoding: str) -> Any:
    contiguous = np.ascontiguousarray(vector, np.float32)
    return contiguous if encoding == "float" else base64.b64encode(contiguous.tobytes()).decode("ascii")


def _empty(inputs: Sequence[str | Sequence[int]]) -> int:
    return next(index for index, each in enumerate(inputs) if not each)
