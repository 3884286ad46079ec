"""The tensor form of models of texts without a tokenizer file: inference requests, and rows from the responses.

Such a model has one required input, of texts (BYTES, one element for each) or token ids (INT32 or INT64 of any
length), and one floating-point output with a row for each text: a vector, unless the parameter `text_task` of the
configuration is `score` (one number) or `classify` (a number for each of the parameter `labels`, a JSON array). An
optional integer output `num_input_tokens` has the texts' numbers of tokens, another `num_truncated_tokens` how many
tokens were cut from each. The parameter `matryoshka_dimensions`, such as "64,128", lists the lengths to which the
model's vectors may be truncated.

Models with `text_task` also have the optional input `text_pair` for the second text of a pair, and accept the
parameters `use_activation` (false: logits) and `document_tokens`: the query of a pair is not truncated, its document
also to this number of tokens.

A model of texts with the parameter `tokenizes` contains its tokenizer: it also accepts token ids, as texts with JSON
arrays in requests with the parameter `token_ids`, and the parameters `truncate_prompt_tokens` and `truncation_side`.
The parameter `token_ids_model` of another model names a model, such as its encoder, for requests with token ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import orjson

from conch.base.errors import BackendError, InvalidRequest, Unsupported
from conch.domain.llm.text_model import Task
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor

NUM_INPUT_TOKENS, NUM_TRUNCATED_TOKENS = "num_input_tokens", "num_truncated_tokens"
MATRYOSHKA_DIMENSIONS = "matryoshka_dimensions"
TOKENIZES = "tokenizes"
TOKEN_IDS_MODEL = "token_ids_model"  # noqa: S105 - not a password
TEXT_TASK, LABELS, TEXT_PAIR = "text_task", "labels", "text_pair"

_FLOATS = ("FP16", "FP32", "FP64")
_INTEGERS = ("INT32", "INT64", "UINT32", "UINT64")
_TOKENS = ("INT32", "INT64")
# Texts per request for a model with a list of texts as input, without batching.
_LIST_SIZE = 64
_NAMES = {Task.EMBED: "an embedding model", Task.SCORE: "a cross-encoder", Task.CLASSIFY: "a classifier"}

Inputs = Sequence[str | Sequence[int]]


@dataclass(frozen=True, slots=True)
class TextRows:
    """A response: an array [texts, size] of FP32, the number of tokens of all texts, and how many were truncated."""

    values: npt.NDArray[np.float32]
    tokens: int
    truncated: int


class TextForm:
    """The tensors of a model that embeds, scores or classifies texts."""

    def __init__(self, config: ModelConfig) -> None:
        """Find the tensors. Raises Unsupported with the reason if it is not a model of texts."""
        self._model = config.name
        self.task = _task(config)
        self.labels = _labels(config)
        if config.decoupled or config.sequence_batching is not None:
            raise self._unfit("its requests are decoupled or belong to sequences")
        required = [spec for spec in config.inputs if not spec.optional]
        vectors = [spec for spec in config.outputs if spec.datatype in _FLOATS]
        if len(required) != 1 or len(vectors) != 1:
            raise self._unfit(f"it has {len(required)} required inputs and {len(vectors)} floating-point outputs")
        (self._input,), (self._vector,) = required, vectors
        names = (NUM_INPUT_TOKENS, NUM_TRUNCATED_TOKENS)
        counts = [spec for spec in config.outputs if spec.name in names and spec.datatype in _INTEGERS]
        self._outputs = (self._vector.name, *(spec.name for spec in counts))
        self.takes_tokens = self._input.datatype in _TOKENS
        self._batches = config.max_batch_size > 0
        self._request_size = self._max_request_size(config)
        self._lengths = matryoshka_lengths(config)
        self._tokenizes = config.parameters.get(TOKENIZES, "").lower() == "true"

    def requests(
        self,
        inputs: Inputs,
        version: int,
        timeline: Timeline,
        *,
        pairs: Inputs = (),
        truncate: int | None = None,
        keep_last: bool = False,
        document_tokens: int | None = None,
        raw: bool = False,
    ) -> Iterator[tuple[list[int], InferRequest]]:
        """Yield inference requests for all texts, each with the indexes of its texts in `inputs`.

        `pairs` are the second texts, as many. `truncate` is the number of tokens to keep of each text, -1 for the
        model's maximum; `document_tokens` and `raw` are for models with `text_task`. Raises Unsupported if the model
        does not accept texts or token ids, or if it cannot truncate them.
        """
        tokens = not isinstance(inputs[0], str)
        parameters: dict[str, ParameterValue] = {}
        if raw:
            parameters["use_activation"] = False
        if document_tokens is not None:
            parameters["document_tokens"] = document_tokens
        if self._tokenizes:
            if tokens:
                parameters["token_ids"] = True
                inputs = [orjson.dumps([*tokens]).decode() for tokens in inputs]
            if truncate is not None:
                parameters["truncate_prompt_tokens"] = truncate
                parameters["truncation_side"] = "left" if keep_last else "right"
        elif tokens != self.takes_tokens:
            expected, actual = ("token ids", "text") if self.takes_tokens else ("text", "token ids")
            raise Unsupported(f"The model `{self._model}` takes {expected}, 'input' holds {actual}.")
        elif truncate is not None and truncate > 0:
            if not tokens:
                raise Unsupported(
                    f"'truncate_prompt_tokens' is not supported: the model `{self._model}` takes text and does not "
                    "report tokens; use -1 for the model's maximum."
                )
            inputs = [tokens[-truncate:] if keep_last else tokens[:truncate] for tokens in inputs]
        return (
            (indexes, self._request(inputs, pairs, indexes, version, timeline, parameters))
            for indexes in self._groups(inputs)
        )

    def rows(self, request: InferRequest, response: InferResponse) -> TextRows:
        """Return the rows of a response. Raises BackendError if their number is not that of the texts."""
        texts = 1 if self._input.dims == (1,) and not self._batches else request.inputs[0].shape[0]
        vector = response.output(self._vector.name)
        if vector is None:
            raise BackendError(f"the response of model '{self._model}' lacks the output '{self._vector.name}'")
        values = vector.to_numpy().astype(np.float32, copy=False)
        if texts > 1 and values.shape[:1] != (texts,):
            raise BackendError(
                f"output '{vector.name}' of model '{self._model}' has the shape {list(values.shape)}, expected "
                f"{texts} vectors"
            )
        count = response.output(NUM_INPUT_TOKENS)
        if self.takes_tokens:
            tokens = int(np.prod(request.inputs[0].shape))
        else:
            tokens = int(count.to_numpy().sum()) if count is not None else 0
        cut = response.output(NUM_TRUNCATED_TOKENS)
        return TextRows(values.reshape(texts, -1), tokens, 0 if cut is None else int(np.count_nonzero(cut.to_numpy())))

    def check_dimensions(self, dimensions: int) -> None:
        """Raise InvalidRequest unless the model's vectors have, or may be truncated to, this number of dimensions."""
        check_dimensions(self._model, self._vector.dims[-1], self._lengths, dimensions)

    def _request(
        self,
        inputs: Inputs,
        pairs: Inputs,
        indexes: list[int],
        version: int,
        timeline: Timeline,
        parameters: dict[str, ParameterValue],
    ) -> InferRequest:
        tensors = [self._tensor(self._input.name, [inputs[index] for index in indexes])]
        if pairs:
            tensors.append(self._tensor(TEXT_PAIR, [pairs[index] for index in indexes]))
        return InferRequest(
            self._model,
            tensors,
            version=version,
            outputs=self._outputs,
            parameters=dict(parameters),
            timeline=timeline.part(),
        )

    def _groups(self, inputs: Inputs) -> Iterator[list[int]]:
        """Yield the indexes of texts that can share a request: token ids only if they have the same length."""
        indexes = list(range(len(inputs)))
        if not self.takes_tokens:
            groups = [indexes]
        else:
            indexes.sort(key=lambda index: len(inputs[index]))
            groups = [list(group) for _, group in groupby(indexes, key=lambda index: len(inputs[index]))]
        for group in groups:
            for start in range(0, len(group), self._request_size):
                yield group[start : start + self._request_size]

    def _tensor(self, name: str, texts: Inputs) -> Tensor:
        if self.takes_tokens:
            return Tensor.from_numpy(name, np.array(texts, NUMPY_DTYPES[self._input.datatype]))
        array = np.empty(len(texts), np.object_)
        array[:] = texts
        return Tensor.from_numpy(name, array.reshape(-1, *[1] * self._trailing))

    @property
    def _trailing(self) -> int:
        """Number of axes of a tensor of texts after that of the texts."""
        return len(self._input.dims) if self._batches else len(self._input.dims) - 1

    def _max_request_size(self, config: ModelConfig) -> int:
        """Return the maximum number of texts per request. Raises Unsupported for other shapes."""
        dims, vector_dims = self._input.dims, self._vector.dims
        if self.takes_tokens:
            shapes = ((-1,), 1) if self._batches else ((-1, -1), 2)
            fits = (dims, len(vector_dims)) == shapes
        elif self._input.datatype != BYTES:
            raise self._unfit(f"its input '{self._input.name}' is {self._input.datatype}")
        elif self._batches:
            fits = dims in ((1,), (-1,)) and len(vector_dims) == 1
        elif dims == (1,):
            fits = len(vector_dims) == 1 or (len(vector_dims) == 2 and vector_dims[0] == 1)
        else:
            fits = dims in ((-1,), (-1, 1)) and len(vector_dims) == 2 and vector_dims[0] == -1
        if not fits or (vector_dims[-1] == 1) is not (self.task is Task.SCORE):
            row = "number" if self.task is Task.SCORE else "vector"
            raise self._unfit(
                f"input '{self._input.name}' of {list(dims)} and output '{self._vector.name}' of {list(vector_dims)} "
                f"with max_batch_size {config.max_batch_size} are not one text and one {row} each"
            )
        if self._batches:
            return config.max_batch_size
        return 1 if dims == (1,) else _LIST_SIZE

    def _unfit(self, reason: str) -> Unsupported:
        return Unsupported(f"The model `{self._model}` is not {_NAMES[self.task]}: {reason}.")


