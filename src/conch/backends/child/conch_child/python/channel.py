"""The socket to the server, and who reads and writes it.

There is no reader thread: it would cost every request two thread switches. Whoever waits for something reads, and
whoever asks whether something has come, such as `is_cancelled`, takes what lies in the socket without waiting. Where
several threads wait, one reads: it deals with messages that concern nobody in particular, puts the others where they
are waited for and wakes whoever waits there. When it has its own, it hands the reading on.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from time import monotonic_ns
from typing import Any, Callable, Deque, Dict, List, Optional

from ..ipc import heap
from ..ipc.arena import ArenaReader, ArenaWriter, Parcel
from ..ipc.wire import READ_SIZE, Frame, FrameDecoder, Message, encode
from . import messages
from .regions import RegionWriter

_REMEMBERED_CANCELLATIONS = 4096

Handler = Callable[[Message, memoryview], None]


class Inbox:
    """Where what somebody waits for arrives. One thread at a time waits at it."""

    __slots__ = ("items", "on_arrival", "signal")

    def __init__(self) -> None:
        self.items: Deque[Any] = deque()
        # Called once when the next item is there, in the thread that has read it.
        self.on_arrival: Optional[Callable[[], None]] = None
        # Released to wake the thread that waits.
        self.signal = threading.Lock()
        self.signal.acquire()


class Channel:
    """The connection of a model's process to the server. Safe to use from any thread."""

    def __init__(self, connection: socket.socket, inputs: ArenaReader, outputs: ArenaWriter) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.regions = RegionWriter()  # of whoever holds `writing`
        # Held while a frame is made and sent, so that frames leave whole and in the order of what they say.
        self.writing = threading.Lock()
        # Keys of requests that nobody waits for any more, oldest first.
        self.cancelled: Dict[int, None] = {}
        # How many bytes of unused shared memory to keep at a TRIM.
        self.kept_size = 0
        self._connection = connection
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)
        self._decoder = FrameDecoder()
        self._inbox = Inbox()  # the main loop's
        self._turn = threading.Lock()  # held for a moment, to look at or change the next two
        self._being_read = False
        self._parked: Dict[Inbox, None] = {}  # those at which a thread sleeps, longest first
        self._handlers: Dict[int, Handler] = {
            messages.CANCEL: self._cancel,
            messages.RELEASE: lambda message, _: self.outputs.free(message[1]),
            messages.TRIM: self._trim,
        }

    def fileno(self) -> int:
        """Return the socket's descriptor, for a loop to watch."""
        return self._connection.fileno()

    def handle(self, kind: int, handler: Handler) -> None:
        """Have messages of a kind dealt with by whoever reads them."""
        self._handlers[kind] = handler

    def receive(self, awake_ns: int = 0) -> Frame:
        """Wait for the next message that is for the main loop, so many nanoseconds of it awake.

        Raises EOFError when the server has gone.
        """
        frame: Frame = self.take(self._inbox, awake_ns)
        return frame

    def take(self, inbox: Inbox, awake_ns: int = 0) -> Any:
        """Wait for the next item there, so many nanoseconds of it awake. Raises EOFError when the server has gone."""
        while not inbox.items:
            with self._turn:
                if inbox.items:
                    break
                reads = not self._being_read
                if reads:
                    self._being_read = True
                else:
                    self._parked[inbox] = None
            if not reads:
                inbox.signal.acquire()  # an item has come, or it is our turn to read
                continue
            try:
                if awake_ns:
                    self._stay_awake(awake_ns)
                while not inbox.items:
                    self._read(self._connection.recv(READ_SIZE))
            finally:
                self._hand_on()
        return inbox.items.popleft()

    def put(self, inbox: Inbox, item: Any) -> None:
        """Deliver an item and wake whoever waits for it."""
        inbox.items.append(item)
        on_arrival = inbox.on_arrival
        if on_arrival is not None:
            inbox.on_arrival = None
            on_arrival()
        else:
            self._wake(inbox)

    def drain(self) -> None:
        """Deal with what has arrived, without waiting."""
        with self._turn:
            if self._being_read:
                return  # whatever arrives is dealt with there
            self._being_read = True
        try:
            while True:
                self._read(self._connection.recv(READ_SIZE, socket.MSG_DONTWAIT))
        except (BlockingIOError, EOFError):
            pass  # nothing left; or the server has gone, which is for those who wait to find
        finally:
            self._hand_on()

    def send(self, message: Message) -> None:
        """Send a message without tensors."""
        with self.writing:
            self.transmit(message)

    def transmit(self, message: Message, parcel: Any = None) -> None:
        """Send a message; the caller holds `writing`."""
        if parcel is None or not parcel.size:
            self._connection.sendall(encode(message))
        else:
            self._connection.sendall(encode(message, parcel.parts, parcel.size))

    def parcel(self) -> Parcel:
        """Begin the tensors of a frame."""
        return Parcel(self.outputs)

    def disconnect(self) -> None:
        """Give up this end: for a process that the model has forked, where it is not ours to speak."""
        self._connection.close()
        self.writing = threading.Lock()  # it may have been held when the fork happened

    def _stay_awake(self, time_ns: int) -> None:
        """Return when something has come, or the time is over."""
        until = monotonic_ns() + time_ns
        while not self._arrivals.poll(0) and monotonic_ns() < until:
            os.sched_yield()  # whoever has something to do on this processor goes first

    def _read(self, data: bytes) -> None:
        if not data:
            raise EOFError("the server has closed the connection")
        frames: List[Frame] = self._decoder.feed(data)
        for frame in frames:
            handler = self._handlers.get(frame[0][0])
            if handler is None:
                self.put(self._inbox, frame)
            else:
                handler(frame[0], frame[1])

    def _wake(self, inbox: Inbox) -> None:
        with self._turn:
            if inbox in self._parked:
                del self._parked[inbox]
                inbox.signal.release()

    def _hand_on(self) -> None:
        """Stop reading; the one who has waited longest goes on."""
        with self._turn:
            self._being_read = False
            if self._parked:
                inbox = next(iter(self._parked))
                del self._parked[inbox]
                inbox.signal.release()

    def _trim(self, _: Message, __: memoryview) -> None:
        self.outputs.trim(self.kept_size)
        if self.writing.acquire(blocking=False):  # or they are in use
            self.regions.forget()
            self.writing.release()
        heap.give_back()

    def _cancel(self, message: Message, _: memoryview) -> None:
        # A cancellation may come after the answer, so that nobody asks for it and takes it out: the oldest go instead.
        if len(self.cancelled) >= _REMEMBERED_CANCELLATIONS:
            del self.cancelled[next(iter(self.cancelled))]
        self.cancelled[message[1]] = None
