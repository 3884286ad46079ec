"""Embeddings by an engine's library, in a process of their own.

The server says by `args["embedding"]`, a JSON object, which "package" it is and in which "directory" the model's
version is. Its `model.json` may hold, beside `"task": "embed"`, for OpenVINO GenAI:

    model              the IR folder with its tokenizer, relative to the version's; by default that itself
    device             "CPU" by default
    pooling_type       "cls", "mean" or "last_token": how a vector is made of those of the tokens; "cls" by default
    normalize          whether vectors are given the length one, true by default
    max_model_len      tokens that a text may have; by default what config.json says
    embed_instruction  what is put before each text
    properties         of OpenVINO

For vLLM it holds the engine's arguments, `"runner": "pooling"` among them. The engine runs in this very process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

# Vectors [texts, size] and the texts' numbers of tokens.
Embedded = Tuple[Any, Sequence[int]]

_KEYS: Dict[str, type] = {
    "task": str,
    "model": str,
    "device": str,
    "pooling_type": str,
    "normalize": bool,
    "max_model_len": int,
    "embed_instruction": str,
    "properties": dict,
}


class TritonPythonModel:
    """text_input [batch, 1] → embedding [batch, size], num_input_tokens [batch, 1]."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the model. Raises TritonModelException for options that are not right, or what the library raises."""
        task = json.loads(args["embedding"])
        directory = Path(task["directory"])
        self._model: Any = Vllm(directory) if task["package"] == "vllm" else OpenVino(directory)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Embed the texts of all requests together; if that fails, each request's by themselves."""
        try:
            return self._together(requests)
        except Exception:
            return [self._alone(request) for request in requests]

    def _together(self, requests: List[Any]) -> List[Any]:
        given = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel() for request in requests]
        vectors, counts = self._model.embed([text.decode() for texts in given for text in texts])
        responses, start = [], 0
        for texts in given:
            end = start + len(texts)
            tokens = np.array(counts[start:end], np.uint32).reshape(-1, 1)
            tensors = [pb_utils.Tensor("embedding", vectors[start:end]), pb_utils.Tensor("num_input_tokens", tokens)]
            responses.append(pb_utils.InferenceResponse(tensors))
            start = end
        return responses

    def _alone(self, request: Any) -> Any:
        try:
            return self._together([request])[0]
        except ValueError as error:  # what is too long, or no UTF-8
            refusal = pb_utils.TritonError("text_input: {}".format(error), pb_utils.TritonError.INVALID_ARG)
        except Exception as error:
            refusal = pb_utils.TritonError("{}: {}".format(type(error).__name__, error))
        return pb_utils.InferenceResponse(output_tensors=[], error=refusal)


class OpenVino:
    """OpenVINO GenAI's TextEmbeddingPipeline."""

    def __init__(self, directory: Path) -> None:
        import openvino_genai as genai

        path = directory / "model.json"
        options = _checked(_read(path), path)
        folder = directory / options.get("model", ".")
        config = genai.TextEmbeddingPipeline.Config()
        pooling = options.get("pooling_type", "cls").upper()
        kinds = genai.TextEmbeddingPipeline.PoolingType.__members__
        if pooling not in kinds:
            known = ", ".join(sorted(name.lower() for name in kinds))
            raise pb_utils.TritonModelException("{}: 'pooling_type' must be one of {}".format(path, known))
        config.pooling_type = kinds[pooling]
        config.normalize = options.get("normalize", True)
        self._limit = options.get("max_model_len") or _trained_length(folder)
        self._instruction = options.get("embed_instruction", "")
        if self._instruction:
            config.embed_instruction = self._instruction
        device = options.get("device", "CPU")
        self._pipeline = genai.TextEmbeddingPipeline(str(folder), device, config, **options.get("properties", {}))
        self._tokenizer = genai.Tokenizer(str(folder))

    def embed(self, texts: List[str]) -> Embedded:
        """Return the vectors. The library tells no numbers of tokens and cuts nothing, so these are counted first."""
        mask = self._tokenizer.encode([self._instruction + text for text in texts]).attention_mask.data
        counts = mask.sum(axis=1)
        longest = int(counts.max())
        if self._limit and longest > self._limit:
            raise ValueError(
                "This model's maximum context length is {} tokens. However, a text has {} tokens. "
                "Please reduce its length.".format(self._limit, longest)
            )
        return np.array(self._pipeline.embed_documents(texts), np.float32), counts


class Vllm:
    """vLLM's offline engine: a batch is computed as a whole, which for embeddings is one step or few."""

    def __init__(self, directory: Path) -> None:
        # No process of its own beside this one, which nobody would watch.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        arguments = _read(directory / "model.json")
        if arguments.get("task") == "embed":
            arguments["runner"] = "pooling"
            del arguments["task"]
        for name in ("model", "tokenizer"):
            if name in arguments and (directory / arguments[name]).exists():
                arguments[name] = str(directory / arguments[name])
        self._engine = LLM(**arguments)

    def embed(self, texts: List[str]) -> Embedded:
        """Return the vectors. Raises ValueError for a text that is too long."""
        try:
            outputs = self._engine.embed(texts, use_tqdm=False)
        except Exception as error:
            # In some versions it is a ValueError, in others it is not.
            if type(error).__name__ == "VLLMValidationError":
                raise ValueError(str(error)) from error
            raise
        vectors = np.array([output.outputs.embedding for output in outputs], np.float32)
        return vectors, [len(output.prompt_token_ids) for output in outputs]


def _checked(options: Dict[str, Any], path: Path) -> Dict[str, Any]:
    for name, value in options.items():
        if name not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise pb_utils.TritonModelException("{}: unknown key '{}'; known: {}".format(path, name, known))
        if type(value) is not _KEYS[name]:
            wanted = _KEYS[name].__name__
            raise pb_utils.TritonModelException("{}: '{}' must be {}, got {!r}".format(path, name, wanted, value))
    return options


def _trained_length(folder: Path) -> int:
    """Return how many tokens the model was made for, 0 if its files do not say."""
    positions = _read(folder / "config.json").get("max_position_embeddings") or 0
    # A tokenizer without a limit says 1e30. Of RoBERTa's positions, two are no text's: its tokenizer knows better.
    length = _read(folder / "tokenizer_config.json").get("model_max_length") or 0
    known = [int(each) for each in (positions, length) if 0 < each < 1e9]
    return min(known) if known else 0


def _read(path: Path) -> Dict[str, Any]:
    document: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document
