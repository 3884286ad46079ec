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
_MAX_QUESTIONS: Final = 64  # that wait for a client which does not read


class WatchStream(MessageStream):
    """One `Watch`: the status of the server, and each change of it, until the client ends the call."""

    def __init__(self, status: Callable[[bool], bytes], ready: Callable[[], bool], sink: ResponseSink) -> None:
        """`status` encodes whether the server is ready."""
        self._status = status
        self._ready = ready
        self._sink = sink
        self._asked = False
        self._sent: bool | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        return False

    def receive(self, data: Buffer | Compressed) -> None:  # noqa: ARG002 - any service name, as `Check`
        if not self._asked:
            self._asked = True
            self._look()

    def end(self) -> None:
        if not self._asked:
            self._sink.finish(InvalidRequest("the call has no request"))

    def stop(self) -> None:
        self._rest()
        if self._asked and self._sent and self._sink.flushed:
            self._sink.send([self._status(False)])
        self._sink.finish(Unavailable("the server is stopping"))

    def cancel(self) -> None:
        self._rest()

    def drained(self) -> None:
        """Do nothing: the next look sends what has changed."""

    def _look(self) -> None:
        ready = self._ready()
        if ready is not self._sent and self._sink.flushed:
            self._sent = ready
            self._sink.send([self._status(ready)])
        self._timer = asyncio.get_running_loop().call_later(_WATCH_S, self._look)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
