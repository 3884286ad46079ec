"""Texts as requests of a model of token ids, and its outputs as rows: vectors, scores, probabilities.

The tokenizer runs in one thread for each model, slice by slice, so that a call of many texts delays others by a slice.
Texts of a slice are sorted by length and padded to the next length of `BUCKETS`: requests of equal shapes share
batches, also with those of other calls, and hold little padding.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError, ConchError, InvalidRequest, Unsupported
from conch.domain.llm.text_model import TOKENIZER, Task, TextModel, read_tokenizer, text_model
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import NUMPY_DTYPES, Tensor

_log = getLogger(__name__)

Rows = list[npt.NDArray[np.float32]]
Text = str | Sequence[int] | tuple[str, str]

# Lengths to which texts are padded: on average 5 to 10 % more tokens than they have.
BUCKETS = (
    *range(4, 33, 4),
    *range(40, 81, 8),
    *range(96, 193, 16),
    *range(224, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
    *range(2304, 8193, 256),
)
# Of one request. A call has several in flight, between which those of other clients are executed.
_MAX_ITEMS = 16
_MAX_TOKENS = 4096
# Of one slice of a call: what the tokenizer encodes before it looks at other calls.
_SLICE_TEXTS = 256
_SLICE_CHARACTERS = 262_144
# Of one text for each token that the model takes: what is beyond is not encoded, which takes 200 times its memory.
_MAX_CHARACTERS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Truncation:
    """How long texts are handled: `limit` tokens are kept of each, the last ones if `keep_last`.

    `limit` 0 refuses a text that is longer than the model's maximum, -1 truncates to that. Of a query and a document
    only the document is truncated, also to `document` tokens unless that is 0; without `document` (None), the longer
    text of a pair.
    """

    limit: int = 0
    keep_last: bool = False
    document: int | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A slice of texts: the tensors of requests with the places of their texts, tokens, and truncated texts."""

    groups: list[tuple[list[int], list[Tensor]]]
    tokens: int
    truncated: int


def open_text_encoder(config: ModelConfig, folder: Path) -> "TextEncoder | None":
    """Return the encoder of a model whose version folder has a tokenizer; None if it serves tensors only. Blocks."""
    try:
        model = text_model(config, folder)
        return None if model is None else TextEncoder(config, model, folder / TOKENIZER)
    except Unsupported as error:
        _log.warning("model '%s' serves tensors only, no texts: %s", config.name, error.message)
        return None


