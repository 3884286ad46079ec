# Compiled by mypyc in wheels.
"""HTTP/2 (RFC 9113) as the load generator speaks it: frames, windows and streams, for calls of gRPC.

Frames are written to a list and sent in one system call at the end of an event. The windows announced are so
large that answers never wait for them; the server's are respected.
"""

from abc import abstractmethod
from collections import deque
from typing import Final

from conch.measure.bench.load.connection import CLOSED, OPEN, LoadConnection, LoadOwner, LoadRequest, Wire
from conch.measure.bench.load.grpc.http2_stream import (
    MAX_HEADER_BYTES,
    ClientStream,
    GrpcHead,
    RequestHeaders,
    ResponseBlocks,
)
from conch.measure.bench.records import RequestOutcome
from conch.protocols.http2 import frames
from conch.protocols.http2.frames import ConnectionFault, ErrorCode, StreamFault

_DATA: Final = frames.DATA
_HEADERS: Final = frames.HEADERS
_CONTINUATION: Final = frames.CONTINUATION
_SETTINGS: Final = frames.SETTINGS
_END_STREAM: Final = frames.END_STREAM
_END_HEADERS: Final = frames.END_HEADERS
_PADDED: Final = frames.PADDED
_PRIORITISED: Final = frames.PRIORITISED
_HEAD_BYTES: Final = frames.HEAD_BYTES

# Answers are consumed as they arrive, so the windows need not bound anything.
_WINDOW_BYTES: Final = 2**30
_RETURN_BYTES: Final = 2**29
_FRAME_BYTES: Final = 2**20
# Beyond this many unsent bytes, pings and settings of a server that does not read are not answered.
_MAX_UNSENT_BYTES: Final = 4 * 2**20
_MAX_CONTINUATIONS: Final = 256
_MAX_CONTROL_BYTES: Final = 65_536
_MAX_REASON_BYTES: Final = 200
_TURN_BYTES: Final = 512 * 1024

_UPDATE: Final = frames.window_update_frame(0, _WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)


