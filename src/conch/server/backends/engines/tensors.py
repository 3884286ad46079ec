"""Auto-complete configurations of engines' models with the tensors of Triton's vLLM backend, or of embeddings."""

from collections.abc import Mapping
from typing import Any

from conch.base.errors import ConfigError

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

_DEFAULT_EMBEDDING_BATCH = 64


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


def embedding_document(document: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the configuration of a model that computes embeddings with `size` elements, -1 for any. It batches.

    Raises ConfigError if it declares other tensors or data types.
    """
    name = document.get("name", "")
    completed = {**document, "max_batch_size": document.get("max_batch_size") or _DEFAULT_EMBEDDING_BATCH}
    completed.setdefault("dynamic_batching", {})
    texts = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}]
    vectors = [
        {"name": "embedding", "data_type": "TYPE_FP32", "dims": [size]},
        {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_truncated_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    ]
    completed["input"] = _merged(name, "input", document.get("input", ()), texts)
    completed["output"] = _merged(name, "output", document.get("output", ()), vectors)
    # The model accepts token ids and truncates (domain/llm/embedding_form.py).
    completed["parameters"] = {**document.get("parameters", {}), "tokenizes": {"string_value": "true"}}
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
