"""Large bodies of the OpenAI API in a worker process: messages, prompts and inputs are split off and checked.

The server decodes the rest as it decodes a small body. Messages stay JSON for the chat template; token ids become
32-bit integers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from conch.domain.tensor import Buffer
from conch.protocols.openai.embeddings import MAX_INPUTS
from conch.protocols.openai.fields import Fields, InvalidField, read_object
from conch.protocols.openai.requests import MAX_PROMPTS, read_messages, undecided_in_messages

# Of a body without messages, prompts or inputs: tools, schemas, biases.
MAX_REST_BYTES = 512 * 1024
# Of one call.
MAX_TEXT_BYTES = 16 * 2**20
MAX_TOKEN_IDS = 2**20

_LIMITS = {"prompt": MAX_PROMPTS, "input": MAX_INPUTS}


def split_chat(body: Buffer) -> tuple[dict[str, Any], list[bytes]]:
    """Return metadata for `read_chat`, the body without its messages, and the messages as JSON for the template.

    Raises InvalidField.
    """
    document = read_object(body)
    messages = orjson.dumps(read_messages(Fields(document)))
    meta = {"ignored": undecided_in_messages(document)}
    del document["messages"]
    return meta, [encode_rest(document), messages]


def split_prompts(body: Buffer, name: str) -> tuple[dict[str, Any], list[Buffer]]:
    """Return metadata for `join_prompts`, and the body without the prompts, then each as UTF-8 or 32-bit integers.

    Raises InvalidField, also for too many bytes of text or token ids.
    """
    document = read_object(body)
    prompts = Fields(document).prompts(name, _LIMITS[name])
    del document[name]
    ids = sum(len(prompt) for prompt in prompts if not isinstance(prompt, str))
    if ids > MAX_TOKEN_IDS:
        raise InvalidField(name, f"'{name}' may hold {MAX_TOKEN_IDS} token ids at most, got {ids}")
    parts: list[Buffer] = [
        prompt.encode() if isinstance(prompt, str) else np.array(prompt, "<i4").tobytes() for prompt in prompts
    ]
    size = sum(len(part) for prompt, part in zip(prompts, parts, strict=True) if isinstance(prompt, str))
    if size > MAX_TEXT_BYTES:
        raise InvalidField(name, f"'{name}' may hold {MAX_TEXT_BYTES} bytes of text at most, got {size}")
    return {"texts": [isinstance(prompt, str) for prompt in prompts]}, [encode_rest(document), *parts]


def join_prompts(meta: Mapping[str, Any], parts: Sequence[Buffer]) -> list[str | Sequence[int]]:
    """Return the prompts that `split_prompts` has split off; `parts` are those after the rest of the body."""
    return [
        str(part, "utf-8") if is_text else np.frombuffer(part, "<i4").tolist()
        for is_text, part in zip(meta["texts"], parts, strict=True)
    ]


def encode_rest(document: dict[str, Any]) -> bytes:
    """Encode a request without messages, prompts and inputs. Raises InvalidField if it is too large."""
    rest = orjson.dumps(document)
    if len(rest) > MAX_REST_BYTES:
        raise InvalidField(
            None,
            f"a request without messages, prompts and inputs may have {MAX_REST_BYTES} bytes at most, got {len(rest)}",
        )
    return rest
