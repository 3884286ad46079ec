"""Calls to other models (Triton's business logic scripting): what a model asks of the server, and who waits for it.

A call is a message and nothing more: no thread waits on the model's behalf, so hundreds of them may be under way. A
thread that wants the answer reads the channel until it is there. An event loop that wants it watches the channel
meanwhile, and goes on with its other tasks.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ..ipc.arena import Parcel
from ..ipc.wire import Message
from . import messages
from .answering import InferenceResponse
from .channel import Channel, Inbox
from .errors import TritonError, TritonModelException
from .tensor import Tensor

# Keys of the requests that a coroutine works on which is left running after its `execute`.
background: ContextVar[Tuple[int, ...]] = ContextVar("background", default=())

_SERVER_GONE = "the server has gone"


class PendingCall(Inbox):
    """One call under way. Its items are (response, weight, whether it is the last), or (error, value) of a control."""

    __slots__ = ("key", "unwanted")

    def __init__(self, key: int) -> None:
        super().__init__()
        self.key = key
        self.unwanted = False  # nobody will read its responses


class PendingCalls:
    """The calls of this process. Safe to use from any thread."""

    def __init__(self, channel: Channel, decoupled: bool) -> None:
        self.channel = channel
        # What the model is doing. It may call others while that is "execute", with which it is never done for good: a
        # decoupled model may answer, and call others for that, in threads and tasks of its own.
        self.phase = "initialize"
        # Keys of the requests that are being executed now, by the thread that runs this.
        self.executing: Tuple[int, ...] = ()
        self._thread = threading.get_ident()
        self._decoupled = decoupled
        self._keys = count(1)
        self._under_way: Dict[int, PendingCall] = {}
        self._watching: Dict[Any, int] = {}  # event loops, and how many of their calls are under way
        channel.handle(messages.CALL_ANSWERED, self._answered)
        channel.handle(messages.CONTROLLED, self._controlled)

    def call(self, request: Sequence[Any], inputs: Iterable[Tensor], many: bool) -> PendingCall:
        """Send a call. `request` is what CALL says of it, but for the inputs; `many` if it may have many responses.

        Raises TritonModelException outside of `execute`.
        """
        if self.phase != "execute":
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        callers, holds = self._callers()
        call = PendingCall(next(self._keys))
        # All are made ready before the first is placed: what raises leaves no block behind.
        wires = [tensor.wire() for tensor in inputs]
        with self.channel.writing:
            parcel = self.channel.parcel()
            placed = [(name, kind, shape, parcel.put(data, size), size) for name, kind, shape, data, size in wires]
            released = self.channel.inputs.take_released()
            self._send(call, (messages.CALL, released, call.key, callers, holds, many, (*request, placed)), parcel)
        return call

    def control(self, what: int, name: str, argument: Any, files: Optional[Dict[str, bytes]] = None) -> Any:
        """Ask for something of a model's life and wait. Raises TritonModelException with the server's reason."""
        if self.phase not in ("initialize", "execute"):
            raise TritonModelException(
                "models can be loaded, unloaded and asked for in 'initialize' and 'execute', not in '{}'".format(
                    self.phase
                )
            )
        call = PendingCall(next(self._keys))
        with self.channel.writing:
            parcel = self.channel.parcel()
            placed = [(path, parcel.put(data, len(data)), len(data)) for path, data in (files or {}).items()]
            self._send(call, (messages.CONTROL, call.key, what, name, argument, placed), parcel)
        error, value = self.wait(call)
        if error is not None:
            raise TritonModelException(error[1])
        return value

    def wait(self, call: PendingCall) -> Any:
        """Return the next item of a call when it is there. Raises TritonModelException when the server has gone."""
        try:
            return self.channel.take(call)
        except (EOFError, OSError):
            raise TritonModelException(_SERVER_GONE) from None

    def future(self, call: PendingCall, loop: Any, wrapped: Callable[[], Any]) -> Any:
        """Return a future of what `wrapped` returns when the next item of a call is there.

        If the future is cancelled, so is the call.
        """
        future = loop.create_future()

        def arrived() -> None:
            if not future.done():
                future.set_result(wrapped())

        def done(_: Any) -> None:
            call.on_arrival = None
            if future.cancelled():
                self.cancel(call)
            # After whoever waited has gone on, and has perhaps called again.
            loop.call_soon(self._watch_no_more, loop)

        self._watch(loop)
        future.add_done_callback(done)
        call.on_arrival = partial(self._notify, loop, arrived)
        if call.items:  # it came before it was waited for
            arrived()
        return future

    def cancel(self, call: PendingCall) -> None:
        """Tell the server that no answer is wanted. One comes all the same, an error if nothing else did before."""
        if call.key in self._under_way:
            self.channel.send((messages.CANCEL_CALL, call.key))

    def read(self, call: PendingCall, weight: int) -> None:
        """Tell the server that responses have been read, so that it may send as much again."""
        if call.key in self._under_way:
            self.channel.send((messages.READ, call.key, weight))

    def _callers(self) -> Tuple[Tuple[int, ...], bool]:
        """Return the keys of the requests that a call made now is for, and whether `execute` waits for it.

        A thread of a decoupled model's own does not tell; the server takes all of the model's requests for them.
        """
        keys = background.get()
        if keys:
            return keys, False
        if not self._decoupled or threading.get_ident() == self._thread:
            return self.executing, bool(self.executing)
        return (), False

    def _send(self, call: PendingCall, message: Message, parcel: Parcel) -> None:
        """Send what begins a call; the caller holds `writing`."""
        self._under_way[call.key] = call
        try:
            self.channel.transmit(message, parcel)
        except OSError:
            del self._under_way[call.key]
            raise TritonModelException(_SERVER_GONE) from None

    def _answered(self, message: Message, payload: memoryview) -> None:
        _, released, (key, final, error, outputs, parameters) = message
        if released:
            self.channel.outputs.free(released)
        # Also if nobody waits any more: shared memory is released by being looked at and let go.
        response = self._response(error, outputs, parameters, payload)
        call = self._under_way.get(key)
        if call is None:
            return
        if final:
            del self._under_way[key]
        weight = messages.weight_of(outputs)
        if not call.unwanted:
            self.channel.put(call, (response, weight, final))
        elif not final:
            self.read(call, weight)

    def _response(self, error: Any, outputs: Any, parameters: Any, payload: memoryview) -> InferenceResponse:
        if error is not None:
            return InferenceResponse(error=TritonError(error[1], error[0]))
        # A copy, because arrays must be writable and aligned, and because it must outlive the frame.
        inline = memoryview(bytearray(payload))
        view = self.channel.inputs.view
        tensors: List[Tensor] = [
            Tensor.from_wire(name, kind, shape, view(place, size) if place >= 0 else inline[~place : ~place + size])
            for name, kind, shape, place, size in outputs or ()
        ]
        return InferenceResponse(tensors, parameters=parameters)

    def _controlled(self, message: Message, _: memoryview) -> None:
        call = self._under_way.pop(message[1], None)
        if call is not None:
            self.channel.put(call, (message[2], message[3]))

    def _watch(self, loop: Any) -> None:
        under_way = self._watching.get(loop, 0)
        if not under_way:
            loop.add_reader(self.channel.fileno(), self.channel.drain)
        self._watching[loop] = under_way + 1

    def _watch_no_more(self, loop: Any) -> None:
        self._watching[loop] -= 1
        if not self._watching[loop]:
            del self._watching[loop]
            loop.remove_reader(self.channel.fileno())

    def _notify(self, loop: Any, arrived: Callable[[], None]) -> None:
        """Call `arrived` in the thread of its loop."""
        if asyncio._get_running_loop() is loop:
            arrived()
            return
        try:
            loop.call_soon_threadsafe(arrived)
        except RuntimeError:  # it has been closed, and nobody waits any more
            self._watching.pop(loop, None)
