"""Structured output in the fields of the OpenAI API and of vLLM's releases."""

import json
from typing import Any

import pytest

from conch.domain.generation import StructuredOutput
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.requests import read_chat

SCHEMA = {"type": "object"}


def read(**fields: Any) -> StructuredOutput | None:
    messages = [{"role": "user", "content": "hi"}]
    return read_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode()).params.structured


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "json", '{"type":"object"}'),
        ({"guided_json": SCHEMA}, "json", '{"type":"object"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"json": SCHEMA}}, "json", '{"type":"object"}'),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a","b"]'),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "grammar", "root ::= a"),
    ],
)
def test_a_structure_is_read(fields: dict[str, Any], kind: str, value: str) -> None:
    structure = read(**fields)
    assert structure is not None
    assert (structure.kind, structure.value) == (kind, value)


def test_there_is_one_structure_at_most() -> None:
    assert read() is None
    assert read(response_format={"type": "text"}) is None
    with pytest.raises(InvalidField, match="only one of"):
        read(guided_regex="a", structured_outputs={"regex": "b"})
    with pytest.raises(InvalidField, match=r"structured_outputs\.structural_tag"):
        read(structured_outputs={"regex": "b", "structural_tag": "c"})
