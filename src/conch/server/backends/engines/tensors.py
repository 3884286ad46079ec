"""Auto-complete configurations of engines' models with the tensors of Triton's vLLM backend, or of pooling models."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.llm.text_form import LABELS, TEXT_PAIR, TEXT_TASK, TOKENIZES
from conch.domain.llm.text_model import Task

# Name, data type, dims; all but the first are optional. See "Model configuration" of Triton's vLLM backend.
_INPUTS = (
    ("text_input", "TYPE_STRING", 1),
    ("stream", "TYPE_BOOL", 1),
    ("sampling_parameters", "TYPE_STRING", 1),
    ("exclude_input_in_output", "TYPE_BOOL", 1),
    ("return_finish_reason", "TYPE_BOOL", 1),
    ("return_cumulative_logprob", "TYPE_BOOL", 1),
    ("return_logprobs", "TYPE_BOOL", 1),
    ("return_num_input_tokens", "TYPE_BOOL", 1),
    ("return_num_output_tokens", "TYPE_BOOL", 1),
)
_OUTPUTS = (
    ("text_output", "TYPE_STRING", -1),
    ("finish_reason", "TYPE_STRING", -1),
    ("cumulative_logprob", "TYPE_FP32", -1),
    ("logprobs", "TYPE_STRING", -1),
    ("num_input_tokens", "TYPE_UINT32", 1),
    ("num_output_tokens", "TYPE_UINT32", -1),
)

_DEFAULT_POOLING_BATCH = 64
# What a pooling model does → the name of its output.
_POOLED = {Task.EMBED: "embedding", Task.SCORE: "scores", Task.CLASSIFY: "probabilities"}


def engine_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with all tensors of a generation, decoupled, with one instance of KIND_MODEL.

    Raises ConfigError if it declares other tensors or data types, or a max_batch_size.
    """
    name = document.get("name", "")
    if document.get("max_batch_size", 0) > 0:
        raise ConfigError(f"max_batch_size of model '{name}' must be 0: its engine batches continuously")
    completed = {**document, "max_batch_size": 0, "model_transaction_policy": {"decoupled": True}}
    completed["input"] = _merged(name, "input", document.get("input", ()), _inputs())
    completed["output"] = _merged(name, "output", document.get("output", ()), _outputs())
    return _with_instance(completed)


def pooling_document(document: Mapping[str, Any], task: Task, size: int, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration of a model that pools texts to rows of `size` elements, -1 for any. It batches.

    Raises ConfigError if it declares other tensors or data types.
    """
    name = document.get("name", "")
    completed = {**document, "max_batch_size": document.get("max_batch_size") or _DEFAULT_POOLING_BATCH}
    completed.setdefault("dynamic_batching", {})
    texts: list[dict[str, Any]] = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}]
    rows = [
        {"name": _POOLED[task], "data_type": "TYPE_FP32", "dims": [size]},
        {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_truncated_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    ]
    # The model accepts token ids and truncates (domain/llm/text_form.py).
    parameters = {TOKENIZES: "true"}
    if task is not Task.EMBED:
        texts.append({"name": TEXT_PAIR, "data_type": "TYPE_STRING", "dims": [1], "optional": True})
        parameters |= {TEXT_TASK: task.value, LABELS: json.dumps([*labels])}
    completed["input"] = _merged(name, "input", document.get("input", ()), texts)
    completed["output"] = _merged(name, "output", document.get("output", ()), rows)
    given = {key: {"string_value": value} for key, value in parameters.items()}
    completed["parameters"] = {**given, **document.get("parameters", {})}
    return _with_instance(completed)


def _with_instance(document: dict[str, Any]) -> dict[str, Any]:
    if not document.get("instance_group"):
        document["instance_group"] = [{"kind": "KIND_MODEL", "count": 1}]
    return document


def _inputs() -> list[dict[str, Any]]:
    return [
        {"name": name, "data_type": datatype, "dims": [size], **({"optional": True} if number else {})}
        for number, (name, datatype, size) in enumerate(_INPUTS)
    ]


def _outputs() -> list[dict[str, Any]]:
    return [{"name": name, "data_type": datatype, "dims": [size]} for name, datatype, size in _OUTPUTS]


def _merged(model: str, kind: str, declared: Any, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {tensor["name"]: tensor for tensor in tensors}
    for declaration in declared:
        name = declaration.get("name", "")
        if name not in known:
            raise ConfigError(f"unknown {kind} '{name}' of model '{model}'; an engine has: {', '.join(known)}")
        if declaration.get("data_type") != known[name]["data_type"]:
            raise ConfigError(
                f"{kind} '{name}' of model '{model}' is declared {declaration.get('data_type')}, "
                f"but must be {known[name]['data_type']}"
            )
    return tensors
