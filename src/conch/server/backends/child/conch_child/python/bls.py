"""Business logic scripting (BLS): calls to other models, and loading and unloading of models.

A call is one message and occupies no thread, so hundreds may be in flight. A thread that waits for a response reads the
channel until it arrives. An event loop watches the channel's descriptor meanwhile and continues with other tasks.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from ..ipc.arena import KEPT, LENT, Parcel
from ..ipc.wire import Message
from . import messages
from .api.errors import TritonError, TritonErrorCode, TritonModelException
from .api.responses import InferenceResponse
from .api.tensor import Tensor
from .channel import Channel, Inbox
from .kept_data import KeptData

# Keys of the requests of a coroutine that continues after its `execute` returned.
background: ContextVar[Tuple[int, ...]] = ContextVar("background", default=())

_SERVER_GONE = "the server has exited"


class PendingCall(Inbox):
    """One call in flight.

    Its items are (response, weight, whether it is the last), or (error, value) of a control, or fetched bytes.
    """

    __slots__ = ("discarded", "key")

    def __init__(self, key: int) -> None:
        super().__init__()
        self.key = key
        self.discarded = False  # its responses are dropped, as its iterator is deleted


class PendingCalls:
    """The calls of this process. Safe to use from any thread."""

    def __init__(self, channel: Channel, decoupled: bool) -> None:
        self.channel = channel
        # "auto_complete_config", "initialize", "execute" until the model is finalized, then "finalize". BLS needs
        # "execute", which includes a decoupled model's threads and tasks between batches.
        self.phase = "initialize"
        # Keys of the requests that the main thread executes now.
        self.executing: Tuple[int, ...] = ()
        self._thread = threading.get_ident()
        self._decoupled = decoupled
        self._keys = count(1)
        self._in_flight: Dict[int, PendingCall] = {}
        self._watched_loops: Dict[Any, int] = {}  # event loop → number of its calls in flight
        channel.handle(messages.CALL_ANSWERED, self._answered)
        channel.handle(messages.CONTROLLED, self._controlled)
        channel.handle(messages.FETCHED, self._fetched)

    def call(self, request: Sequence[Any], inputs: Iterable[Tensor], many: bool) -> PendingCall:
        """Send a call. `request` has the items of CALL's tuple before the inputs; `many`: it may have many responses.

        Raises TritonModelException outside of `execute`.
        """
        if self.phase != "execute":
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        callers, holds = self._callers()
        call = PendingCall(next(self._keys))
        # All tensors are encoded before the first is placed, so that an exception leaks no block.
        encoded = [(tensor.received(), tensor.wire()) for tensor in inputs]
        with self.channel.writing:
            parcel = self.channel.parcel()
            placed: List[Tuple[Any, ...]] = []
            for received, (name, kind, shape, data, size) in encoded:
                if type(received) is KeptData:
                    placed.append((name, kind, shape, received.place, size))
                    continue
                offset = None if received is None else self.channel.inputs.offset_of(received)
                place = parcel.put(data, size) if offset is None else self.channel.outputs.lend(offset, received)
                placed.append((name, kind, shape, place, size))
            released = self.channel.inputs.take_released()
            self._send(call, (messages.CALL, released, call.key, callers, holds, many, (*request, placed)), parcel)
        return call

    def control(self, what: int, name: str, argument: Any, files: Optional[Dict[str, bytes]] = None) -> Any:
        """Load, unload or query a model, and wait for the server's error (a code and a message, or None) and answer.

        Raises TritonModelException in other methods of the model.
        """
        if self.phase not in ("initialize", "execute"):
            raise TritonModelException(
                "models can be loaded, unloaded and queried in 'initialize' and 'execute', not in '{}'".format(
                    self.phase
                )
            )
        call = PendingCall(next(self._keys))
        with self.channel.writing:
            parcel = self.channel.parcel()
            placed = [(path, parcel.put(data, len(data)), len(data)) for path, data in (files or {}).items()]
            self._send(call, (messages.CONTROL, call.key, what, name, argument, placed), parcel)
        return self.wait(call)

    def fetch(self, place: int) -> Any:
        """Return an array of the bytes that the server keeps. Raises TritonModelException if the server has exited."""
        call = PendingCall(next(self._keys))
        with self.channel.writing:
            self._send(call, (messages.FETCH, call.key, place))
        return self.wait(call)

    def wait(self, call: PendingCall) -> Any:
        """Wait for the next item of a call. Raises TritonModelException if the server has exited."""
        try:
            return self.channel.take(call)
        except (EOFError, OSError):
            raise TritonModelException(_SERVER_GONE) from None

    def future(self, call: PendingCall, loop: Any, result: Callable[[], Any]) -> Any:
        """Return a future that resolves to `result()` when the next item of a call arrives.

        Cancelling the future cancels the call.
        """
        future = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(result())

        def on_done(_: Any) -> None:
            call.on_arrival = None
            if future.cancelled():
                self.cancel(call)
            # After the awaiting task has resumed, as it may call again.
            loop.call_soon(self._unwatch, loop)

        self._watch(loop)
        future.add_done_callback(on_done)
        call.on_arrival = partial(self._notify, loop, resolve)
        if call.items:  # it arrived earlier
            resolve()
        return future

    def cancel(self, call: PendingCall) -> None:
        """Cancel a call. It still ends with a response, an error unless its response was already in flight."""
        if call.key in self._in_flight:
            self.channel.send((messages.CANCEL_CALL, call.key))

    def read(self, call: PendingCall, weight: int) -> None:
        """Report read responses to the server, which may then send as many bytes again (backpressure)."""
        if call.key in self._in_flight:
            self.channel.send((messages.READ, call.key, weight))

    def _callers(self) -> Tuple[Tuple[int, ...], bool]:
        """Return the keys of the requests that a call made now is for, and whether `execute` waits for it.

        They are unknown in threads of a decoupled model; the server then assumes all of the model's requests.
        """
        keys = background.get()
        if keys:
            return keys, False
        if not self._decoupled or threading.get_ident() == self._thread:
            return self.executing, bool(self.executing)
        return (), False

    def _send(self, call: PendingCall, message: Message, parcel: Optional[Parcel] = None) -> None:
        """Send a call's message; the caller holds `writing`."""
        self._in_flight[call.key] = call
        try:
            self.channel.transmit(message, parcel)
        except OSError:
            del self._in_flight[call.key]
            raise TritonModelException(_SERVER_GONE) from None
        except ValueError as error:
            del self._in_flight[call.key]
            if parcel is not None:
                parcel.discard(0)
            if message[0] == messages.CALL:
                self.channel.outputs.free([place for *_, place, _ in message[-1][-1] if place >= LENT])
            raise TritonModelException(str(error)) from None

    def _answered(self, message: Message, payload: memoryview) -> None:
        _, released, (key, final, error, outputs, parameters) = message
        if released:
            self.channel.outputs.free(released)
        # Also for calls that have ended: creating and dropping the views releases the shared memory.
        response = self._response(error, outputs, parameters, payload)
        call = self._in_flight.get(key)
        if call is None:
            return
        if final:
            del self._in_flight[key]
        weight = messages.weight_of(outputs)
        if not call.discarded:
            self.channel.deliver(call, (response, weight, final))
        elif not final:
            self.read(call, weight)

    def _response(self, error: Any, outputs: Any, parameters: Any, payload: memoryview) -> InferenceResponse:
        if error is not None:
            return InferenceResponse(error=TritonError(error[1], TritonErrorCode(error[0])))
        # A copy, as arrays must be writable and aligned, and must outlive the frame.
        inline = memoryview(bytearray(payload))
        tensors: List[Tensor] = [
            Tensor.from_wire(name, kind, shape, self._data(place, size, inline))
            for name, kind, shape, place, size in outputs or ()
        ]
        return InferenceResponse(tensors, parameters=parameters)

    def _data(self, place: int, size: int, inline: memoryview) -> Any:
        if place < 0:
            return inline[~place : ~place + size]
        if place < KEPT:
            return self.channel.inputs.view(place, size)
        return KeptData(place, size, self.fetch, self.channel.inputs.release)

    def _fetched(self, message: Message, payload: memoryview) -> None:
        _, released, key, place, size = message
        if released:
            self.channel.outputs.free(released)
        data = self._data(place, size, memoryview(bytearray(payload)))
        call = self._in_flight.pop(key, None)
        if call is not None:
            self.channel.deliver(call, np.frombuffer(data, np.uint8))

    def _controlled(self, message: Message, _: memoryview) -> None:
        call = self._in_flight.pop(message[1], None)
        if call is not None:
            self.channel.deliver(call, (message[2], message[3]))

    def _watch(self, loop: Any) -> None:
        calls = self._watched_loops.get(loop, 0)
        if not calls:
            loop.add_reader(self.channel.fileno(), self.channel.drain)
        self._watched_loops[loop] = calls + 1

    def _unwatch(self, loop: Any) -> None:
        self._watched_loops[loop] -= 1
        if not self._watched_loops[loop]:
            del self._watched_loops[loop]
            loop.remove_reader(self.channel.fileno())

    def _notify(self, loop: Any, resolve: Callable[[], None]) -> None:
        """Call `resolve` in its event loop's thread."""
        if asyncio._get_running_loop() is loop:
            resolve()
            return
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop is closed
            self._watched_loops.pop(loop, None)
