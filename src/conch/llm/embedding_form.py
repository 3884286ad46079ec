"""The tensor form of embeddings: how a served model that turns texts into vectors is asked, and its answers are read.

Any model will do that has one required input, for texts (BYTES, one element for each) or for token ids (INT32 or INT64
of any length), and one floating-point output that is a vector for each text. Where a further output `num_input_tokens`
holds integers, those are the texts' numbers of tokens. The parameter `matryoshka_dimensions` of the configuration,
"64,128" for example, lists the lengths that the model's vectors may be cut to.

A model of texts with the parameter `tokenizes` has its tokenizer at hand: it takes token ids as texts that hold JSON
arrays, in requests with the parameter `token_ids`, and `truncate_prompt_tokens` and `truncation_side` as parameters.
The parameter `token_ids_model` of another names a model, its encoder for example, that takes the token ids in its
place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import orjson

from conch.errors import BackendError, InvalidRequest, Unsupported
from conch.model_config import ModelConfig
from conch.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.tensor import BYTES, NUMPY_DTYPES, Tensor

NUM_INPUT_TOKENS = "num_input_tokens"
MATRYOSHKA_DIMENSIONS = "matryoshka_dimensions"
TOKENIZES = "tokenizes"
TOKEN_IDS_MODEL = "token_ids_model"  # noqa: S105 - no password

_FLOATS = ("FP16", "FP32", "FP64")
_INTEGERS = ("INT32", "INT64", "UINT32", "UINT64")
_TOKENS = ("INT32", "INT64")
# How many texts a model that does not batch, but takes a list, is given at once.
_LIST_SIZE = 64

Inputs = Sequence[str | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Vectors:
    """What a model has answered: an array [texts, size] of FP32, and the tokens that the texts had in all."""

    values: npt.NDArray[np.float32]
    tokens: int


class EmbeddingForm:
    """The tensors of a model that makes embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        """Find the tensors. Raises Unsupported with what the model has in their place."""
        self._model = config.name
        if config.decoupled or config.sequence_batching is not None:
            raise self._unfit("its requests are decoupled or belong to sequences")
        required = [spec for spec in config.inputs if not spec.optional]
        vectors = [spec for spec in config.outputs if spec.datatype in _FLOATS]
        if len(required) != 1 or len(vectors) != 1:
            raise self._unfit(f"it has {len(required)} required inputs and {len(vectors)} floating-point outputs")
        (self._input,), (self._vector,) = required, vectors
        counts = [spec for spec in config.outputs if spec.name == NUM_INPUT_TOKENS and spec.datatype in _INTEGERS]
        self._outputs = (self._vector.name, *(spec.name for spec in counts))
        self.takes_tokens = self._input.datatype in _TOKENS
        self._batches = config.max_batch_size > 0
        self._at_once = self._most_at_once(config)
        self._cuts = _cuts(config)
        self._tokenizes = config.parameters.get(TOKENIZES, "").lower() == "true"

    def requests(
        self,
        inputs: Inputs,
        version: int,
        timeline: Timeline,
        *,
        truncate: int | None = None,
        keep_last: bool = False,
    ) -> Iterator[tuple[list[int], InferRequest]]:
        """Return inference requests for all texts, each with the places in `inputs` of those that it holds.

        `truncate` keeps so many tokens of each, -1 as many as the model takes. Raises Unsupported if the texts are not
        in the form that the model takes, or if it cannot truncate them.
        """
        tokens = not isinstance(inputs[0], str)
        parameters: dict[str, ParameterValue] = {}
        if self._tokenizes:
            if tokens:
                parameters["token_ids"] = True
                inputs = [orjson.dumps([*each]).decode() for each in inputs]
            if truncate is not None:
                parameters["truncate_prompt_tokens"] = truncate
                parameters["truncation_side"] = "left" if keep_last else "right"
        elif tokens != self.takes_tokens:
            taken, given = ("token ids", "text") if self.takes_tokens else ("text", "token ids")
            raise Unsupported(f"The model `{self._model}` takes {taken}, 'input' holds {given}.")
        elif truncate is not None and truncate > 0:
            if not tokens:
                raise Unsupported(
                    f"'truncate_prompt_tokens' is not supported: the model `{self._model}` takes text, and its tokens "
                    "are not known; -1 leaves it to the model."
                )
            inputs = [each[-truncate:] if keep_last else each[:truncate] for each in inputs]
        return (
            (places, self._request(inputs, places, version, timeline, parameters)) for places in self._groups(inputs)
        )

    def vectors(self, request: InferRequest, response: InferResponse) -> Vectors:
        """Read the answer to one of the requests. Raises BackendError if there are not as many vectors as texts."""
        texts = 1 if self._input.dims == (1,) and not self._batches else request.inputs[0].shape[0]
        vector = response.output(self._vector.name)
        if vector is None:
            raise BackendError(f"model '{self._model}' has given no '{self._vector.name}'")
        values = vector.to_numpy().astype(np.float32, copy=False)
        if texts > 1 and values.shape[:1] != (texts,):
            raise BackendError(
                f"'{vector.name}' of model '{self._model}' is {list(values.shape)}, not a vector for each of {texts}"
            )
        count = response.output(NUM_INPUT_TOKENS)
        if self.takes_tokens:
            tokens = int(np.prod(request.inputs[0].shape))
        else:
            tokens = int(count.to_numpy().sum()) if count is not None else 0
        return Vectors(values.reshape(texts, -1), tokens)

    def cut(self, vectors: Sequence[npt.NDArray[np.float32]], dimensions: int) -> list[npt.NDArray[np.float32]]:
        """Return vectors cut to so many numbers, of length one again. `check_dimensions` comes first."""
        if len(vectors[0]) == dimensions:
            return [*vectors]
        cut = [vector[:dimensions] for vector in vectors]
        return [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in cut]

    def check_dimensions(self, dimensions: int) -> None:
        """Raise InvalidRequest unless the model's vectors have so many numbers or are made to be cut to them."""
        size = self._vector.dims[-1]
        if dimensions == size or dimensions in self._cuts:
            return
        known = f"has {size} numbers" if size > 0 else "has a length of the model's own"
        cuts = f"may be cut to {', '.join(map(str, self._cuts))}" if self._cuts else "is not made to be cut"
        raise InvalidRequest(
            f"'dimensions' {dimensions} is not supported: a vector of the model `{self._model}` {known} and {cuts}."
        )

    def _request(
        self,
        inputs: Inputs,
        places: list[int],
        version: int,
        timeline: Timeline,
        parameters: dict[str, ParameterValue],
    ) -> InferRequest:
        tensor = self._tensor([inputs[place] for place in places])
        return InferRequest(
            self._model,
            [tensor],
            version=version,
            outputs=self._outputs,
            parameters=dict(parameters),
            timeline=Timeline(timeline.received),
        )

    def _groups(self, inputs: Inputs) -> Iterator[list[int]]:
        """Yield the places of texts that may share a request: token ids do only if they are equally many."""
        places = list(range(len(inputs)))
        if not self.takes_tokens:
            alike = [places]
        else:
            places.sort(key=lambda place: len(inputs[place]))
            alike = [list(group) for _, group in groupby(places, key=lambda place: len(inputs[place]))]
        for group in alike:
            for start in range(0, len(group), self._at_once):
                yield group[start : start + self._at_once]

    def _tensor(self, texts: Inputs) -> Tensor:
        spec = self._input
        if self.takes_tokens:
            return Tensor.from_numpy(spec.name, np.array(texts, NUMPY_DTYPES[spec.datatype]))
        array = np.empty(len(texts), np.object_)
        array[:] = texts
        return Tensor.from_numpy(spec.name, array.reshape(-1, *[1] * self._trailing))

    @property
    def _trailing(self) -> int:
        """How many axes a tensor of texts has behind that which counts them."""
        return len(self._input.dims) if self._batches else len(self._input.dims) - 1

    def _most_at_once(self, config: ModelConfig) -> int:
        """Return how many texts a request may hold. Raises Unsupported if the tensors are not lists of them."""
        taken, given = self._input.dims, self._vector.dims
        if self.takes_tokens:
            fits = taken == (-1,) and len(given) == 1 if self._batches else taken == (-1, -1) and len(given) == 2
        elif self._input.datatype != BYTES:
            raise self._unfit(f"its input '{self._input.name}' is {self._input.datatype}")
        elif self._batches:
            fits = taken in ((1,), (-1,)) and len(given) == 1
        elif taken == (1,):
            fits = len(given) == 1 or (len(given) == 2 and given[0] == 1)
        else:
            fits = taken in ((-1,), (-1, 1)) and len(given) == 2 and given[0] == -1
        if not fits or given[-1] == 1:
            raise self._unfit(
                f"input '{self._input.name}' of {list(taken)} and output '{self._vector.name}' of {list(given)} "
                f"with max_batch_size {config.max_batch_size} are not one text and one vector each"
            )
        if self._batches:
            return config.max_batch_size
        return 1 if taken == (1,) else _LIST_SIZE

    def _unfit(self, why: str) -> Unsupported:
        return Unsupported(f"The model `{self._model}` does not make embeddings: {why}.")


def _cuts(config: ModelConfig) -> list[int]:
    """Return the lengths that vectors may be cut to. What is no number in the parameter is none."""
    listed = config.parameters.get(MATRYOSHKA_DIMENSIONS, "")
    return [int(each) for each in listed.replace(",", " ").split() if each.isdecimal() and int(each)]
