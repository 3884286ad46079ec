# Compiled by mypyc in wheels.
"""Streams of gRPC's own services: `Watch` of the health service, and server reflection."""

import asyncio
from collections.abc import Callable
from typing import Final

from conch.base.errors import ConchError, InvalidRequest, Unavailable
from conch.domain.tensor import Buffer
from conch.server.frontends.grpc.framing import Compressed
from conch.server.frontends.v2_grpc.infer_stream import MessageStream, ResponseSink

_WATCH_S: Final = 0.5
_SLICE_STREAMS: Final = 200  # that are sent a change in one turn of the event loop
_MAX_QUESTIONS: Final = 64  # that wait for a client which does not read


class HealthWatches:
    """The `Watch` streams of a port: one look at the server for all of them, however many a client opens."""

    def __init__(self, status: Callable[[bool], bytes], ready: Callable[[], bool]) -> None:
        """`status` encodes whether the server is ready."""
        self._status = status
        self._ready = ready
        self._streams: dict[WatchStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def open(self, sink: ResponseSink) -> "WatchStream":
        """Return a new stream."""
        return WatchStream(self, sink)

    def message(self, ready: bool) -> bytes:
        """Return a message of a stream."""
        return self._status(ready)

    def add(self, stream: "WatchStream") -> None:
        """Keep a stream up to date, from now on."""
        self._streams[stream] = None
        stream.update(self._ready())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._look)

    def discard(self, stream: "WatchStream") -> None:
        """Drop a stream."""
        self._streams.pop(stream, None)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        ready = self._ready()
        self._update([stream for stream in self._streams if stream.sent is not ready], ready)
        self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._look)

    def _update(self, streams: list["WatchStream"], ready: bool) -> None:
        for stream in streams[:_SLICE_STREAMS]:
            if stream in self._streams:
                stream.update(ready)
        if len(streams) > _SLICE_STREAMS:
            asyncio.get_running_loop().call_soon(self._update, streams[_SLICE_STREAMS:], ready)


class WatchStream(MessageStream):
    """One `Watch`: the status of the server, and each change of it, until the client ends the call."""

    def __init__(self, watches: HealthWatches, sink: ResponseSink) -> None:
        self._watches = watches
        self._sink = sink
        self._asked = False
        self.sent: bool | None = None

    @property
    def full(self) -> bool:
        return False

    def receive(self, data: Buffer | Compressed) -> None:  # noqa: ARG002 - any service name, as `Check`
        if not self._asked:
            self._asked = True
            self._watches.add(self)

    def end(self) -> None:
        if not self._asked:
            self._sink.finish(InvalidRequest("the call has no request"))

    def stop(self) -> None:
        self._watches.discard(self)
        if self._asked and self.sent:
            self.update(False)
        self._sink.finish(Unavailable("the server is stopping"))

    def cancel(self) -> None:
        self._watches.discard(self)

    def drained(self) -> None:
        """Do nothing: the next look sends what has changed."""

    def update(self, ready: bool) -> None:
        """Send whether the server is ready, unless the client does not read."""
        if ready is not self.sent and self._sink.flushed:
            self.sent = ready
            self._sink.send([self._watches.message(ready)])


class ReflectionStream(MessageStream):
    """One `ServerReflectionInfo`: an answer for each question."""

    def __init__(self, answer: Callable[[Buffer], bytes], sink: ResponseSink) -> None:
        """`answer` reads a question and encodes its answer; it raises ConchError for a malformed one."""
        self._answer = answer
        self._sink = sink
        self._unsent: list[bytes] = []
        self._ended = False
        self._finished = False

    @property
    def full(self) -> bool:
        return len(self._unsent) >= _MAX_QUESTIONS

    def receive(self, data: Buffer | Compressed) -> None:
        if self._finished:
            return
        try:
            if isinstance(data, Compressed):
                raise InvalidRequest("questions of this size are not supported")
            self._unsent.append(self._answer(data))
        except ConchError as error:
            self._finish(error)
            return
        self.drained()

    def end(self) -> None:
        self._ended = True
        self.drained()

    def stop(self) -> None:
        self._finish(Unavailable("the server is stopping"))

    def cancel(self) -> None:
        self._finished = True
        self._unsent.clear()

    def drained(self) -> None:
        if self._finished:
            return
        while self._unsent and self._sink.flushed:
            self._sink.send([self._unsent.pop(0)])
        if self._ended and not self._unsent:
            self._finish(None)
        elif not self.full:
            self._sink.resume()

    def _finish(self, error: ConchError | None) -> None:
        if not self._finished:
            self._finished = True
            self._sink.finish(error)
