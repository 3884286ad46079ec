"""The responses of one model version in the response cache, looked up before anything else is done for a request.

A hit needs no validation, no place in the queue and no instance: the cache holds responses to valid requests only.
Concurrent equal requests are not coalesced: one that waited for the answer of another would depend on that one's
priority, timeout, cancellation and failure.
"""

import asyncio
import logging
from functools import partial
from time import monotonic_ns

import numpy as np

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.sliced_copy import MIN_SLICED_BYTES, SlicedCopy, copy_in_slices
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.domain.tensor import Tensor
from conch.server.core.cache_key import cache_key
from conch.server.core.pending import Pending, State
from conch.server.core.response_cache import CachedResponse, ResponseCache
from conch.server.core.response_order import ResponseOrder

_log = logging.getLogger(__name__)


class ModelCache:
    """The cached responses of one model version; hits and misses count in its `statistics`."""

    def __init__(self, cache: ResponseCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        statistics.cached = True
        # Not name and version: a reloaded model must not hit the responses of the old one.
        self._model = cache.new_model()
        self._keys: set[bytes] = set()
        self._closed = False
        self._noted_surplus = False

    def __repr__(self) -> str:
        return f"<ModelCache {self._statistics.model_name}/{self._statistics.version} {len(self._keys)} answers>"

    def look_up(self, request: InferRequest, respond: Respond, order: ResponseOrder | None = None) -> Pending | Respond:
        """Return the request, admitted and answered, for a hit; for a miss the callback to answer it by.

        `order` is the order of the model's responses, if it preserves one. The step of an ensemble is answered in the
        next turn of the loop, others before this returns: waiting for a turn would cost as much as the lookup.
        """
        if self._closed:
            return respond
        began = monotonic_ns()
        key = cache_key(self._model, request)
        answer = self._cache.find(key)
        now = monotonic_ns()
        self._cache.statistics.lookup_ns += now - began
        if answer is None:
            return _Miss(self, key, self._keys, now - began, respond).respond
        timeline = request.timeline
        timeline.queued = began
        timeline.started = timeline.input_done = timeline.infer_done = now
        if request.span is not None:
            request.span.hit()
        pending = Pending(request, respond if order is None else order.enter(respond), self)
        if request.admitted:
            asyncio.get_running_loop().call_soon(pending.finish, self._response(answer, request))
        else:
            pending.finish(self._response(answer, request))
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:  # noqa: ARG002
        """Count a hit."""
        timeline = pending.request.timeline
        total = timeline.done - timeline.received
        if isinstance(answer, ConchError):
            self._statistics.count_failure(total, answer.reason)
        else:
            self._statistics.count_hit(total, timeline.started - timeline.queued)
        if self._statistics.declared is not None:
            self._statistics.declared.end(pending.request, answer, None, cache_hit=True)

    def forget(self) -> None:
        """Drop all responses, because the model has changed. Responses to requests in flight are not stored either."""
        self._cache.forget(self._keys)
        self._keys = set()

    def close(self) -> None:
        """Drop all responses and store no more: the model is out of service."""
        self._closed = True
        self.forget()

    def missed(self, key: bytes, group: set[bytes], answer: InferResponse | ConchError | None, lookup_ns: int) -> None:
        """Count a miss that the model has answered, and store the answer if it is a response."""
        began = monotonic_ns()
        # After `forget`, the response is one of the model before the change.
        if isinstance(answer, InferResponse) and group is self._keys:
            self._store(key, answer, group)
        self._statistics.count_miss(lookup_ns + monotonic_ns() - began)

    def _store(self, key: bytes, response: InferResponse, group: set[bytes]) -> None:
        """Store a response; a large one is copied in slices first."""
        if not self._cache.fits(response):
            self._note_surplus(key)
        sizes = [tensor.nbytes for tensor in response.outputs]
        if sum(sizes) < MIN_SLICED_BYTES or not self._cache.fits(response):
            self._cache.insert(key, response, group)
            return
        copies, outputs = [], []
        for tensor, size in zip(response.outputs, sizes, strict=True):
            copy = np.empty(size, np.uint8)
            if size:
                copies.append(SlicedCopy(copy, tensor.data))
            outputs.append(Tensor(tensor.name, tensor.datatype, tensor.shape, copy.data))
        stored = InferResponse(response.model_name, response.model_version, outputs, parameters=response.parameters)
        copy_in_slices(copies, partial(self._store_copied, key, stored, group))

    def _note_surplus(self, key: bytes) -> None:
        """Log, once for the model, that responses are too large to be stored."""
        if not self._noted_surplus:
            self._noted_surplus = True
            name, version = self._statistics.model_name, self._statistics.version
            _log.warning(
                "Failed to insert key [%s] into response cache: a response of model '%s' version %d is larger than the "
                "whole cache of %d bytes; use a larger --cache-config=local,size=<bytes>",
                *(key.hex()[:16], name, version, self._cache.statistics.size),
            )

    def _store_copied(self, key: bytes, stored: InferResponse, group: set[bytes]) -> None:
        if group is self._keys:
            self._cache.insert(key, stored, group, copied=True)

    def _response(self, answer: CachedResponse, request: InferRequest) -> InferResponse:
        statistics = self._statistics
        return InferResponse(
            statistics.model_name,
            statistics.version,
            list(answer.outputs),
            id=request.id,
            parameters=dict(answer.parameters),
        )


class _Miss:
    """One request that the model must answer: forwards its responses, and stores a single one."""

    __slots__ = ("_cache", "_group", "_key", "_lookup_ns", "_only", "_respond")

    def __init__(self, cache: ModelCache, key: bytes, group: set[bytes], lookup_ns: int, respond: Respond) -> None:
        self._cache = cache
        self._key = key
        self._group = group
        self._lookup_ns = lookup_ns
        self._respond = respond
        self._only = True  # an ensemble with a decoupled step may send any number of responses

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Take a response of the model; see `request.Respond`."""
        if final:
            self._cache.missed(self._key, self._group, answer if self._only else None, self._lookup_ns)
        else:
            self._only = False
        self._respond(answer, final)
