# Compiled by mypyc in wheels.
"""Requests and connections of the load generator: what its loop calls, and what connections call back.

The loop calls `open` once, then `ready` for each event of epoll, `start` and `cancel` for requests; if the connection
asked for it, `send_deferred` after an event and `deferred` at the end of a batch of events. A subclass for a protocol
implements the abstract methods and calls back the methods of LoadOwner. All of it runs in one thread; no method blocks.
"""

import errno
import os
import select
import socket
from abc import ABC, abstractmethod
from time import monotonic_ns
from typing import Final

from conch.measure.bench.generator import (
    Answer,
    AnswerCheck,
    ExpectedAnswer,
    PreparedRequest,
    ResponseKind,
    Script,
)
from conch.measure.bench.records import RequestOutcome

MAX_RECEIVE_BYTES: Final = 262_144
_FIRST_RECEIVE_BYTES: Final = 16_384
_PREFIX_BYTES: Final = 256
# Answers of more lengths than this have texts or variable shapes: then the length says nothing.
_MAX_LENGTHS: Final = 256
_PARSED: Final = 63  # one of 64
CONNECTING: Final = 0
HANDSHAKE: Final = 1
OPEN: Final = 2
CLOSED: Final = 3

_OUT: Final = select.EPOLLOUT


class Wire:
    """Bytes in, bytes out. `TlsWire` overrides all of it."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is connecting."""
        self.sock = sock
        self.layered = False  # whether there is a handshake, and bytes may be left when the socket has none
        self._size = _FIRST_RECEIVE_BYTES
        self._recv = sock.recv
        self._send = sock.send

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    def connect_error(self) -> int:
        """Return the errno of connecting, 0 if it succeeded."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def begin_handshake(self) -> None:
        """Prepare `handshake`."""

    def handshake(self) -> int:
        """Continue the handshake; return 0 when it is complete, else the event of epoll that it waits for."""
        return 0

    def receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, None if nothing has. Raises OSError."""
        try:
            data: bytes = self._recv(self._size)
        except BlockingIOError:
            return None
        if len(data) == self._size and self._size < MAX_RECEIVE_BYTES:
            self._size *= 4
        return data

    def send(self, data: bytes) -> int:
        """Return how many bytes were taken. Raises OSError."""
        try:
            return self._send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the socket; errors do not matter."""
        self.sock.close()


class KnownAnswers:
    """What the answers of one process have in common.

    An answer is parsed if it is the first of its connection, one of 64, or differs in length or prefix from all good
    ones. Others are compared with these only.
    """

    def __init__(self, check: AnswerCheck) -> None:
        self._check = check
        self._prefix = b""
        self._lengths: set[int] = set()
        self._count = 0

    def problem(self, body: bytes, first: bool) -> str:
        """Return what is wrong with an answer, "" if nothing is. `first`: of its connection."""
        self._count += 1
        lengths = self._lengths
        if (
            not first
            and self._count & _PARSED
            and self._prefix
            and body.startswith(self._prefix)
            and (len(body) in lengths or len(lengths) >= _MAX_LENGTHS)
        ):
            return ""
        problem = self._check.problem(body)
        if not problem:
            self._learn(body)
        return problem

    def _learn(self, body: bytes) -> None:
        if len(self._lengths) < _MAX_LENGTHS:
            self._lengths.add(len(body))
        prefix = self._prefix or body[:_PREFIX_BYTES]
        while not body.startswith(prefix):
            prefix = prefix[:-1]
        self._prefix = prefix


class EncodedRequest:
    """A PreparedRequest as the loop uses it. `wire` is the whole request of HTTP/1.1; gRPC leaves it empty."""

    def __init__(self, prepared: PreparedRequest, wire: bytes, keep_body: bool) -> None:
        """`keep_body`: whether something reads the body of a unary answer."""
        self.prepared = prepared
        self.wire = wire
        self.index: int = prepared.index
        self.kind: int = int(prepared.response)
        self.streams = self.kind not in (int(ResponseKind.UNARY), int(ResponseKind.OPENAI_UNARY))
        self.changes = prepared.next_body is not None
        self.cancel: int = int(prepared.cancel)
        self.cancel_after: int = prepared.cancel_after
        self.expected: ExpectedAnswer | None = prepared.expected
        self.keep_body = keep_body or self.expected is not None or self.kind == int(ResponseKind.OPENAI_UNARY)


class LoadUser:
    """A virtual user: one script after the other."""

    def __init__(self, session: int, script: Script | None) -> None:
        self.session = session
        self.script = script  # None: the fixed requests
        self.failures = 0  # connection errors in succession
        self.answer: Answer | None = None  # of an open loop: to the last request
        self.free_ns = 0  # of an open loop: when it has thought


class LoadRequest:
    """One request, from the time when it is intended until it is settled. Protocols fill in what they measure."""

    def __init__(self, encoded: EncodedRequest, user: LoadUser, intended_ns: int, deadline_ns: int) -> None:
        self.encoded = encoded
        self.user = user
        self.intended_ns = intended_ns
        self.deadline_ns = deadline_ns
        self.sent_ns = 0
        self.first_ns = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.responses = 0
        self.retries = 0
        self.status = 0
        self.input_tokens = -1
        self.output_tokens = -1
        self.reasoning_tokens = -1
        self.cached_tokens = -1
        self.settled = False
        self.body = b""  # of a unary answer, or all messages of a gRPC stream, if `encoded.keep_body`
        self.text = ""  # of a streamed answer, if `encoded.keep_body`
        self.message = ""  # what the server gave as the reason of an error
        self.waited = False  # for a free connection
        self.via: LoadConnection | None = None  # where it was sent
        self.chunks: bytearray | None = None  # rows of CHUNK


class LoadOwner(ABC):
    """The loop, as connections see it."""

    @abstractmethod
    def settle(self, request: "LoadRequest", outcome: int, now_ns: int, message: str = "") -> None:
        """Record the end of a request; `outcome` is a RequestOutcome.

        Set what was measured (`status`, `responses`, tokens, `body` or `text`) in the request before. The loop checks
        expected answers itself if the outcome is OK. Later calls for the same request are no-ops. It starts nothing at
        once, so that a connection may call it in any state.
        """

    @abstractmethod
    def responded(self, request: LoadRequest, now_ns: int, tokens: int, characters: int) -> bool:
        """Record a content chunk or response of a stream; False if the request is cancelled by this (AFTER_RESPONSES).

        After False the request is settled: cancel it on the wire, as `cancel` would, and forget it.
        """

    @abstractmethod
    def retry(self, request: LoadRequest, now_ns: int, message: str) -> None:
        """Send a request that the server has not processed over another connection; `message` says why.

        A request that was sent too often is settled as REJECTED.
        """

    @abstractmethod
    def retire(self, connection: "LoadConnection") -> None:
        """Replace a connection that takes no more requests. It stays open for those in flight."""

    @abstractmethod
    def available(self, connection: "LoadConnection") -> None:
        """Offer a connection for the next request. Call it when open, and again when `capacity` is not used up.

        The loop takes it from its list when `in_flight` has reached `capacity`.
        """

    @abstractmethod
    def lost(self, connection: "LoadConnection", message: str) -> None:
        """Forget a connection that is closed; "" if it was closed in good order."""

    @abstractmethod
    def watch(self, connection: "LoadConnection", writable: bool) -> None:
        """Call `ready` also when the connection is writable, or no longer."""

    @abstractmethod
    def sent(self, request: LoadRequest, now_ns: int) -> None:
        """Record that a request is handed to the socket now: its `sent_ns`, and how late it is."""

    @abstractmethod
    def defer(self, connection: "LoadConnection") -> None:
        """Call `deferred` once after the present batch of events, before the loop waits."""

    @abstractmethod
    def defer_send(self, connection: "LoadConnection") -> None:
        """Call `send_deferred` once after the present event and what it made due."""


class LoadConnection(ABC):
    """One connection to the endpoint, over TLS or not."""

    def __init__(self, owner: LoadOwner, wire: Wire, capacity: int) -> None:
        """`capacity` is the number of requests that may be in flight at once; a subclass may change it."""
        self.owner = owner
        self.wire = wire
        self.capacity = capacity
        self.in_flight = 0
        self.state = CONNECTING
        self.fd = wire.fileno()
        self.answered = False  # whether any request was answered completely
        self.retired = False  # whether the loop no longer counts it among those it may open
        self.listed = False  # whether the loop has it among the available ones
        self.opened_ns = monotonic_ns()
        self.writing = False
        self._unsent = bytearray()

    # What a protocol implements.

    @abstractmethod
    def opened(self) -> None:
        """Begin: TCP and TLS are up. Calls `owner.available`, at once or later."""

    @abstractmethod
    def start(self, request: LoadRequest) -> None:
        """Send a request: set its `sent_ns` and `sent_bytes`, call `owner.sent` and `send`, or later. Must not raise.

        `in_flight` is counted by the loop: up before `start`, down in `settle`.
        """

    @abstractmethod
    def received(self, data: bytes, now_ns: int) -> None:
        """Process bytes from the server, which arrived at `now_ns`. Must not raise on any bytes."""

    @abstractmethod
    def cancel(self, request: LoadRequest) -> None:
        """Give up a request that is settled already: tell the server, or close the connection."""

    @abstractmethod
    def requests(self) -> list[LoadRequest]:
        """Return the requests in flight."""

    def peer_closed(self) -> None:
        """Process the end of what the server sends. A protocol where this may end an answer overrides it."""
        self.fail("the server closed the connection before the answer was complete")

    def deferred(self) -> None:  # noqa: B027
        """Do what was put off by `owner.defer`."""

    def send_deferred(self) -> None:  # noqa: B027
        """Send what was put off by `owner.defer_send`."""

    # For protocols.

    def send(self, data: bytes) -> None:
        """Send `data`, now or as soon as the socket takes it. Errors end the connection."""
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self.wire.send(data)
        except OSError as error:
            self.fail(f"sending failed: {describe(error)}")
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._watch(True)

    def unsent_bytes(self) -> int:
        """Return how much `send` holds because the socket is full."""
        return len(self._unsent)

    def fail(self, message: str, outcome: int = RequestOutcome.CONNECTION_ERROR) -> None:
        """Close, and settle the requests in flight with this outcome and message."""
        if self.state == CLOSED:
            return
        self._shut()
        now = monotonic_ns()
        for request in self.requests():
            self.owner.settle(request, outcome, now, message)
        self.owner.lost(self, message)

    def close(self) -> None:
        """Close in good order; there are no requests in flight."""
        if self.state != CLOSED:
            self._shut()
            self.owner.lost(self, "")

    # For the loop.

    def ready(self, events: int) -> None:
        """React to events of epoll."""
        if self.state == OPEN:
            if events & _OUT and self.writing:
                self._flush()
            if events & ~_OUT and self.state == OPEN:
                self._receive()
        elif self.state == CONNECTING:
            self._connected()
        elif self.state == HANDSHAKE:
            self._handshake()

    def _receive(self) -> None:
        wire = self.wire
        while True:
            try:
                data = wire.receive()
            except OSError as error:
                self.fail(f"receiving failed: {describe(error)}")
                return
            if data is None:
                return
            now = monotonic_ns()
            if not data:
                self.peer_closed()
                return
            self.received(data, now)
            if not wire.layered or self.state != OPEN:
                return

    def _connected(self) -> None:
        code = self.wire.connect_error()
        if code:
            self.fail(f"connecting failed: {os.strerror(code)}")
            return
        if self.wire.layered:
            self.state = HANDSHAKE
            try:
                self.wire.begin_handshake()
            except OSError as error:
                self.fail(f"connecting failed: {describe(error)}")
                return
            self._handshake()
        else:
            self._open()

    def _handshake(self) -> None:
        try:
            wants = self.wire.handshake()
        except OSError as error:
            self.fail(f"TLS handshake failed: {describe(error)}")
            return
        if wants == 0:
            self._open()
        else:
            self.owner.watch(self, wants == _OUT)

    def _open(self) -> None:
        self.state = OPEN
        self.writing = False
        self.owner.watch(self, False)
        self.opened()

    def _flush(self) -> None:
        try:
            sent = self.wire.send(bytes(self._unsent[:262_144]))
        except OSError as error:
            self.fail(f"sending failed: {describe(error)}")
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._watch(False)

    def _watch(self, writable: bool) -> None:
        if self.writing != writable:
            self.writing = writable
            self.owner.watch(self, writable)

    def _shut(self) -> None:
        self.state = CLOSED
        self._unsent.clear()
        self.wire.close()


def describe(error: OSError) -> str:
    """Return the cause of an error of a socket in words."""
    if error.errno == errno.EADDRNOTAVAIL:
        return "no free local port; use fewer connections, or more addresses"
    if isinstance(error, socket.gaierror) or not error.errno or not error.strerror:
        return str(error) or type(error).__name__
    return error.strerror