class TextEncoder:
    """The tokenizer of one model version, and the form of its tensors."""

    def __init__(self, config: ModelConfig, model: TextModel, path: Path) -> None:
        """Read the tokenizer. Raises Unsupported if it cannot be read, or if its package is missing."""
        self._tokenizer = read_tokenizer(path)
        # A checkpoint's tokenizer may pad and truncate as in its training.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._vocabulary: int = self._tokenizer.get_vocab_size()
        self.model = model
        self.name = config.name
        self.max_tokens = model.fixed_tokens or min(model.max_tokens, BUCKETS[-1])
        self._max_items = min(config.max_batch_size or _MAX_ITEMS, _MAX_ITEMS)
        self._threads = ThreadPoolExecutor(1, f"tokenizer {config.name}")

    def submit(
        self,
        texts: Sequence[Text],
        start: int,
        truncation: Truncation,
        done: Callable[[Encoded | ConchError], None],
        named: Callable[[int], str],
    ) -> None:
        """Encode a slice of texts, whose first has the place `start`; `done` is called on the event loop.

        `named` returns the name of the text at a place in messages.
        """
        loop = asyncio.get_running_loop()

        def ended(future: "Future[Encoded]") -> None:
            error = future.exception()
            if error is not None and not isinstance(error, ConchError):
                _log.error("the tokenizer of model '%s' failed", self.name, exc_info=error)
                error = BackendError(f"the tokenizer of model '{self.name}' failed: {type(error).__name__}")
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(done, future.result() if error is None else error)

        self._threads.submit(self._encode, texts, start, truncation, named).add_done_callback(ended)

    def request(self, tensors: list[Tensor], version: int, timeline: Timeline, *, tokens: bool) -> InferRequest:
        """Return the request of a group; `tokens`: for the vectors of its tokens."""
        outputs = (self.model.tokens if tokens else self.model.output,)
        return InferRequest(self.name, tensors, version=version, outputs=outputs, timeline=timeline.part())

    def rows(self, request: InferRequest, response: InferResponse, *, raw: bool, tokens: bool) -> Rows:
        """Return the row of each text: its vector, its score or probabilities, logits if `raw`; or token vectors.

        Raises BackendError for an output of another shape.
        """
        model, name = self.model, self.model.tokens if tokens else self.model.output
        output = response.output(name)
        batch, length = request.inputs[0].shape
        values = None if output is None else output.to_numpy().astype(np.float32, copy=False)
        by_token = tokens or bool(model.pooling)
        if values is None or values.shape[:-1] != ((batch, length) if by_token else (batch,)):
            shape = None if values is None else list(values.shape)
            raise BackendError(f"output '{name}' of model '{self.name}' has the shape {shape} for {batch} texts")
        mask = next((tensor for tensor in request.inputs if model.mask and tensor.name == model.mask.name), None)
        lengths = [length] * batch if mask is None else mask.to_numpy().sum(axis=1).tolist()
        if tokens:
            return [vectors[:count] for vectors, count in zip(values, lengths, strict=True)]
        if model.pooling:
            values = np.stack([_POOL[model.pooling](row[:count]) for row, count in zip(values, lengths, strict=True)])
        if model.task is not Task.EMBED:
            return [*(values if raw else activated(values, model.activation))]
        if model.normalize and not raw:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        return [*values]

    def _encode(
        self, texts: Sequence[Text], start: int, truncation: Truncation, named: Callable[[int], str]
    ) -> Encoded:
        """Runs in the tokenizer's thread."""
        entries = [*self._entries(texts, truncation, lambda place: named(start + place))]
        order = sorted(range(len(entries)), key=lambda place: len(entries[place].ids))
        groups = []
        for length, same in groupby(order, key=lambda place: self._padded(len(entries[place].ids))):
            places = [*same]
            items = max(1, min(self._max_items, _MAX_TOKENS // length))
            for begin in range(0, len(places), items):
                chosen = places[begin : begin + items]
                tensors = self._tensors([entries[place] for place in chosen], length)
                groups.append(([start + place for place in chosen], tensors))
        tokens, truncated = sum(len(entry.ids) for entry in entries), sum(entry.truncated for entry in entries)
        return Encoded(groups, tokens, truncated)

    def _entries(
        self, texts: Sequence[Text], truncation: Truncation, named: Callable[[int], str]
    ) -> "Iterator[_Entry]":
        is_pair = isinstance(texts[0], tuple)
        limit = self.max_tokens if truncation.limit <= 0 else min(truncation.limit, self.max_tokens)
        special = self._tokenizer.num_special_tokens_to_add(is_pair)
        if not isinstance(texts[0], (str, tuple)):
            yield from (self._of_ids(ids, partial(named, place), truncation, limit) for place, ids in enumerate(texts))
            return
        self._tokenizer.no_truncation()  # that of the slice before
        cut = [False] * len(texts)
        if truncation.limit or truncation.document is not None:
            texts, cut = self._shortened(texts, truncation)
        self._check_characters(texts, named)
        strategy = "longest_first"
        if is_pair and truncation.document is not None:
            strategy = "only_second"
            query = len(self._tokenizer.encode(texts[0][0], add_special_tokens=False).ids)
            if query + special >= limit:
                raise InvalidRequest(
                    f"the query has {query} tokens, which leaves no room for a document: the model `{self.name}` "
                    f"takes {limit} tokens of both"
                )
            if truncation.document:
                limit = min(limit, query + special + truncation.document)
        if truncation.limit or truncation.document is not None:
            if limit <= special:
                raise InvalidRequest(f"texts truncated to {limit} tokens are empty: {special} tokens are special ones")
            side = "left" if truncation.keep_last else "right"
            self._tokenizer.enable_truncation(limit, strategy=strategy, direction=side)
        for place, encoding in enumerate(self._tokenizer.encode_batch_fast([*texts])):
            ids = encoding.ids
            if len(ids) > limit:
                raise self._too_long(named(place), len(ids))
            yield _Entry(ids, encoding.type_ids, bool(encoding.overflowing) or cut[place])

    def _shortened(self, texts: Sequence[Any], truncation: Truncation) -> tuple[list[Any], list[bool]]:
        """Return texts without the characters that no truncation keeps, and which of them are shorter now."""
        most = self.max_tokens * _MAX_CHARACTERS_PER_TOKEN
        kept = slice(-most, None) if truncation.keep_last else slice(most)
        last = [text[1] if isinstance(text, tuple) else text for text in texts]
        cut = [len(text) > most for text in last]
        if not any(cut):
            return [*texts], cut
        return [(text[0], text[1][kept]) if isinstance(text, tuple) else text[kept] for text in texts], cut

    def _check_characters(self, texts: Sequence[Any], named: Callable[[int], str]) -> None:
        most = self.max_tokens * _MAX_CHARACTERS_PER_TOKEN
        for place, text in enumerate(texts):
            longest = max(map(len, text)) if isinstance(text, tuple) else len(text)
            if longest > most:
                raise InvalidRequest(
                    f"{named(place)} has {longest} characters: the model `{self.name}` takes "
                    f"{self.max_tokens} tokens, so {most} characters at most"
                )

    def _of_ids(self, text: Any, named: Callable[[], str], truncation: Truncation, limit: int) -> "_Entry":
        ids = [*text]
        if max(ids) >= self._vocabulary:
            raise InvalidRequest(
                f"token id {max(ids)} of {named()} is out of the vocabulary of {self._vocabulary} tokens"
            )
        if len(ids) <= limit:
            return _Entry(ids, [0] * len(ids), False)
        if not truncation.limit:
            raise self._too_long(named(), len(ids))
        return _Entry(ids[-limit:] if truncation.keep_last else ids[:limit], [0] * limit, True)

    def _too_long(self, name: str, tokens: int) -> InvalidRequest:
        return InvalidRequest(
            f"This model's maximum context length is {self.max_tokens} tokens. However, {name} has "
            f"{tokens} tokens. Please reduce its length, or truncate it: 'truncate_prompt_tokens': -1."
        )

    def _padded(self, tokens: int) -> int:
        """Return the length to which a text is padded; a model without a mask would see the padding."""
        if self.model.fixed_tokens:
            return self.model.fixed_tokens
        if self.model.mask is None:
            return tokens
        return int(min(BUCKETS[bisect_left(BUCKETS, tokens)], self.max_tokens))

    def _tensors(self, entries: "Sequence[_Entry]", length: int) -> list[Tensor]:
        model, shape = self.model, (len(entries), length)
        ids, mask, types = np.full(shape, model.pad_id, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, entry in enumerate(entries):
            count = len(entry.ids)
            ids[row, :count], mask[row, :count] = entry.ids, 1
            if model.types is not None:
                types[row, :count] = entry.types
        filled = ((model.ids, ids), (model.mask, mask), (model.types, types))
        return [_tensor(spec, array) for spec, array in filled if spec is not None]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One encoded text or pair."""

    ids: list[int]
    types: list[int]
    truncated: bool


def slices(texts: Sequence[Text]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the slices in which the texts of a call are encoded."""
    start = characters = 0
    for place, text in enumerate(texts):
        if place - start == _SLICE_TEXTS or characters > _SLICE_CHARACTERS:
            yield start, place
            start, characters = place, 0
        characters += len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)
    yield start, len(texts)


def activated(logits: npt.NDArray[np.float32], activation: str) -> npt.NDArray[np.float32]:
    """Return the probabilities of logits [batch, labels]."""
    if activation == "sigmoid":
        # Without overflow for either sign.
        return np.exp(-np.logaddexp(0, -logits)).astype(np.float32)
    if activation == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
    return logits


def _tensor(spec: TensorSpec, array: npt.NDArray[np.int64]) -> Tensor:
    return Tensor.from_numpy(spec.name, array.astype(NUMPY_DTYPES[spec.datatype], copy=False))


_POOL: dict[str, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = {
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "last_token": lambda rows: rows[-1],
}
