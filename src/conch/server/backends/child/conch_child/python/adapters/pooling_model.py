"""The Python model that embeds, scores and classifies texts with vLLM, and embeds them with OpenVINO GenAI.

`args["pooling"]` is a JSON object with the library's "package", the version's "directory" and the "task". With
OpenVINO GenAI `model.json` may hold, beside `"task": "embed"`:

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
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import triton_python_backend_utils as pb_utils

# Rows [texts, size], and the numbers of tokens of each text, and of those that were cut from it.
Pooled = Tuple[Any, Sequence[int], Sequence[int]]

# Of a text. What is beyond the model's maximum tokens by this is not tokenized.
_MAX_CHARACTERS_PER_TOKEN = 64
_OUTPUTS = {"embed": "embedding", "score": "scores", "classify": "probabilities"}


class PoolingOptions(NamedTuple):
    """How the texts of a request are pooled."""

    max_tokens: int  # to truncate to; 0 for no truncation, -1 for the model's maximum
    last: bool  # whether truncation keeps the last ones
    document_tokens: int  # to truncate the second text of a pair to; 0: the longer one is truncated
    activated: bool  # whether the result is a probability, not a logit


class PooledText(NamedTuple):
    """A text or its token ids, the second text of a pair or None, and its request's options."""

    first: Union[str, List[int]]
    second: Optional[str]
    options: PoolingOptions


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
    """text_input, text_pair [batch, 1] → rows [batch, size], num_input_tokens and num_truncated_tokens [batch, 1]."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the model. Raises TritonModelException for invalid options, and what the library raises."""
        given = json.loads(args["pooling"])
        directory, task = Path(given["directory"]), given["task"]
        self._output = _OUTPUTS[task]
        self._model: Any = Vllm(directory, task) if given["package"] == "vllm" else OpenVino(directory)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Pool the texts of all requests in one batch; if that fails, those of each request separately."""
        try:
            return self._execute_batch(requests)
        except Exception:
            return [self._execute_single(request) for request in requests]

    def _execute_batch(self, requests: List[Any]) -> List[Any]:
        texts_of_requests = [_texts(request) for request in requests]
        rows, *counts = self._model.pool([text for texts in texts_of_requests for text in texts])
        responses, start = [], 0
        for texts in texts_of_requests:
            end = start + len(texts)
            tensors = [pb_utils.Tensor(self._output, rows[start:end])]
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

    def pool(self, inputs: List[PooledText]) -> Pooled:
        """Return the vectors. Tokens are counted here first, since the library neither counts nor truncates.

        It accepts only texts, so token ids and truncated texts are decoded. Raises ValueError for too long a text.
        """
        texts, cut = zip(*(self._text(text.first, text.options) for text in inputs))
        mask = self._tokenizer.encode([self._instruction + text for text in texts]).attention_mask.data
        counts = mask.sum(axis=1)
        longest = int(counts.max())
        if self._limit and longest > self._limit:
            raise ValueError(
                "This model's maximum context length is {} tokens. However, a text has {} tokens. "
                "Please reduce its length.".format(self._limit, longest)
            )
        return np.array(self._pipeline.embed_documents([*texts]), np.float32), counts, cut

    def _text(self, text: Union[str, List[int]], options: PoolingOptions) -> Tuple[str, int]:
        """Return the text, truncated, and the number of tokens that were cut."""
        max_tokens, last = options.max_tokens, options.last
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
    """vLLM's offline engine, which computes whole batches: one step or few for a pooling model."""

    def __init__(self, directory: Path, task: str) -> None:
        # Run the engine core in this process; a further process would not be supervised.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM, PoolingParams

        arguments = _read(directory / "model.json")
        if arguments.get("task") == "embed":
            arguments["runner"] = "pooling"
            del arguments["task"]
        for name in ("model", "tokenizer"):
            if name in arguments and (directory / arguments[name]).exists():
                arguments[name] = str(directory / arguments[name])
        self._engine = LLM(**arguments)
        self._params = PoolingParams
        self._chat_template = self._engine.chat_template
        self._tokenizer = self._engine.get_tokenizer()
        config = self._engine.model_config
        self._limit: int = config.max_model_len
        self._task = task
        served = self._engine.pooling_task
        if served == "classify":
            served = "score" if config.hf_config.num_labels == 1 else served
        if served != task:
            raise pb_utils.TritonModelException(
                "{}: vLLM makes '{}' of this model, not '{}'; set the parameter text_task in config.pbtxt, or convert "
                "in model.json".format(directory / "model.json", served, task)
            )

    def pool(self, inputs: List[PooledText]) -> Pooled:
        """Return the rows. Raises ValueError for too long a text."""
        places: Dict[Tuple[bool, PoolingOptions], List[int]] = {}
        for place, text in enumerate(inputs):
            places.setdefault((text.second is not None, text.options), []).append(place)
        rows: List[Any] = [None] * len(inputs)
        counts, cut = [0] * len(inputs), [0] * len(inputs)
        for (paired, options), chosen in places.items():
            texts = [inputs[place] for place in chosen]
            try:
                outputs = self._score(texts, options) if paired else self._encode(texts, options)
            except Exception as error:
                # Only in some versions of vLLM a ValueError.
                if type(error).__name__ == "VLLMValidationError":
                    raise ValueError(str(error)) from error
                raise
            for place, (row, tokens) in zip(chosen, outputs):
                rows[place], counts[place] = row, tokens
                cut[place] = self._cut(inputs[place], tokens)
        return np.array(rows, np.float32), counts, cut

    def _encode(self, texts: List[PooledText], options: PoolingOptions) -> Iterator[Tuple[Any, int]]:
        prompts = [self._bounded(text.first, options) for text in texts]
        outputs = self._engine.encode(
            [prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt} for prompt in prompts],
            self._pooling(options),
            pooling_task="embed" if self._task == "embed" else "classify",
            tokenization_kwargs=self._tokenization(options),
            use_tqdm=False,
        )
        return ((output.outputs.data.float().numpy(), len(output.prompt_token_ids)) for output in outputs)

    def _score(self, texts: List[PooledText], options: PoolingOptions) -> Iterator[Tuple[Any, int]]:
        """Raises ValueError if the first text leaves no room, where only the second may be truncated."""
        pairs = [(self._bounded(text.first, options), self._bounded(text.second or "", options)) for text in texts]
        params = self._pooling(options)
        if options.document_tokens:
            most = self._limit - 1  # a query has a token at least
            params.extra_kwargs = {"max_tokens_per_doc": min(options.document_tokens, most)}
            limit = self._kept(options)
            for query in {first for first, _ in pairs}:
                tokens = len(self._tokenizer(query).input_ids)
                if tokens >= limit:
                    raise ValueError(
                        "the query has {} tokens, which leaves no room for a document: the model takes {} tokens of "
                        "both".format(tokens, limit)
                    )
        outputs = self._engine.score(
            [first for first, _ in pairs],
            [second for _, second in pairs],
            pooling_params=params,
            tokenization_kwargs=self._tokenization(options),
            chat_template=self._chat_template,
            use_tqdm=False,
        )
        return (([output.outputs.score], len(output.prompt_token_ids)) for output in outputs)

    def _pooling(self, options: PoolingOptions) -> Any:
        return self._params(use_activation=None if options.activated else False)

    def _tokenization(self, options: PoolingOptions) -> Dict[str, Any]:
        if not options.max_tokens:
            return {}
        # Without a side the tokenizer truncates, and keeps its special tokens.
        side = {"truncation_side": "left"} if options.last else {}
        return {"truncate_prompt_tokens": self._kept(options), **side}

    def _kept(self, options: PoolingOptions) -> int:
        return min(options.max_tokens, self._limit) if options.max_tokens > 0 else self._limit

    def _bounded(self, text: Union[str, List[int]], options: PoolingOptions) -> Union[str, List[int]]:
        """Return a text without the characters that no truncation keeps: to tokenize takes 200 times their memory."""
        most = self._limit * _MAX_CHARACTERS_PER_TOKEN
        if not isinstance(text, str) or len(text) <= most:
            return text
        if not options.max_tokens:
            raise ValueError(
                "This model's maximum context length is {} tokens. However, a text has {} characters. "
                "Please reduce its length.".format(self._limit, len(text))
            )
        return text[-most:] if options.last else text[:most]

    def _cut(self, text: PooledText, kept: int) -> int:
        """Return how many tokens were cut from a text, of which `kept` are left."""
        limits = [self._kept(text.options)] if text.options.max_tokens else []
        limits += [text.options.document_tokens] if text.options.document_tokens else []
        if not limits or kept < min(limits):
            return 0
        if not isinstance(text.first, str):
            return len(text.first) - kept
        return max(len(self._tokenizer(text.first, text.second).input_ids) - kept, 0)


def _texts(request: Any) -> List[PooledText]:
    """Return the texts of a request. Raises ValueError for invalid UTF-8 or token ids."""
    parameters = json.loads(request.parameters() or "{}")
    options = PoolingOptions(
        int(parameters.get("truncate_prompt_tokens", 0)),
        parameters.get("truncation_side") == "left",
        int(parameters.get("document_tokens", 0)),
        bool(parameters.get("use_activation", True)),
    )
    texts, seconds = _decoded(request, "text_input"), _decoded(request, "text_pair")
    if not parameters.get("token_ids"):
        return [PooledText(text, seconds[place] if seconds else None, options) for place, text in enumerate(texts)]
    token_ids = [json.loads(text) for text in texts]
    if not all(isinstance(ids, list) and all(type(token_id) is int for token_id in ids) for ids in token_ids):
        raise ValueError("with 'token_ids' each text must be a JSON array of integers")
    return [PooledText(ids, None, options) for ids in token_ids]


def _decoded(request: Any, name: str) -> List[str]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else [text.decode() for text in tensor.as_numpy().ravel()]


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
