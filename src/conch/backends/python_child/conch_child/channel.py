"""The socket to the server, and who reads and writes it.

There is no reader thread: it would cost every request two thread switches. Whoever waits for something reads, and
whoever asks whether something has come, such as `is_cancelled`, takes what lies in the socket without waiting. Messages
that concern nobody in particular are dealt with by whoever happens to read them; the rest goes to the inbox.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from time import monotonic_ns
from typing import Any, Callable, Deque, Dict, List

from . import heap, messages
from .arena import ArenaReader, ArenaWriter, Parcel
from .wire import READ_SIZE, Frame, FrameDecoder, Message, encode

_REMEMBERED_CANCELLATIONS = 4096


class Channel:
    """The connection of a model's process to the server. Safe to use from any thread."""

    def __init__(self, connection: socket.socket, inputs: ArenaReader, outputs: ArenaWriter) -> None:
        self.inputs = inputs
        self.outputs = outputs
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
        self._inbox: Deque[Frame] = deque()
        self._reading = threading.Lock()
        self._handlers: Dict[int, Callable[[Message], None]] = {
            messages.CANCEL: self._cancel,
            messages.RELEASE: lambda message: self.outputs.free(message[1]),
            messages.TRIM: self._trim,
        }

    def receive(self, awake_ns: int = 0) -> Frame:
        """Wait for the next message that is for the main loop, so many nanoseconds of it awake.

        Raises EOFError when the server has gone.
        """
        while True:
            if self._inbox:
                return self._inbox.popleft()
            with self._reading:
                if not self._inbox:
                    if awake_ns:
                        self._stay_awake(awake_ns)
                    self._read(self._connection.recv(READ_SIZE))

    def drain(self) -> None:
        """Deal with what has arrived, without waiting."""
        # If somebody else is reading, whatever arrives is dealt with by him.
        if not self._reading.acquire(blocking=False):
            return
        try:
            while True:
                self._read(self._connection.recv(READ_SIZE, socket.MSG_DONTWAIT))
        except (BlockingIOError, EOFError):
            pass  # nothing left; or the server has gone, which is for the main loop to find
        finally:
            self._reading.release()

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
                self._inbox.append(frame)
            else:
                handler(frame[0])

    def _trim(self, _: Message) -> None:
        self.outputs.trim(self.kept_size)
        heap.give_back()

    def _cancel(self, message: Message) -> None:
        # A cancellation may come after the answer, so that nobody asks for it and takes it out: the oldest go instead.
        if len(self.cancelled) >= _REMEMBERED_CANCELLATIONS:
            del self.cancelled[next(iter(self.cancelled))]
        self.cancelled[message[1]] = None