class Http2ClientConnection(LoadConnection):
    """One HTTP/2 connection. A subclass makes calls of streams."""

    def __init__(self, owner: LoadOwner, wire: Wire, capacity: int, fields: list[tuple[bytes, bytes]]) -> None:
        """`fields`, `:authority` among them, go with each request; names are in lower case."""
        super().__init__(owner, wire, capacity)
        self._ask = capacity
        self._headers = RequestHeaders(wire.layered, fields)
        self._blocks = ResponseBlocks()
        self._streams: dict[int, ClientStream] = {}
        self._next = 1
        self._limit = 2**31  # streams that may be open at once
        self._settled = False  # whether the server's SETTINGS have come
        self._leaving = False  # whether no more streams may be opened
        self._goaway = ""
        # What is sent.
        self._out: list[bytes] = []
        self._queued = False  # whether `send_deferred` will be called
        self._window = frames.DEFAULT_WINDOW_BYTES
        self._peer_window = frames.DEFAULT_WINDOW_BYTES  # of a new stream
        self._peer_frame = frames.DEFAULT_FRAME_BYTES
        self._blocked: deque[ClientStream] = deque()  # streams that wait for the connection's window
        self._open_size = -1
        self._open_head = b""
        self._data_key = -1
        self._data_head = b""
        # What is received.
        self._partial = b""
        self._unreturned = 0
        self._data_left = 0  # bytes of the present DATA frame that are to come
        self._padding_left = 0
        self._data_stream = 0
        self._data_ends = False
        self._block: list[bytes] = []
        self._block_stream = 0  # whose header block continues, 0 if none does
        self._block_ends = False
        self._block_pieces = 0

    # What a subclass implements.

    @abstractmethod
    def head_received(self, stream: ClientStream, head: GrpcHead, ended: bool, now_ns: int) -> None:
        """Process a header block. After `ended` the stream is closed already."""

    @abstractmethod
    def data_received(self, stream: ClientStream, data: bytes, start: int, end: int, now_ns: int) -> None:
        """Process the bytes `start` to `end` of `data`."""

    @abstractmethod
    def data_ended(self, stream: ClientStream, now_ns: int) -> None:
        """React to the end of a stream by a DATA frame, without trailers; it is closed already."""

    @abstractmethod
    def was_reset(self, stream: ClientStream, code: int, now_ns: int) -> None:
        """React to RST_STREAM; the stream is closed already."""

    @abstractmethod
    def unprocessed(self, stream: ClientStream, now_ns: int) -> None:
        """React to the statement that the server has not processed a stream; it is closed already."""

    @abstractmethod
    def room(self) -> None:
        """Use room for further streams: one has ended, the server allows more, or no more may be opened at all."""

    # LoadConnection.

    def opened(self) -> None:
        settings = {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
            frames.MAX_FRAME_SIZE: _FRAME_BYTES,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        self.write(frames.PREFACE + frames.settings_frame(settings) + _UPDATE)

    def send_deferred(self) -> None:
        self._queued = False
        out = self._out
        if not out or self.state != OPEN:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self.send(data)

    def received(self, data: bytes, now_ns: int) -> None:
        try:
            self._take(data, now_ns)
        except (ConnectionFault, StreamFault) as fault:
            self._violated(fault.code, str(fault))

    def peer_closed(self) -> None:
        if not self._settled:
            self.fail("the server closed the connection before its HTTP/2 settings; does it serve gRPC?")
        elif self._goaway:
            self.fail(self._goaway)
        elif self._streams:
            self.fail("the server closed the connection before the answer was complete")
        else:
            self.close()

    def fail(self, message: str, outcome: int = RequestOutcome.CONNECTION_ERROR) -> None:
        super().fail(message, outcome)
        self._streams.clear()
        self._blocked.clear()

    def close(self) -> None:
        if self.state == OPEN:
            for stream in self._streams.values():
                if not stream.ended:
                    self.write(frames.frame_head(0, _DATA, _END_STREAM, stream.number))
            self.write(frames.goaway_frame(0, ErrorCode.NO_ERROR))
            self.send_deferred()
        super().close()

    # For the subclass.

    def may_open(self) -> bool:
        """Whether the server allows one more stream now."""
        return len(self._streams) < self._limit and not self._leaving

    def open(self, request: LoadRequest, path: bytes, message: bytes, bidirectional: bool) -> ClientStream:
        """Begin a call with its first or only message, its prefix included."""
        number = self._next
        self._next = number + 2
        if self._next > frames.MAX_STREAM_ID:
            self._leave("the connection has used all its stream identifiers")
        stream = ClientStream(number, request, self._peer_window, bidirectional)
        self._streams[number] = stream
        block = self._headers.block(path)
        size = len(block)
        out = self._out
        if size <= self._peer_frame:
            if size != self._open_size:
                self._open_size = size
                self._open_head = frames.frame_head(size, _HEADERS, _END_HEADERS, 0)[:5]
            out.append(self._open_head)
            out.append(number.to_bytes(4, "big"))
            out.append(block)
        else:
            self._write_long_block(number, block)
        request.sent_bytes += size + _HEAD_BYTES
        self.write_data(stream, message, not bidirectional)
        return stream

    def write_data(self, stream: ClientStream, data: bytes, ends: bool) -> None:
        """Send data on a stream, as far as the windows allow, the rest later."""
        if not self._queued:
            self._queued = True
            self.owner.defer_send(self)
        size = len(data)
        if stream.data:
            stream.data = stream.data[stream.sent :] + data
            stream.sent = 0
            stream.ends = ends
            return
        if size <= self._peer_frame and size <= stream.window and size <= self._window:
            stream.window -= size
            self._window -= size
            stream.ended = ends
            key = size << 1 | ends
            if key != self._data_key:
                self._data_key = key
                self._data_head = frames.frame_head(size, _DATA, _END_STREAM if ends else 0, 0)[:5]
            out = self._out
            out.append(self._data_head)
            out.append(stream.number.to_bytes(4, "big"))
            out.append(data)
            return
        stream.data = data
        stream.sent = 0
        stream.ends = ends
        self._push(stream)

    def write(self, data: bytes) -> None:
        """Send frames with the others of this batch of events."""
        self._out.append(data)
        if not self._queued:
            self._queued = True
            self.owner.defer_send(self)

    def drop(self, stream: ClientStream, code: int) -> None:
        """Give up a stream by RST_STREAM."""
        if self._streams.pop(stream.number, None) is not None and self.state == OPEN:
            stream.data = b""
            self.write(frames.reset_frame(stream.number, ErrorCode(code)))
            self._closed_one()

    def streams(self) -> list[ClientStream]:
        """Return the open streams."""
        return list(self._streams.values())

    # Receiving.

    def _take(self, data: bytes, now: int) -> None:
        if self._partial:
            data = self._partial + data
            self._partial = b""
        end = len(data)
        position = 0
        if self._data_left or self._padding_left:
            position = self._continue_data(data, 0, end, now)
        while end - position >= _HEAD_BYTES:
            size = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            kind = data[position + 3]
            flags = data[position + 4]
            number = data[position + 7] << 8 | data[position + 8]
            number |= (data[position + 5] & 0x7F) << 24 | data[position + 6] << 16
            start = position + _HEAD_BYTES
            following = start + size
            if self._block_stream or not self._settled:
                self._check_order(kind, flags, size, number, data)
            if kind == _DATA:
                if size > _FRAME_BYTES:
                    raise _too_large(size)
                if following > end or flags & _PADDED:
                    begun = self._begin_data(data, position, end, size, flags, number, now)
                    if begun < 0:
                        break
                    position = begun
                    continue
                position = following
                self._data(number, data, start, following, size, flags & _END_STREAM != 0, now)
            else:
                if size > (_FRAME_BYTES if kind in (_HEADERS, _CONTINUATION) else _MAX_CONTROL_BYTES):
                    raise _too_large(size)
                if following > end:
                    break
                position = following
                if kind == _HEADERS:
                    self._head_frame(number, flags, data[start:following], now)
                else:
                    self._other_frame(kind, number, flags, data[start:following], now)
            if self.state != OPEN:
                return
        if position < end:
            self._partial = data[position:]

    def _check_order(self, kind: int, flags: int, size: int, number: int, data: bytes) -> None:
        if self._block_stream:
            if kind != _CONTINUATION or number != self._block_stream:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame of type {kind} within a header block")
        elif data[:5] == b"HTTP/":
            line = data[:_MAX_REASON_BYTES].split(b"\r", 1)[0].decode("latin-1")
            raise ConnectionFault(ErrorCode.HTTP_1_1_REQUIRED, f"it answered {line!r}, which is HTTP/1.1")
        elif kind == frames.GOAWAY:
            return
        elif kind != _SETTINGS or flags & frames.ACK or number or size % 6:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected SETTINGS, got {data[:24]!r}")

    def _begin_data(self, data: bytes, position: int, end: int, size: int, flags: int, number: int, now: int) -> int:
        """Enter a DATA frame that is padded or incomplete. Returns the position behind what has come, -1: wait."""
        start = position + _HEAD_BYTES
        padding = 0
        if flags & _PADDED:
            if not size:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded frame without a length of the padding")
            if start >= end:
                return -1
            padding = data[start]
            start += 1
            size -= 1
            if padding > size:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
            self._count_padding(number, padding + 1)
        self._data_stream = number
        self._data_ends = flags & _END_STREAM != 0
        self._data_left = size - padding
        self._padding_left = padding
        if not self._data_left:
            self._data(number, b"", 0, 0, 0, self._data_ends, now)
        return self._continue_data(data, start, end, now)

    def _continue_data(self, data: bytes, position: int, end: int, now: int) -> int:
        """Process what has come of the present DATA frame; return the position behind it."""
        if self._data_left and position < end:
            size = min(self._data_left, end - position)
            self._data_left -= size
            ended = self._data_ends and self._data_left == 0
            self._data(self._data_stream, data, position, position + size, size, ended, now)
            position += size
        if not self._data_left and self._padding_left:
            skipped = min(self._padding_left, end - position)
            self._padding_left -= skipped
            position += skipped
        return position

    def _data(self, number: int, data: bytes, start: int, end: int, size: int, ended: bool, now: int) -> None:
        self._unreturned += size
        if self._unreturned >= _RETURN_BYTES:
            self.write(frames.window_update_frame(0, self._unreturned))
            self._unreturned = 0
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "DATA")
            return
        stream.received_bytes += size + _HEAD_BYTES
        stream.unreturned += size
        if stream.unreturned >= _RETURN_BYTES and not ended:
            self.write(frames.window_update_frame(number, stream.unreturned))
            stream.unreturned = 0
        if size:
            self.data_received(stream, data, start, end, now)
        if ended and number in self._streams and self.state == OPEN:
            self._close_stream(stream)
            self.data_ended(stream, now)
            self._closed_one()

    def _count_padding(self, number: int, size: int) -> None:
        """Count padding, which takes room in the windows like data."""
        self._unreturned += size
        stream = self._streams.get(number)
        if stream is not None:
            stream.unreturned += size

    def _head_frame(self, number: int, flags: int, payload: bytes, now: int) -> None:
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & (_PADDED | _PRIORITISED):
            payload = frames.unpadded(flags, payload)
        ended = flags & _END_STREAM != 0
        if flags & _END_HEADERS:
            self._head(number, payload, ended, now)
            return
        self._block = [payload]
        self._block_stream = number
        self._block_ends = ended
        self._block_pieces = len(payload)

    def _continuation(self, number: int, flags: int, payload: bytes, now: int) -> None:
        if not number or number != self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block.append(payload)
        self._block_pieces += len(payload)
        if self._block_pieces > MAX_HEADER_BYTES or len(self._block) > _MAX_CONTINUATIONS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & _END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._block_stream = 0
            self._head(number, block, self._block_ends, now)

    def _head(self, number: int, block: bytes, ended: bool, now: int) -> None:
        head: GrpcHead = self._blocks.read(block)
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "HEADERS")
            return
        stream.received_bytes += len(block) + _HEAD_BYTES
        if not ended:
            self.head_received(stream, head, False, now)
            return
        self._close_stream(stream)
        self.head_received(stream, head, True, now)
        self._closed_one()

    def _other_frame(self, kind: int, number: int, flags: int, payload: bytes, now: int) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._window_update(number, frames.read_number(payload, "WINDOW_UPDATE") & 0x7FFFFFFF)
        elif kind == frames.PING:
            if len(payload) != 8 or number:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes on stream {number}")
            if not flags & frames.ACK and self.unsent_bytes() < _MAX_UNSENT_BYTES:
                self.write(frames.ping_frame(payload, frames.ACK))
        elif kind == _SETTINGS:
            if number:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {number}")
            if not flags & frames.ACK:
                self._settings(payload)
        elif kind == frames.RST_STREAM:
            code = frames.read_number(payload, "RST_STREAM")
            stream = self._streams.get(number)
            if stream is None:
                self._check_known(number, "RST_STREAM")
                return
            stream.ended = True
            self._close_stream(stream)
            self.was_reset(stream, code, now)
            self._closed_one()
        elif kind == frames.GOAWAY:
            self._take_goaway(payload, now)
        elif kind == _CONTINUATION:
            self._continuation(number, flags, payload, now)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is disabled")

    def _settings(self, payload: bytes) -> None:
        for key, value in frames.read_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW_BYTES:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {value}")
                change = value - self._peer_window
                self._peer_window = value
                for stream in self._streams.values():
                    self._widen(stream, change)
            elif key == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
                self._peer_frame = value
            elif key == frames.MAX_CONCURRENT_STREAMS:
                self._limit = value
                if not self._leaving:
                    self.capacity = min(self._ask, value)
            elif key == frames.HEADER_TABLE_SIZE:
                self._headers.limit_table(value)
        if self.unsent_bytes() < _MAX_UNSENT_BYTES:
            self.write(frames.SETTINGS_ACK)
        self._settled = True
        self._push_blocked()
        self.room()

    def _window_update(self, number: int, increment: int) -> None:
        if not number:
            self._window += increment
            if not increment or self._window > frames.MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
            self._push_blocked()
            return
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "WINDOW_UPDATE")
        elif not increment:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        else:
            self._widen(stream, increment)

    def _take_goaway(self, payload: bytes, now: int) -> None:
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        reason = payload[8 : 8 + _MAX_REASON_BYTES].decode("utf-8", "replace")
        name = frames.error_name(int.from_bytes(payload[4:8], "big"))
        self._leave(f"the server ended the connection: GOAWAY {name}{': ' if reason else ''}{reason}")
        for stream in self.streams():
            if stream.number > last:
                stream.ended = True
                self._close_stream(stream)
                self.unprocessed(stream, now)
        self._closed_one()

    def _check_known(self, number: int, what: str) -> None:
        """Accept a frame for a stream that has ended; any other is a fault."""
        if number >= self._next or not number & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {number}, which was never opened")

    def _violated(self, code: ErrorCode, text: str) -> None:
        """End the connection: the server violated HTTP/2."""
        if self.state == OPEN:
            self._out.append(frames.goaway_frame(0, code))
            self.send_deferred()
        if self.state != CLOSED:
            self.fail(f"the server's HTTP/2 is not valid: {text}")

    # Streams that end.

    def _close_stream(self, stream: ClientStream) -> None:
        del self._streams[stream.number]
        if not stream.ended:
            # The rest of the request is not needed.
            stream.ended = True
            stream.data = b""
            self.write(frames.reset_frame(stream.number, ErrorCode.NO_ERROR))

    def _closed_one(self) -> None:
        if self.state == OPEN:
            self.room()
            if self._leaving and not self.in_flight:
                self.close()

    def _leave(self, reason: str) -> None:
        """Open no more streams."""
        self._goaway = reason
        if not self._leaving:
            self._leaving = True
            self.capacity = 0
            self.owner.retire(self)

    # Sending within windows.

    def _widen(self, stream: ClientStream, change: int) -> None:
        stream.window += change
        if stream.window > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window larger than 2^31-1")
        if stream.data and change > 0:
            self._push(stream)

    def _push(self, stream: ClientStream) -> None:
        """Send what the windows allow of a stream's data."""
        data = stream.data
        total = len(data)
        turn = stream.sent + _TURN_BYTES if self._blocked else total
        while stream.sent < total and stream.window > 0 and self._window > 0 and stream.sent < turn:
            size = min(total - stream.sent, stream.window, self._window, self._peer_frame)
            following = stream.sent + size
            last = following == total and stream.ends
            self.write(frames.frame_head(size, _DATA, _END_STREAM if last else 0, stream.number))
            self._out.append(data[stream.sent : following])
            stream.sent = following
            stream.window -= size
            self._window -= size
        if stream.sent == total:
            stream.data = b""
            stream.ended = stream.ends
        elif stream.window > 0:
            self._blocked.append(stream)

    def _push_blocked(self) -> None:
        blocked = self._blocked
        while blocked and self._window > 0:
            stream = blocked.popleft()
            if stream.data:
                self._push(stream)

    def _write_long_block(self, number: int, block: bytes) -> None:
        size = self._peer_frame
        kind = _HEADERS
        for start in range(0, len(block), size):
            piece = block[start : start + size]
            flags = _END_HEADERS if start + size >= len(block) else 0
            self._out.append(frames.frame_head(len(piece), kind, flags, number))
            self._out.append(piece)
            kind = _CONTINUATION


def _too_large(size: int) -> ConnectionFault:
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes")
