"""Structured output specifications as OpenVINO GenAI's `StructuredOutputConfig`."""

from __future__ import annotations

import json
import re
from typing import Any

import openvino_genai as genai


def structure_of(kind: str, value: str) -> Any:
    """Convert kind and value of a `conch.domain.generation.StructuredOutput`."""
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
