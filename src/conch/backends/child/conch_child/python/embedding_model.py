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
from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np
import triton_python_backend_utils as pb_utils

# Vectors [texts, size] and the texts' numbers of tokens.
Embedded = Tuple[Any, Sequence[int]]
# A text or its token ids; how many tokens of it are kept, 0 being all and -1 as many as the model takes; if the last.
Text = Tuple[Union[str, List[int]], int, bool]

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
        given = [_texts(request) for request in requests]
        vectors, counts = self._model.embed([text for texts in given for text in texts])
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
        decodes = (folder / "openvino_detokenizer.xml").is_file()
        self._vocabulary = max(self._tokenizer.get_vocab().values(), default=-1) + 1 if decodes else 0

    def embed(self, given: List[Text]) -> Embedded:
        """Return the vectors. The library tells no numbers of tokens and cuts nothing, so these are counted first.

        It takes texts alone: token ids, and what a truncation has left, are decoded.
        """
        texts = [self._text(*each) for each in given]
        mask = self._tokenizer.encode([self._instruction + text for text in texts]).attention_mask.data
        counts = mask.sum(axis=1)
        longest = int(counts.max())
        if self._limit and longest > self._limit:
            raise ValueError(
                "This model's maximum context length is {} tokens. However, a text has {} tokens. "
                "Please reduce its length.".format(self._limit, longest)
            )
        return np.array(self._pipeline.embed_documents(texts), np.float32), counts

    def _text(self, text: Union[str, List[int]], kept: int, last: bool) -> str:
        if isinstance(text, str) and not kept:
            return text
        if isinstance(text, str):
            added = self._count(self._instruction, True)
            token_ids = [int(each) for each in self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]]
        else:
            added, token_ids = 0, text
        kept = kept if kept >= 0 else self._limit
        if not kept or len(token_ids) + added <= kept:
            return text if isinstance(text, str) else self._decoded(token_ids)
        room = max(kept - added, 1)
        return self._decoded(token_ids[-room:] if last else token_ids[:room])

    def _count(self, text: str, special: bool) -> int:
        return int(self._tokenizer.encode(text, add_special_tokens=special).input_ids.data.size)

    def _decoded(self, token_ids: List[int]) -> str:
        if not self._vocabulary:
            raise ValueError("token ids and truncation need openvino_detokenizer.xml beside the model")
        unknown = max(token_ids, default=0)
        if unknown >= self._vocabulary:
            raise ValueError("token id {} is not one of the model's {}".format(unknown, self._vocabulary))
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))


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

    def embed(self, given: List[Text]) -> Embedded:
        """Return the vectors. Raises ValueError for a text that is too long."""
        prompts = [self._prompt(*each) for each in given]
        try:
            outputs = self._engine.embed(prompts, use_tqdm=False)
        except Exception as error:
            # In some versions it is a ValueError, in others it is not.
            if type(error).__name__ == "VLLMValidationError":
                raise ValueError(str(error)) from error
            raise
        vectors = np.array([output.outputs.embedding for output in outputs], np.float32)
        return vectors, [len(output.prompt_token_ids) for output in outputs]

    def _prompt(self, text: Union[str, List[int]], kept: int, last: bool) -> Any:
        if isinstance(text, str) and not kept:
            return text
        token_ids = self._engine.get_tokenizer().encode(text) if isinstance(text, str) else text
        if kept < 0:
            kept = self._engine.llm_engine.model_config.max_model_len
        if kept:
            token_ids = token_ids[-kept:] if last else token_ids[:kept]
        return {"prompt_token_ids": token_ids}


def _texts(request: Any) -> List[Text]:
    """Return the texts of a request. Raises ValueError for what is no UTF-8, or no token ids."""
    parameters = json.loads(request.parameters() or "{}")
    kept, last = int(parameters.get("truncate_prompt_tokens", 0)), parameters.get("truncation_side") == "left"
    texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel()]
    if not parameters.get("token_ids"):
        return [(text, kept, last) for text in texts]
    token_ids = [json.loads(text) for text in texts]
    if not all(isinstance(ids, list) and all(type(each) is int for each in ids) for ids in token_ids):
        raise ValueError("with 'token_ids' each text must be a JSON array of integers")
    return [(ids, kept, last) for ids in token_ids]


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
