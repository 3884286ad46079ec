"""Requests and responses of `POST /v1/embeddings` of the OpenAI API."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from conch.domain.tensor import Buffer
from conch.protocols.openai.field_rules import EMBEDDING
from conch.protocols.openai.fields import Fields, IgnoredField, read_object

# As in OpenAI's API.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCall:
    """A request for embeddings. `inputs` are not empty; all are texts, or all are token ids.

    `truncate` is the number of tokens to keep of each, the last ones if `keep_last`; -1 is the model's maximum.
    """

    model: str
    inputs: Sequence[str | Sequence[int]]
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate: int | None = None
    keep_last: bool = False
    ignored: Sequence[IgnoredField] = ()


def read_embedding(body: Buffer, inputs: Sequence[str | Sequence[int]] | None = None) -> EmbeddingCall:
    """Decode the body of a request for embeddings. A worker may have split the `inputs` from it.

    Raises InvalidField.
    """
    fields = Fields(read_object(body, checked=inputs is not None), EMBEDDING)
    model = fields.required_text("model")
    inputs = inputs or fields.prompts("input", MAX_INPUTS)
    if not all(inputs):
        raise fields.wrong("input", f"'input' must not hold an empty text, as number {_empty(inputs)} is")
    if len({isinstance(item, str) for item in inputs}) > 1:
        raise fields.wrong("input", "'input' must hold either texts or token ids, not both")
    encoding = fields.text("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise fields.wrong("encoding_format", f"'encoding_format' must be 'float' or 'base64', got '{encoding}'")
    dimensions = fields.integer("dimensions")
    if dimensions is not None and dimensions < 0:
        raise fields.wrong("dimensions", f"'dimensions' must be at least 1, or 0 for all, got {dimensions}")
    truncate, keep_last = truncation(fields)
    return EmbeddingCall(
        model=model,
        inputs=inputs,
        encoding="float" if encoding == "float" else "base64",
        dimensions=dimensions or None,  # clients of infinity send 0
        truncate=truncate or None,
        keep_last=keep_last,
        ignored=fields.done(),
    )


def truncation(fields: Fields) -> tuple[int, bool]:
    """Return how many tokens to keep, 0 for none named, -1 for the model's maximum, and whether the last ones."""
    limit, side = fields.integer("truncate_prompt_tokens"), fields.text("truncation_side") or "right"
    if limit is not None and (limit < -1 or limit == 0):
        text = f"'truncate_prompt_tokens' must be -1 or at least 1, got {limit}"
        raise fields.wrong("truncate_prompt_tokens", text)
    if side not in ("left", "right"):
        raise fields.wrong("truncation_side", f"'truncation_side' must be 'left' or 'right', got '{side}'")
    return limit or 0, side == "left"


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
    return next(index for index, text in enumerate(inputs) if not text)
