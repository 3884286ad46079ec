"""The Python model that computes embeddings with OpenVINO GenAI or vLLM.

`args["embedding"]` is a JSON object with the library's "package" and the version's "directory". With OpenVINO GenAI
`model.json` may hold, beside `"task": "embed"`:

    model              folder with IR and tokenizer, relative to the version's folder; by default that itself
    device             "CPU" by default
    pooling_type       "cls" (default), "mean" or "last_token": how the tokens' vectors are combined
    normalize          whether vectors are normalized to length one, true by default
    max_model_len      maximum tokens of a text; by default from config.json
    embed_instruction  text that is prepended to each text
    properties         of OpenVINO

With vLLM it holds the engine's arguments, with `"runner": "pooling"`. The engine runs in this process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np
import triton_python_backend_utils as pb_utils

# Vectors [texts, size], and the numbers of tokens of each text, and of those that were cut from it.
Embedded = Tuple[Any, Sequence[int], Sequence[int]]
# A text or its token ids; the tokens to truncate to, 0 for no truncation, -1 for the model's maximum; whether to keep
# the last ones.
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
    """text_input [batch, 1] → embedding [batch, size], num_input_tokens and num_truncated_tokens [batch, 1]."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the model. Raises TritonModelException for invalid options, and what the library raises."""
        task = json.loads(args["embedding"])
        directory = Path(task["directory"])
        self._model: Any = Vllm(directory) if task["package"] == "vllm" else OpenVino(directory)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Embed the texts of all requests in one batch; if that fails, those of each request separately."""
        try:
            return self._execute_batch(requests)
        except Exception:
            return [self._execute_single(request) for request in requests]

    def _execute_batch(self, requests: List[Any]) -> List[Any]:
        texts_of_requests = [_texts(request) for request in requests]
        vectors, *counts = self._model.embed([text for texts in texts_of_requests for text in texts])
        responses, start = [], 0
        for texts in texts_of_requests:
            end = start + len(texts)
            tensors = [pb_utils.Tensor("embedding", vectors[start:end])]
            for name, numbers in zip(("num_input_tokens", "num_truncated_tokens"), counts):
                tensors.append(pb_utils.Tensor(name, np.array(numbers[start:end], np.uint32).reshape(-1, 1)))
            responses.append(pb_utils.InferenceResponse(tensors))
            start = end
        return responses

    def _execute_single(self, request: Any) -> Any:
        try:
            return self._execute_batch([request])[0]
        except ValueError as error:  # too long, or invalid UTF-8
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

    def embed(self, inputs: List[Text]) -> Embedded:
        """Return the vectors. Tokens are counted here first, since the library neither counts nor truncates.

        It accepts only texts, so token ids and truncated texts are decoded. Raises ValueError for too long a text.
        """
        texts, cut = zip(*(self._text(*entry) for entry in inputs))
        mask = self._tokenizer.encode([self._instruction + text for text in texts]).attention_mask.data
        counts = mask.sum(axis=1)
        longest = int(counts.max())
        if self._limit and longest > self._limit:
            raise ValueError(
                "This model's maximum context length is {} tokens. However, a text has {} tokens. "
                "Please reduce its length.".format(self._limit, longest)
            )
        return np.array(self._pipeline.embed_documents([*texts]), np.float32), counts, cut

    def _text(self, text: Union[str, List[int]], max_tokens: int, last: bool) -> Tuple[str, int]:
        """Return the text, truncated, and the number of tokens that were cut."""
        if isinstance(text, str) and not max_tokens:
            return text, 0
        if isinstance(text, str):
            added = self._count_tokens(self._instruction, True)
            token_ids = [
                int(token_id) for token_id in self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]
            ]
        else:
            added, token_ids = 0, text
        max_tokens = max_tokens if max_tokens >= 0 else self._limit
        if not max_tokens or len(token_ids) + added <= max_tokens:
            return (text if isinstance(text, str) else self._decode(token_ids)), 0
        kept = max(max_tokens - added, 1)
        return self._decode(token_ids[-kept:] if last else token_ids[:kept]), len(token_ids) - kept

    def _count_tokens(self, text: str, special: bool) -> int:
        return int(self._tokenizer.encode(text, add_special_tokens=special).input_ids.data.size)

    def _decode(self, token_ids: List[int]) -> str:
        if not self._vocabulary:
            raise ValueError("token ids and truncation need openvino_detokenizer.xml beside the model")
        unknown = max(token_ids, default=0)
        if unknown >= self._vocabulary:
            raise ValueError("token id {} is out of the vocabulary of {} tokens".format(unknown, self._vocabulary))
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))


class Vllm:
    """vLLM's offline engine, which computes whole batches: one step or few for embeddings."""

    def __init__(self, directory: Path) -> None:
        # Run the engine core in this process; a further process would not be supervised.
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

    def embed(self, inputs: List[Text]) -> Embedded:
        """Return the vectors. Raises ValueError for too long a text."""
        prompts, cut = zip(*(self._prompt(*entry) for entry in inputs))
        try:
            outputs = self._engine.embed([*prompts], use_tqdm=False)
        except Exception as error:
            # Only in some versions of vLLM a ValueError.
            if type(error).__name__ == "VLLMValidationError":
                raise ValueError(str(error)) from error
            raise
        vectors = np.array([output.outputs.embedding for output in outputs], np.float32)
        return vectors, [len(output.prompt_token_ids) for output in outputs], cut

    def _prompt(self, text: Union[str, List[int]], max_tokens: int, last: bool) -> Tuple[Any, int]:
        """Return the prompt, truncated, and the number of tokens that were cut."""
        if isinstance(text, str) and not max_tokens:
            return text, 0
        token_ids = self._engine.get_tokenizer().encode(text) if isinstance(text, str) else text
        if max_tokens < 0:
            max_tokens = self._engine.llm_engine.model_config.max_model_len
        size = len(token_ids)
        if max_tokens:
            token_ids = token_ids[-max_tokens:] if last else token_ids[:max_tokens]
        return {"prompt_token_ids": token_ids}, size - len(token_ids)


