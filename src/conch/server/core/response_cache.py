# Compiled by mypyc in wheels.
"""The response cache: responses of models for equal requests, one cache for the whole server.

It is bounded in bytes and evicts the least recently used entry. Entries are copied out of the memory of the model, so
that an entry takes as much memory as it counts for.

Two requests are equal if the model cannot distinguish them. Triton compares only the bytes of the inputs, so that shape
[2, 3] gets the response for [3, 2], and a request for one output gets those of another. Here everything counts that can
change a response: name, datatype, shape and bytes of each input, the requested outputs, parameters and the sequence.
Id, priority and timeout do not count, nor does the order of inputs and parameters.

`ModelCache` looks a request up before anything else is done for it. A hit needs no validation, no place in the queue
and no instance: the cache holds responses to valid requests only. Concurrent equal requests are not coalesced: one that
waited for the answer of another would depend on that one's priority, timeout, cancellation and failure.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import count
from marshal import dumps
from time import monotonic_ns
from typing import Final

import numpy as np
from blake3 import blake3

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, ParameterValue, Respond
from conch.domain.scheduling.waiting import State
from conch.domain.sliced_copy import MIN_SLICED_BYTES, SlicedCopy, copy_in_slices
from conch.domain.statistics.model_statistics import CacheStatistics, ModelStatistics
from conch.domain.tensor import Tensor
from conch.server.core.pending import Pending
from conch.server.core.response_order import ResponseOrder
from conch.server.observability.event_log import ModelEvents

# The last format without back references, which would encode equal values differently if they are one object.
_MARSHAL_VERSION: Final = 2

# Overhead of an entry and of each of its tensors: objects, names and the place in the index.
_ENTRY_BYTES: Final = 600
_TENSOR_BYTES: Final = 300

_log: Final = logging.getLogger(__name__)


def cache_key(model: bytes, request: InferRequest) -> bytes:
    """Return the key of a request; `model` is the prefix of `ResponseCache.new_model`.

    A cryptographic digest, so that no client can make a request that collides with another. BLAKE3 hashes about 6 GB/s
    on one core, three times as much as SHA-256 with hardware support; SHA-256 took half of the time of a hit for an
    image.
    """
    inputs = request.inputs if len(request.inputs) < 2 else sorted(request.inputs, key=_name)
    forms = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in inputs]
    parameters = sorted(request.parameters.items()) if request.parameters else None
    # Unlike `==`, this distinguishes True, 1 and 1.0. The length in front separates the head from the data.
    head = dumps((forms, request.outputs, parameters, request.correlation_id, request.flags), _MARSHAL_VERSION)
    digest = blake3(b"%b%d:%b" % (model, len(head), head))
    for tensor in inputs:
        digest.update(tensor.data)
    return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name


class CachedResponse:
    """A response without the id of its request. `group` are the keys of its model."""

    __slots__ = ("group", "outputs", "parameters", "size")

    def __init__(self, response: InferResponse, size: int, group: set[bytes], *, copied: bool) -> None:
        self.outputs = [
            Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data if copied else bytes(tensor.data))
            for tensor in response.outputs
        ]
        self.parameters: dict[str, ParameterValue] = dict(response.parameters)
        self.size = size
        self.group = group


class ResponseCache:
    """Responses by key, at most `statistics.size` bytes of them. Belongs to the event loop's thread."""

    def __init__(self, size: int) -> None:
        self.statistics = CacheStatistics(size)
        self._answers: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._models = count()

    def __len__(self) -> int:
        return len(self._answers)

    def new_model(self) -> bytes:
        """Return a new prefix for the keys of a model."""
        return b"%d" % next(self._models)

    def find(self, key: bytes) -> CachedResponse | None:
        """Return the response under a key, and mark it as used; None for a miss."""
        answer = self._answers.get(key)
        if answer is None:
            self.statistics.misses += 1
        else:
            self.statistics.hits += 1
            self._answers.move_to_end(key)
        return answer

    def fits(self, response: InferResponse) -> bool:
        """Whether a response is no larger than the whole cache."""
        return _size(response) <= self.statistics.size

    def insert(self, key: bytes, response: InferResponse, group: set[bytes], *, copied: bool = False) -> None:
        """Store a response, and evict others to make room. One that is larger than the whole cache is not stored.

        `copied`: whether its tensors are copies that only the cache uses.
        """
        began = monotonic_ns()
        size = _size(response)
        if key in self._answers:  # two equal requests were executed concurrently
            self._remove(key)
        if size <= self.statistics.size:
            while self.statistics.used + size > self.statistics.size:
                self._remove(next(iter(self._answers)))
                self.statistics.evictions += 1
            self._answers[key] = CachedResponse(response, size, group, copied=copied)
            group.add(key)
            self.statistics.used += size
            self.statistics.entries += 1
        self.statistics.insertion_ns += monotonic_ns() - began

    def forget(self, group: set[bytes]) -> None:
        """Drop all responses of a group."""
        for key in list(group):
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        answer = self._answers.pop(key)
        answer.group.discard(key)
        self.statistics.used -= answer.size
        self.statistics.entries -= 1


def _size(response: InferResponse) -> int:
    parameters = sum(len(key) + len(str(value)) for key, value in response.parameters.items())
    return _ENTRY_BYTES + parameters + sum(_TENSOR_BYTES + tensor.nbytes for tensor in response.outputs)


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
        self.events: ModelEvents | None = None
        self.noted_surplus = False  # whether a response was larger than the whole cache

    def __repr__(self) -> str:
        return f"<ModelCache {self._statistics.model_name}/{self._statistics.version} {len(self._keys)} answers>"

    def look_up(
        self,
        request: InferRequest,
        respond: Respond,
        order: ResponseOrder | None = None,
        admit: Callable[[InferRequest, Respond], Pending] | None = None,  # noqa: ARG002 - for those that wait
    ) -> Pending | Respond:
        """Return the request, admitted and answered, for a hit; for a miss the callback to answer it by.

        `order` is the order of the model's responses, if it preserves one. `admit` admits a request after a miss that
        becomes known later, when it has its place in the order. The step of an ensemble is answered in the
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
            return Miss(self, key, self._keys, now - began, respond).respond
        timeline = request.timeline
        timeline.queued = began
        timeline.started = timeline.input_done = timeline.infer_done = now
        if request.span is not None:
            request.span.hit()
        pending = Pending(request, respond if order is None else order.enter(respond), self, self.events)
        pending.cache_hit = True
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
        if not self.noted_surplus:
            self.noted_surplus = True
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


class Miss:
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
        """Forward a response of the model; see `request.Respond`."""
        if final:
            self._cache.missed(self._key, self._group, answer if self._only else None, self._lookup_ns)
        else:
            self._only = False
        self._respond(answer, final)
