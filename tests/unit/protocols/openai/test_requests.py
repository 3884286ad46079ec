"""Any body of the OpenAI API is decoded or refused with a reason."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import ConchError
from conch.domain.generation import MAX_BIASES, MAX_N, MAX_STOP_CHARACTERS, MAX_STRUCTURE_CHARACTERS
from conch.domain.llm.tensor_form import sampling_params
from conch.domain.tensor import Buffer
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.requests import read_chat, read_completion

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    *(
        "n",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "logprobs",
    ),
    *(
        "top_logprobs",
        "logit_bias",
        "stop_token_ids",
        "stream",
        "stream_options",
        "priority",
        "response_format",
        "tools",
    ),
    *(
        "tool_choice",
        "guided_json",
        "guided_choice",
        "guided_regex",
        "chat_template_kwargs",
        "best_of",
        "echo",
        "suffix",
    ),
    *("parallel_tool_calls", "reasoning_effort", "ignore_eos", "repetition_penalty", "user", "prompt", "messages"),
]
NAME = st.fixed_dictionaries({}, optional={"name": ANYTHING})
CALL = st.fixed_dictionaries({}, optional={"function": NAME | ANYTHING, "type": st.just("function")})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | ANYTHING},
    optional={"content": ANYTHING, "tool_calls": st.lists(CALL | ANYTHING, max_size=2) | ANYTHING},
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4)
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE, max_size=2),
        "tools": st.lists(CALL, max_size=2),
        "tool_choice": CALL,
        "response_format": st.fixed_dictionaries({"type": st.just("json_schema") | ANYTHING, "json_schema": ANYTHING}),
        "logit_bias": st.dictionaries(st.from_regex("[0-9]{1,40}"), SCALARS, max_size=2),
    },
)
BODIES = st.builds(
    lambda fields, shaped: {
        "model": "m",
        "prompt": "p",
        "messages": [{"role": "user", "content": "c"}],
        **fields,
        **shaped,
    },
    FIELDS,
    SHAPED,
)
READERS: list[Callable[[Buffer], Any]] = [read_chat, read_completion]


@given(BODIES | ANYTHING)
def test_any_json_is_read_or_refused(document: Any) -> None:
    body = orjson.dumps(document)
    for read in READERS:
        with suppress(ConchError):
            read(body).params.check()


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for read in READERS:
        with pytest.raises(ConchError):
            read(body)


@given(
    st.dictionaries(
        st.sampled_from([*NAMES, "guided_decoding"]), ANYTHING | st.floats() | st.text("[]{}0e9", max_size=9)
    )
)
def test_any_sampling_parameters_are_read_or_refused(given_parameters: dict[str, Any]) -> None:
    with suppress(ConchError):
        sampling_params(given_parameters).check()


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", ["n", "guided_json", "chat_template_kwargs", "tools", "messages", "nothing"])
def test_deep_nesting_is_refused(read: Callable[[Buffer], Any], name: str) -> None:
    deep = b"[" * 900 + b"]" * 900
    with pytest.raises(InvalidField, match="nested too deeply"):
        read(b'{"model": "m", "%s": %s}' % (name.encode(), deep))
    with pytest.raises(InvalidField, match="could not parse"):
        read(b'{"a":' * 10_000)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be at least 1, got -1"),
        ({"max_tokens": 10**12}, "max_tokens", "max_tokens must be between 1 and 2147483647, got 1000000000000"),
        ({"n": 1000}, "n", f"n must be between 1 and {MAX_N}, got 1000"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "'logit_bias' must map token ids to numbers"),
        (
            {"stop": ["a" * (MAX_STOP_CHARACTERS + 1)]},
            "stop",
            f"a stop string may have {MAX_STOP_CHARACTERS} characters at most, got {MAX_STOP_CHARACTERS + 1}",
        ),
        (
            {"stop_token_ids": [1] * (MAX_BIASES + 1)},
            "stop_token_ids",
            f"stop_token_ids may hold {MAX_BIASES} tokens at most",
        ),
        ({"guided_regex": "a" * (MAX_STRUCTURE_CHARACTERS + 1)}, "response_format", "characters at most, got 1048577"),
        ({"stop": [""]}, "stop", "stop must not hold an empty string"),
    ],
)
def test_a_refusal_names_the_parameter(fields: dict[str, Any], param: str, text: str) -> None:
    messages = [{"role": "user", "content": "c"}]
    with pytest.raises(ConchError) as refusal:
        read_chat(orjson.dumps({"model": "m", "messages": messages, **fields}))
    assert text in refusal.value.message
    assert refusal.value.param == param  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [1] * 50_000}, "prompt"),
        ({"allowed_token_ids": [1] * 50_000}, "prompt"),
        ({"logit_bias": {str(token): 1 for token in range(50_000)}}, "prompt"),
        ({"guided_regex": "a" * 200_000}, "prompt"),
        ({"bad_words": ["a" * 1000] * 200}, "prompt"),
        ({"echo": True, "n": 50}, "n"),
        ({"return_token_ids": True, "n": 50}, "n"),
        ({"prompt_logprobs": 0, "n": 50}, "n"),
    ],
)
def test_what_many_prompts_multiply_is_bounded(fields: dict[str, Any], param: str) -> None:
    """Each prompt is a message to the engine with all parameters; each choice may repeat its prompt."""
    prompt = "a" * 1000
    with pytest.raises(ConchError) as refusal:
        read_completion(orjson.dumps({"model": "m", "prompt": [prompt] * 100, **fields}))
    assert refusal.value.param == param  # type: ignore[attr-defined]
    assert read_completion(orjson.dumps({"model": "m", "prompt": [prompt] * 10, **fields})).prompts == [prompt] * 10
    alone = {**fields, "n": 1}
    if param == "n":
        read_completion(orjson.dumps({"model": "m", "prompt": [prompt * 60] * 100, **alone}))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "content": "x", "tool_calls": 5}, "'messages[0].tool_calls' must be an array"),
        ({"role": "assistant", "tool_calls": [{"function": 5}]}, "must hold calls with a 'function' that has a 'name'"),
        ({"role": [], "content": "x"}, "'messages[0].role' must be one of"),
        ({"role": "user"}, "'messages[0]' has no content"),
        ({"role": "user", "content": [{"type": "video_url"}]}, "must be of type text with a 'text', or image_url"),
        ({"role": "system", "content": [{"type": "image_url"}]}, "only messages of the user may"),
    ],
)
def test_messages_of_wrong_shape(message: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidField) as refusal:
        read_chat(orjson.dumps({"model": "m", "messages": [message]}))
    assert text in refusal.value.message
