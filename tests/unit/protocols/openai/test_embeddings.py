"""The bodies and answers of /v1/embeddings."""

import base64
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.protocols.openai.embeddings import MAX_INPUTS, embeddings, read_embedding
from conch.protocols.openai.fields import InvalidField


def read(**fields: Any) -> Any:
    return read_embedding(orjson.dumps({"model": "m", **fields}))


@pytest.mark.parametrize(
    ("sent", "inputs"),
    [
        ("one text", ["one text"]),
        (["one", "two"], ["one", "two"]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_every_form_of_input_is_read(sent: Any, inputs: Any) -> None:
    call = read(input=sent, user="somebody")
    assert (call.model, call.inputs, call.encoding, call.dimensions) == ("m", inputs, "float", None)
    assert read(input=sent, encoding_format="base64", dimensions=3).dimensions == 3
    assert read(input=sent, dimensions=0).dimensions is None
    harmless = {"add_special_tokens": True, "priority": 0, "embed_dtype": "float32", "cache_salt": None}
    assert read(input=sent, truncate_prompt_tokens=-1, truncation_side="left", **harmless).truncate == -1


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "input", "must be a string"),
        ({"input": []}, "input", "must be a string"),
        ({"input": {"a": 1}}, "input", "must be a string"),
        ({"input": ["one", ""]}, "input", "empty text, as number 1"),
        ({"input": [[1], []]}, "input", "empty text, as number 1"),
        ({"input": ["one", [1]]}, "input", "either texts or token ids"),
        ({"input": ["one", 2.5]}, "input", "token ids"),
        ({"input": [True]}, "input", "token ids"),
        ({"input": [-1]}, "input", "token ids"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input", f"{MAX_INPUTS} texts at most, got {MAX_INPUTS + 1}"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64', got 'hex'"),
        ({"input": "x", "dimensions": -1}, "dimensions", "at least 1, or 0 for all, got -1"),
        ({"input": "x", "dimensions": "8"}, "dimensions", "an integer"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or at least 1, got 0"),
        ({"input": "x", "truncation_side": "up"}, "truncation_side", "'left' or 'right', got 'up'"),
        ({"input": "x", "normalize": True}, "normalize", "is not supported"),
        ({"input": "x", "embed_dtype": "float16"}, "embed_dtype", "is not supported"),
        ({"input": "x", "model": None}, "model", "you must provide"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words) as raised:
        read(**fields)
    assert raised.value.param == param


def test_vectors_are_numbers_or_their_bytes() -> None:
    vectors = [*np.arange(6, dtype=np.float32).reshape(2, 3)[:, :2]]
    plain = orjson.loads(embeddings("m", vectors, 7, "float"))
    assert plain["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(entry["object"], entry["index"], entry["embedding"]) for entry in plain["data"]] == [
        ("embedding", 0, [0.0, 1.0]),
        ("embedding", 1, [3.0, 4.0]),
    ]
    coded = orjson.loads(embeddings("m", vectors, 7, "base64"))
    assert np.frombuffer(base64.b64decode(coded["data"][1]["embedding"]), "<f4").tolist() == [3.0, 4.0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["input", "encoding_format", "dimensions", "user"]), ANYTHING) | ANYTHING)
def test_any_json_is_read_or_refused(document: Any) -> None:
    body = {"model": "m", **document} if isinstance(document, dict) else document
    with suppress(InvalidField):
        call = read_embedding(orjson.dumps(body))
        assert all(call.inputs)
