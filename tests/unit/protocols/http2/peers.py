"""A session between a server that does what a test says and a client that sends what it likes."""

import struct
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from hpack import Encoder

from conch.protocols.connections.traffic import SweepClock
from conch.protocols.http2.flow_control import Http2Stream
from conch.protocols.http2.frames import PREFACE
from conch.protocols.http2.header_blocks import RequestHead, response_block, trailers_block
from conch.protocols.http2.limits import Http2Limits, PeerResets
from conch.protocols.http2.session import Http2Session

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"test")]
HEAD = response_block(200, [(b"content-type", b"text/plain")])
TRAILERS = trailers_block([(b"grpc-status", b"0")])
NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The first number of RST_STREAM, WINDOW_UPDATE, the second of GOAWAY: in each case what matters."""
        return struct.unpack_from(">I", self.payload, 4 if self.kind == GOAWAY else 0)[0]


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def frames(data: bytes) -> list[Frame]:
    frames = []
    while data:
        size = int.from_bytes(data[:3])
        assert len(data) >= 9 + size
        frames.append(Frame(data[3], data[4], int.from_bytes(data[5:9]), data[9 : 9 + size]))
        data = data[9 + size :]
    return frames


class Recorder:
    """A receiver that remembers; answers as the test wants."""

    no_receive_timeout = False

    def __init__(self, head: RequestHead, stream: Http2Stream) -> None:
        self.head = head
        self.stream = stream
        self.body = b""
        self.ended = self.gone = self.late = False
        self.takes = True
        self.drains = 0

    def data(self, data, ended) -> bool:
        assert not self.ended
        self.body += data
        self.ended = ended
        return self.takes

    def aborted(self) -> None:
        assert not self.gone
        self.gone = True

    def drained(self) -> None:
        self.drains += 1

    def timed_out(self) -> None:
        self.late = True
        self.stream.answer_head(HEAD)


class Echo(Recorder):
    """A receiver that sends back what it got."""

    def data(self, data, ended) -> bool:
        super().data(data, ended)
        if ended:
            self.stream.answer(HEAD, [self.body], len(self.body), TRAILERS)
        return True


class Unlimited:
    """Time without end: a session of these tests takes all that it is fed, with no event loop around."""

    def until(self) -> float:
        return inf


class Server:
    """The owner of a session, its socket, and its clock."""

    def __init__(
        self, receiver: Callable = Recorder, peer: str = "192.0.2.1", by_peer: PeerResets | None = None, **limits
    ) -> None:
        self.peer = peer
        self.limits = Http2Limits(**limits)
        self.peer_resets = PeerResets(self.limits) if by_peer is None else by_peer
        self.clock = SweepClock()
        self.clock.now = 100.0
        self.parse_budget = Unlimited()
        self.receiver = receiver
        self.calls: list[Recorder] = []
        self.interpreted = 0
        self.written = b""
        self.writable = True
        self.closed = False
        self.session = Http2Session(self, self)
        self.session.start()

    def interpret(self, head: RequestHead) -> RequestHead:
        self.interpreted += 1
        return head

    def accept(self, head: RequestHead, stream: Http2Stream) -> Recorder:
        self.calls.append(self.receiver(head, stream))
        return self.calls[-1]

    def write(self, data) -> None:
        self.written += bytes(data)

    write_soon = write

    def write_parts(self, parts) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        """What was written since the last time."""
        written, self.written = self.written, b""
        return written

    def sweep_after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.session.sweep()


class Client:
    """Sends frames as it likes, in order or not."""

    def __init__(self, server: Server, greet: bool = True) -> None:
        self.server = server
        self.encoder = Encoder()
        if greet:
            self.send(PREFACE + NO_SETTINGS)
            server.take()

    def send(self, *data: bytes) -> list[Frame]:
        self.server.session.receive(b"".join(data))
        return frames(self.server.take())

    def request(self, stream: int, body: bytes | None = None, fields=REQUEST) -> bytes:
        """HEADERS, and the whole body if there is one."""
        head = frame(HEADERS, stream, self.encoder.encode(fields), 4 if body is not None else 5)
        return head if body is None else head + frame(DATA, stream, body, 1)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, payload=struct.pack(">HI", key, value))


def goaway(client: Client, *sent: bytes) -> tuple[int, bytes]:
    *_, last = client.send(*sent)
    assert last.kind == GOAWAY
    assert client.server.closed
    assert all(call.gone for call in client.server.calls if not call.stream.closed or call.gone)
    assert client.send(client.request(1001, b"x")) == []
    return last.number, last.payload[8:]