def _texts(request: Any) -> List[Text]:
    """Return the texts of a request. Raises ValueError for invalid UTF-8 or token ids."""
    parameters = json.loads(request.parameters() or "{}")
    max_tokens, last = int(parameters.get("truncate_prompt_tokens", 0)), parameters.get("truncation_side") == "left"
    texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel()]
    if not parameters.get("token_ids"):
        return [(text, max_tokens, last) for text in texts]
    token_ids = [json.loads(text) for text in texts]
    if not all(isinstance(ids, list) and all(type(token_id) is int for token_id in ids) for ids in token_ids):
        raise ValueError("with 'token_ids' each text must be a JSON array of integers")
    return [(ids, max_tokens, last) for ids in token_ids]


def _checked(options: Dict[str, Any], path: Path) -> Dict[str, Any]:
    for name, value in options.items():
        if name not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise pb_utils.TritonModelException("{}: unknown key '{}'; known: {}".format(path, name, known))
        if type(value) is not _KEYS[name]:
            expected = _KEYS[name].__name__
            raise pb_utils.TritonModelException("{}: '{}' must be {}, got {!r}".format(path, name, expected, value))
    return options


def _trained_length(folder: Path) -> int:
    """Return the context length that the model was trained with, in tokens; 0 if unknown."""
    positions = _read(folder / "config.json").get("max_position_embeddings") or 0
    # 1e30 in a tokenizer means unlimited. Two of RoBERTa's positions hold no text; its tokenizer has the right number.
    length = _read(folder / "tokenizer_config.json").get("model_max_length") or 0
    limits = [int(limit) for limit in (positions, length) if 0 < limit < 1e9]
    return min(limits) if limits else 0


def _read(path: Path) -> Dict[str, Any]:
    document: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document
