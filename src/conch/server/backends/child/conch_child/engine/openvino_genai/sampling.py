"""Sampling parameters as OpenVINO GenAI's `GenerationConfig`."""

from __future__ import annotations

import json
import re
from typing import Any

import openvino_genai as genai

from ..driver import Refused, completion_room
from .options import Options

# Parameters that `GenerationConfig` has under the same name; `generation_config` converts the others.
SAME_NAME = ("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "min_p", "top_p")


def generation_config(params: dict[str, Any], prompt_tokens: int, options: Options, eos: int) -> Any:
    """Return the library's `GenerationConfig` for a prompt of `prompt_tokens`. Raises Refused."""
    room = completion_room(options.context_length, prompt_tokens, params)
    configuration = genai.GenerationConfig()
    configuration.set_eos_token_id(eos)  # also adds it to stop_token_ids
    configuration.max_new_tokens = room
    configuration.min_new_tokens = params.get("min_tokens", 0)
    for name in SAME_NAME:
        if name in params:
            setattr(configuration, name, params[name])
    temperature = params.get("temperature", 1.0)
    configuration.do_sample = temperature > 0
    if temperature > 0:
        configuration.temperature = temperature
        if params.get("top_k", 0) > 0:
            configuration.top_k = params["top_k"]
    if "stop_token_ids" in params:
        configuration.stop_token_ids = set(params["stop_token_ids"])
        if configuration.ignore_eos:  # with which the library would ignore all stop tokens
            configuration.ignore_eos = False
            configuration.eos_token_id = -1
        else:  # the library requires it among them
            configuration.stop_token_ids |= {eos}
    if params.get("logprobs") is not None:
        configuration.logprobs = 1
    if "prompt_logprobs" in params:
        configuration.logprobs = 1
    if "structured" in params:
        configuration.structured_output_config = structure_of(*params["structured"])
    for name, value in options.speculation.items():
        setattr(configuration, name, value)
    try:
        configuration.validate()
    except RuntimeError as error:  # whose last line is the cause
        raise Refused(str(error).strip().splitlines()[-1]) from error
    return configuration


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
