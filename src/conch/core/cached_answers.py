"""What one served version of a model has in the response cache: asked before anything else is done for a request.

A hit needs no check, no place in the queue and no instance: only what was once right and answered is in the cache. Each
of several equal requests that come before the first answer is executed: one that waited for another's answer would
depend on that one's priority, time-out, cancellation and failure.
"""

import asyncio
from time import monotonic_ns

import numpy as np

from conch.core.cache_key import cache_key
from conch.core.pending import Pending, State
from conch.core.response_cache import CachedResponse, ResponseCache
from conch.core.response_order import ResponseOrder
from conch.errors import ConchError
from conch.observability.metrics.statistics import ModelStatistics
from conch.request import InferRequest, InferResponse, Respond
from conch.sliced_copy import MIN_SLICED_BYTES, SlicedCopy, copy_in_slices
from conch.tensor import Tensor


class ModelCache:
    """The answers of one model version, counted in its `statistics`."""

    def __init__(self, cache: ResponseCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        statistics.cached = True
        # Not the name and the number of the version: a reloaded model is another one.
        self._model = cache.new_model()
        self._keys: set[bytes] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ModelCache {self._statistics.model_name}/{self._statistics.version} {len(self._keys)} answers>"

    def look_up(self, request: InferRequest, respond: Respond, order: ResponseOrder | None = None) -> Pending | Respond:
        """Return the request admitted and answered; or, if the model must be asked, how it is to answer.

        `order` is the one that the model's answers keep. The step of an ensemble is answered in the next turn of the
        loop, others before this returns: waiting for a turn would cost as much as finding the answer.
        """
        if self._closed:
            return respond
        began = monotonic_ns()
        key = cache_key(self._model, request)
        answer = self._cache.find(key)
        now = monotonic_ns()
        self._cache.statistics.lookup_ns += now - began
        if answer is None:
            return self._keeping(key, now - began, respond)
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

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, was: State) -> None:  # noqa: ARG002
        """Write a hit into the books."""
        timeline = pending.request.timeline
        total = timeline.done - timeline.received
        if isinstance(answer, ConchError):
            self._statistics.count_failure(total, answer.reason)
        else:
            self._statistics.count_hit(total, timeline.started - timeline.queued)

    def forget(self) -> None:
        """Let all answers go: they are not what the model would say now. Requests under way are not kept either."""
        self._cache.forget(self._keys)
        self._keys = set()

    def close(self) -> None:
        """Let all answers go and keep none any more: the model is out of service."""
        self._closed = True
        self.forget()

    def _keeping(self, key: bytes, lookup_ns: int, respond: Respond) -> Respond:
        group = self._keys
        alone = True

        def keep(answer: InferResponse | ConchError | None, final: bool) -> None:
            nonlocal alone
            if not final:
                alone = False  # an ensemble with a decoupled step may give any number of responses
            else:
                began = monotonic_ns()
                # An answer of a model that has changed meanwhile would outlive the change.
                if alone and isinstance(answer, InferResponse) and group is self._keys:
                    self._keep(key, answer, group)
                self._statistics.count_miss(lookup_ns + monotonic_ns() - began)
            respond(answer, final)

        return keep

    def _keep(self, key: bytes, response: InferResponse, group: set[bytes]) -> None:
        """Put a response into the cache, at once or, if it is large, when it has been copied in slices."""
        sizes = [tensor.nbytes for tensor in response.outputs]
        if sum(sizes) < MIN_SLICED_BYTES or not self._cache.fits(response):
            self._cache.insert(key, response, group)
            return
        copies, outputs = [], []
        for tensor, size in zip(response.outputs, sizes, strict=True):
            room = np.empty(size, np.uint8)
            if size:
                copies.append(SlicedCopy(room, tensor.data))
            outputs.append(Tensor(tensor.name, tensor.datatype, tensor.shape, room.data))
        kept = InferResponse(response.model_name, response.model_version, outputs, parameters=response.parameters)

        def copied() -> None:
            if group is self._keys:
                self._cache.insert(key, kept, group, copied=True)

        copy_in_slices(copies, copied)

    def _response(self, answer: CachedResponse, request: InferRequest) -> InferResponse:
        statistics = self._statistics
        return InferResponse(
            statistics.model_name,
            statistics.version,
            list(answer.outputs),
            id=request.id,
            parameters=dict(answer.parameters),
        )
