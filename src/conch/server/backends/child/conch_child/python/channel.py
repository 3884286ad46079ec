"""The socket to the server, shared by all threads of a model's process.

There is no reader thread, which would cost every request two thread switches. A thread that waits for a message reads
the socket; a poll such as `is_cancelled` reads what has arrived without blocking. Of several waiting threads one reads:
it runs handlers, delivers messages to the inboxes of the others and wakes them. With its own message it passes the
reading on to another.
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
from ..ipc.wire import READ_SIZE, Frame, FrameDecoder, Message, encode_to_server
from . import messages
from .regions import RegionWriter

_MAX_CANCELLATIONS = 4096

Handler = Callable[[Message, memoryview], None]


class Inbox:
    """A queue of received items for one waiting thread or event loop."""

    __slots__ = ("items", "on_arrival", "signal")

    def __init__(self) -> None:
        self.items: Deque[Any] = deque()
        # Called once for the next item, in the thread that reads it.
        self.on_arrival: Optional[Callable[[], None]] = None
        # Released to wake the waiting thread.
        self.signal = threading.Lock()
        self.signal.acquire()


class Channel:
    """The connection of a model's process to the server. Safe to use from any thread."""

    def __init__(self, connection: socket.socket, inputs: ArenaReader, outputs: ArenaWriter) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.regions = RegionWriter()  # used with `writing` held
        # Held while a frame is encoded and sent, so that frames are sent whole and in order.
        self.writing = threading.Lock()
        # Keys of cancelled requests, oldest first.
        self.cancelled: Dict[int, None] = {}
        # Bytes of the output arena that TRIM keeps.
        self.trim_keep_bytes = 0
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._decoder = FrameDecoder()
        self._inbox = Inbox()  # of the main loop
        self._lock = threading.Lock()  # guards the next two
        self._reading = False
        self._waiters: Dict[Inbox, None] = {}  # inboxes with a blocked thread, in order of waiting
        self._handlers: Dict[int, Handler] = {
            messages.CANCEL: self._cancel,
            messages.RELEASE: lambda message, _: self.outputs.free(message[1]),
            messages.TRIM: self._trim,
        }

    def fileno(self) -> int:
        """Return the socket's descriptor, for an event loop to watch."""
        return self._connection.fileno()

    def handle(self, kind: int, handler: Handler) -> None:
        """Set the handler of a kind of message, called in the thread that reads it."""
        self._handlers[kind] = handler

    def receive(self, busy_poll_ns: int = 0) -> Frame:
        """Wait for the next message for the main loop, at first with `busy_poll_ns` of busy polling.

        Raises EOFError when the server has exited.
        """
        frame: Frame = self.take(self._inbox, busy_poll_ns)
        return frame

    def take(self, inbox: Inbox, busy_poll_ns: int = 0) -> Any:
        """Wait for an inbox's next item, at first with busy polling. Raises EOFError when the server has exited."""
        while not inbox.items:
            with self._lock:
                if inbox.items:
                    break
                reads = not self._reading
                if reads:
                    self._reading = True
                else:
                    self._waiters[inbox] = None
            if not reads:
                inbox.signal.acquire()  # until an item arrives, or this thread has to read
                continue
            try:
                if busy_poll_ns:
                    self._busy_poll(busy_poll_ns)
                while not inbox.items:
                    self._read(self._connection.recv(READ_SIZE))
            finally:
                self._release_reading()
        return inbox.items.popleft()

    def deliver(self, inbox: Inbox, item: Any) -> None:
        """Deliver an item and wake its waiter."""
        inbox.items.append(item)
        on_arrival = inbox.on_arrival
        if on_arrival is not None:
            inbox.on_arrival = None
            on_arrival()
        else:
            self._wake(inbox)

    def drain(self) -> None:
        """Handle all messages that have arrived, without blocking."""
        with self._lock:
            if self._reading:
                return  # the reading thread handles all messages
            self._reading = True
        try:
            while True:
                self._read(self._connection.recv(READ_SIZE, socket.MSG_DONTWAIT))
        except (BlockingIOError, EOFError):
            pass  # nothing left; or the server has exited, which a waiting thread reports
        finally:
            self._release_reading()

    def send(self, message: Message) -> None:
        """Send a message without tensors."""
        with self.writing:
            self.transmit(message)

    def transmit(self, message: Message, parcel: Any = None) -> None:
        """Send a message; the caller holds `writing`."""
        if parcel is None or not parcel.size:
            self._connection.sendall(encode_to_server(message))
        else:
            self._connection.sendall(encode_to_server(message, parcel.parts, parcel.size))

    def parcel(self) -> Parcel:
        """Return an empty parcel for a frame's tensors."""
        return Parcel(self.outputs)

    def disconnect(self) -> None:
        """Close the socket in a process that the model forked, which must not use it."""
        self._connection.close()
        self.writing = threading.Lock()  # it may have been held during the fork

    def _busy_poll(self, time_ns: int) -> None:
        """Poll the socket until data arrives or the time has passed."""
        until = monotonic_ns() + time_ns
        while not self._poll.poll(0) and monotonic_ns() < until:
            os.sched_yield()  # other threads on this processor go first

    def _read(self, data: bytes) -> None:
        if not data:
            raise EOFError("the server has closed the connection")
        frames: List[Frame] = self._decoder.feed(data)
        for frame in frames:
            handler = self._handlers.get(frame[0][0])
            if handler is None:
                self.deliver(self._inbox, frame)
            else:
                handler(frame[0], frame[1])

    def _wake(self, inbox: Inbox) -> None:
        with self._lock:
            if inbox in self._waiters:
                del self._waiters[inbox]
                inbox.signal.release()

    def _release_reading(self) -> None:
        """Stop reading; wake the longest waiting thread to read instead."""
        with self._lock:
            self._reading = False
            if self._waiters:
                inbox = next(iter(self._waiters))
                del self._waiters[inbox]
                inbox.signal.release()

    def _trim(self, _: Message, __: memoryview) -> None:
        self.outputs.trim(self.trim_keep_bytes)
        if self.writing.acquire(blocking=False):  # else the regions are in use
            self.regions.unmap_all()
            self.writing.release()
        heap.trim()

    def _cancel(self, message: Message, _: memoryview) -> None:
        # A cancellation may arrive after the response and is then never removed; hence the bound.
        if len(self.cancelled) >= _MAX_CANCELLATIONS:
            del self.cancelled[next(iter(self.cancelled))]
        self.cancelled[message[1]] = None
