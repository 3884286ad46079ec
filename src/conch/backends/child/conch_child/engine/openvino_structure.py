"""What an answer must match, as OpenVINO GenAI wants to be told it."""

from __future__ import annotations

import json
import re
from typing import Any

import openvino_genai as genai


def structure_of(kind: str, value: str) -> Any:
    """Return the library's configuration of a `conch.generation.StructuredOutput`."""
    structure = genai.StructuredOutputConfig()
    if kind in ("json", "json_object"):
        structure.json_schema = value or '{"type": "object"}'
    elif kind == "regex":
        structure.regex = value
    elif kind == "grammar":
        structure.grammar = value
    else:
        structure.regex = "|".join(f"({re.escape(text)})" for text in json.loads(value))
    return structure