def _task(config: ModelConfig) -> Task:
    named = config.parameters.get(TEXT_TASK, Task.EMBED.value)
    try:
        return Task(named)
    except ValueError:
        known = ", ".join(task.value for task in Task)
        raise Unsupported(
            f"The parameter '{TEXT_TASK}' of the model `{config.name}` is '{named}', not one of {known}."
        ) from None


def _labels(config: ModelConfig) -> list[str]:
    """Return the names of classes. A parameter that is not a JSON array counts as none."""
    try:
        names = orjson.loads(config.parameters.get(LABELS, "[]"))
    except orjson.JSONDecodeError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def cut(vectors: Sequence[npt.NDArray[np.float32]], dimensions: int) -> list[npt.NDArray[np.float32]]:
    """Return vectors truncated to `dimensions` and normalized. To be called after `check_dimensions`."""
    if len(vectors[0]) == dimensions:
        return [*vectors]
    shorter = [vector[:dimensions] for vector in vectors]
    return [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in shorter]


def check_dimensions(model: str, size: int, lengths: Sequence[int], dimensions: int) -> None:
    """Raise InvalidRequest unless vectors of `size` elements, -1 for unknown, may be truncated to `dimensions`."""
    if dimensions == size or dimensions in lengths:
        return
    known = f"have {size} dimensions" if size > 0 else "have a fixed number of dimensions"
    listed = ", ".join(map(str, lengths))
    cuts = f"may be truncated to {listed}" if listed else "cannot be truncated"
    raise InvalidRequest(
        f"'dimensions' {dimensions} is not supported: vectors of the model `{model}` {known} and {cuts}."
    )


def matryoshka_lengths(config: ModelConfig) -> list[int]:
    """Return the lengths to which vectors may be truncated. Invalid numbers in the parameter are ignored."""
    listed = config.parameters.get(MATRYOSHKA_DIMENSIONS, "")
    return [int(word) for word in listed.replace(",", " ").split() if word.isdecimal() and int(word)]
