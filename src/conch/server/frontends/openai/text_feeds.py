"""The requests of one call about texts, in order, and the rows of their responses."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from conch.base.errors import BackendError, ConchError
from conch.domain.llm.text_form import TextForm, check_dimensions, matryoshka_lengths
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.protocols.openai.text_calls import Rows, TextCall
from conch.server.core.served_model import ServedModel
from conch.server.core.text_encoder import Encoded, Text, TextEncoder, Truncation, slices


class Feed(ABC):
    """Yields the requests of a call as there is room for them. `tokens` are those of all texts so far.

    `labels` are the names of a classifier's classes.

    `max_in_flight` is how many the model may hold: enough for full batches and busy instances, while a call of many
    texts neither fills the queue nor delays other calls until all of it is done.
    """

    max_in_flight = 16
    tokens = 0
    truncated = 0
    labels: Sequence[str] = ()

    @abstractmethod
    def take(self) -> tuple[list[int], InferRequest] | None:
        """Return the next request and the places of its texts; None if none is ready."""

    def fetch(self, done: Callable[[ConchError | None], None]) -> bool:  # noqa: ARG002 - for feeds that wait
        """Make further requests ready, then call `done`. False if there are none."""
        return False

    @abstractmethod
    def rows(self, request: InferRequest, response: InferResponse) -> Rows:
        """Return the row of each text of a request. Raises BackendError."""

    @abstractmethod
    def check_dimensions(self, dimensions: int) -> None:
        """Raise InvalidRequest unless the vectors may be truncated to this number of dimensions."""


class FormFeed(Feed):
    """Of a model that takes texts itself, or token ids without a tokenizer."""

    def __init__(self, form: TextForm, requests: Iterator[tuple[list[int], InferRequest]]) -> None:
        self._form = form
        self._requests = requests
        self.labels = form.labels

    def take(self) -> tuple[list[int], InferRequest] | None:
        return next(self._requests, None)

    def rows(self, request: InferRequest, response: InferResponse) -> Rows:
        rows = self._form.rows(request, response)
        self.tokens += rows.tokens
        self.truncated += rows.truncated
        return _finite([*rows.values], request.model_name)

    def check_dimensions(self, dimensions: int) -> None:
        self._form.check_dimensions(dimensions)


class EncoderFeed(Feed):
    """Of a model with a tokenizer: texts are encoded slice by slice, the next one when all requests have been taken."""

    def __init__(
        self, model: ServedModel, encoder: TextEncoder, texts: Sequence[Text], call: TextCall, timeline: Timeline
    ) -> None:
        self._encoder = encoder
        self.labels = encoder.model.labels
        self._texts = texts
        self._call = call
        self._truncation = Truncation(call.limit, call.keep_last, call.document_tokens)
        self._version = model.version
        self._lengths = matryoshka_lengths(model.config)
        self._timeline = timeline
        self._slices = slices(texts)
        self._ready: deque[tuple[list[int], list[Tensor]]] = deque()
        self._waiting = False
        # Each may have 16 texts.
        self.max_in_flight = 4 * max(1, sum(group.count for group in model.config.instance_groups))

    def take(self) -> tuple[list[int], InferRequest] | None:
        if not self._ready:
            return None
        places, tensors = self._ready.popleft()
        by_token = self._call.by_token
        return places, self._encoder.request(tensors, self._version, self._timeline, tokens=by_token)

    def fetch(self, done: Callable[[ConchError | None], None]) -> bool:
        if self._waiting:
            return True
        bounds = next(self._slices, None)
        if bounds is None:
            return False
        self._waiting = True
        start, end = bounds
        named = partial(self._call.text_name, paired=isinstance(self._texts[0], tuple))
        self._encoder.submit(self._texts[start:end], start, self._truncation, partial(self._encoded, done), named)
        return True

    def _encoded(self, done: Callable[[ConchError | None], None], encoded: Encoded | ConchError) -> None:
        self._waiting = False
        if isinstance(encoded, ConchError):
            done(encoded)
            return
        self._ready.extend(encoded.groups)
        self.tokens += encoded.tokens
        self.truncated += encoded.truncated
        done(None)

    def rows(self, request: InferRequest, response: InferResponse) -> Rows:
        rows = self._encoder.rows(request, response, raw=self._call.raw, tokens=self._call.by_token)
        return _finite(rows, self._call.model)

    def check_dimensions(self, dimensions: int) -> None:
        check_dimensions(self._call.model, self._encoder.model.size, self._lengths, dimensions)


def _finite(rows: Rows, model: str) -> Rows:
    if not all(np.isfinite(row).all() for row in rows):
        raise BackendError(f"the model `{model}` gave a number that is not finite (NaN or infinity)")
    return rows
