# Compiled by mypyc in wheels.
"""The cache of responses in another program, such as Redis, which several servers can share.

A request waits for the answer of the cache, and is admitted to the model's queue after a miss. An entry is untrusted:
one that is not a valid response of this model counts as a miss.
"""

import os
from collections.abc import Callable
from logging import getLogger
from time import monotonic_ns
from typing import Final, Protocol

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.domain.scheduling.waiting import State
from conch.domain.statistics.model_statistics import ModelStatistics
from conch.protocols.cached_responses import decode_entry, encode_entry
from conch.server.core.pending import Pending
from conch.server.core.response_cache import Miss, ModelCache, ResponseCache, cache_key
from conch.server.core.response_order import ResponseOrder

_log: Final = getLogger(__name__)

_KEY_PREFIX: Final = b"conch:"


class EntryStore(Protocol):
    """Where entries are: asks another program without blocking, and never raises."""

    def available(self) -> bool:
        """Whether to ask it: not while it fails, or has too much to do."""

    def look_up(self, key: bytes, done: Callable[[bytes | None], None]) -> None:
        """Call `done` later, once, with an entry, or None where there is none or the program does not answer."""

    def insert(self, key: bytes, entry: bytes) -> None:
        """Store an entry, or drop it."""


Admit = Callable[[InferRequest, Respond], Pending]


class RemoteModelCache(ModelCache):
    """The cached responses of one model version in a store.

    `model` identifies the version by its content, so that servers with the same one share entries. `enter` and `leave`
    keep the model from being stopped while a request waits for the store.
    """

    def __init__(
        self,
        index: ResponseCache,
        store: EntryStore,
        statistics: ModelStatistics,
        model: bytes,
        enter: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(index, statistics)
        self._store_of = store
        self._model = model
        self.enter = enter
        self.leave = leave

    def look_up(
        self, request: InferRequest, respond: Respond, order: ResponseOrder | None = None, admit: Admit | None = None
    ) -> Pending | Respond:
        if self._closed or admit is None or not self._store_of.available():
            return respond
        key = _KEY_PREFIX + cache_key(self._model, request)
        lookup = Lookup(request, respond if order is None else order.enter(respond), self)
        lookup.start(self, key, admit)
        self.enter()
        self._store_of.look_up(key, lookup.resume)
        return lookup

    def read(self, entry: bytes | None, request: InferRequest, lookup_ns: int) -> InferResponse | None:
        """Return the response of an entry; None for a miss."""
        counted = self._cache.statistics
        counted.lookup_ns += lookup_ns
        if entry is not None:
            try:
                response = decode_entry(entry, self._statistics.model_name, self._statistics.version)
            except ValueError:
                pass
            else:
                counted.hits += 1
                response.id = request.id
                return response
        counted.misses += 1
        return None

    def miss(self, key: bytes, lookup_ns: int, respond: Respond) -> Respond:
        """Return the callback to answer a request by that the store has no response to."""
        return Miss(self, key, self._keys, lookup_ns, respond).respond

    def forget(self) -> None:
        # Entries stay in the store, under a prefix that is not used any more.
        self._model = os.urandom(16)
        self._keys = set()

    def _store(self, key: bytes, response: InferResponse, group: set[bytes]) -> None:  # noqa: ARG002
        began = monotonic_ns()
        entry = encode_entry(response)
        if entry is None:
            self._note_surplus(key)
        else:
            self._store_of.insert(key, entry)
        self._cache.statistics.insertion_ns += monotonic_ns() - began

    def _note_surplus(self, key: bytes) -> None:  # noqa: ARG002
        self.noted_surplus = True


class Lookup(Pending):
    """A request that waits for the store, then, after a miss, for the model."""

    __slots__ = ("_admit", "_began", "_inner", "_key", "_place")

    _place: RemoteModelCache
    _key: bytes
    _admit: Admit
    _began: int
    _inner: Pending | None

    def start(self, place: RemoteModelCache, key: bytes, admit: Admit) -> None:
        """Set what is needed after a miss."""
        self._place = place
        self._key = key
        self._admit = admit
        self._inner = None
        self._began = monotonic_ns()

    def resume(self, entry: bytes | None) -> None:
        """Answer the request by an entry, or admit it to the model."""
        place = self._place
        try:
            if self.state is not State.DONE:
                self._continue(entry)
        except Exception:  # the request must end
            _log.exception("a look-up in the response cache failed unexpectedly")
            self._forward(ConchError("internal error"), True)
        finally:
            place.leave()

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        if self._inner is None:
            super().finish(answer)
        else:
            self._inner.finish(answer)

    def abort(self, error: ConchError) -> None:
        if self._inner is None:
            super().abort(error)
        else:
            self._inner.abort(error)

    def _continue(self, entry: bytes | None) -> None:
        now = monotonic_ns()
        request = self.request
        response = self._place.read(entry, request, now - self._began)
        if response is not None:
            timeline = request.timeline
            timeline.queued = self._began
            timeline.started = timeline.input_done = timeline.infer_done = now
            if request.span is not None:
                request.span.hit()
            self.finish(response)
            return
        try:
            self._inner = self._admit(request, self._place.miss(self._key, now - self._began, self._forward))
        except ConchError as error:
            if request.span is not None:
                request.span.settled(request, error)
            self._forward(error, True)

    def _forward(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Pass on what the model answers; it has counted the request."""
        respond = self.respond
        if final:
            self.state = State.DONE
            self._owner = None
            self.respond = _ignore
            self._inner = None
        respond(answer, final)


def _ignore(_answer: InferResponse | ConchError | None, _final: bool) -> None:
    """Drop a response that comes after the end."""
