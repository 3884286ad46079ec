"""The configurations of an engine's models: the tensors of Triton's vLLM backend, filled in where missing."""

from collections.abc import Mapping
from typing import Any

from conch.errors import ConfigError

# Name, data type, dims; all but the first are optional. Triton's vLLM backend, "Model configuration".
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

# How many texts are made embeddings of at once, if the configuration does not say.
_EMBEDDING_BATCH = 64


def engine_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with every tensor of a generation, decoupled, and one instance that places itself.

    Raises ConfigError if it declares one of these tensors otherwise, or batches.
    """
    name = document.get("name", "")
    if document.get("max_batch_size", 0) > 0:
        raise ConfigError(f"max_batch_size of model '{name}' must be 0: an engine batches by itself, step by step")
    completed = {**document, "max_batch_size": 0, "model_transaction_policy": {"decoupled": True}}
    completed["input"] = _merged(name, "input", document.get("input", ()), _inputs())
    completed["output"] = _merged(name, "output", document.get("output", ()), _outputs())
    return _placed(completed)


def embedding_document(document: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the configuration of a model that makes embeddings of `size` numbers, -1 for any: it batches.

    Raises ConfigError if it declares a tensor that is none of theirs, or otherwise.
    """
    name = document.get("name", "")
    completed = {**document, "max_batch_size": document.get("max_batch_size") or _EMBEDDING_BATCH}
    completed.setdefault("dynamic_batching", {})
    texts = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}]
    vectors = [
        {"name": "embedding", "data_type": "TYPE_FP32", "dims": [size]},
        {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    ]
    completed["input"] = _merged(name, "input", document.get("input", ()), texts)
    completed["output"] = _merged(name, "output", document.get("output", ()), vectors)
    # It takes token ids, and truncates (llm/embedding_form.py).
    completed["parameters"] = {**document.get("parameters", {}), "tokenizes": {"string_value": "true"}}
    return _placed(completed)


def _placed(document: dict[str, Any]) -> dict[str, Any]:
    """Add the one instance, which places itself."""
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


def _merged(model: str, kind: str, declared: Any, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {each["name"]: each for each in wanted}
    for each in declared:
        name = each.get("name", "")
        if name not in known:
            raise ConfigError(f"{kind} '{name}' of model '{model}' is none of an engine's: {', '.join(known)}")
        if each.get("data_type") != known[name]["data_type"]:
            raise ConfigError(
                f"{kind} '{name}' of model '{model}' is declared {each.get('data_type')}, "
                f"an engine's is {known[name]['data_type']}"
            )
    return wanted
