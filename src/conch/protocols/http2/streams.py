# Compiled by mypyc in wheels.
"""The streams of one connection, from HEADERS to END_STREAM or RST_STREAM, with limits for hostile clients."""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from conch.domain.tensor import Buffer
from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.connections.traffic import SweepClock, Traffic
from conch.protocols.http2 import frames
from conch.protocols.http2.flow_control import ENDED_RECEIVER, Http2Channel, Http2Stream, Receiver, SendScheduler
from conch.protocols.http2.frames import ConnectionFault, ErrorCode, StreamFault
from conch.protocols.http2.header_blocks import RequestBlocks, RequestHead
from conch.protocols.http2.limits import FrameBudget, Http2Limits, PeerResets, ReceiveWindow

Head = TypeVar("Head")

# Streams that the server has reset: frames that were on their way to them are not a fault.
_MAX_RESET_IDS: Final = 256
# Frames of data below this size, but for the last of a stream, are counted.
_SMALL_BYTES: Final = 128
# The cost of a request that is rejected, in noise frames.
_REJECTED_COST_FRAMES: Final = 5
# The maximum of WINDOW_UPDATE frames that a client may send for earlier data.
_MAX_WINDOW_CREDIT: Final = 20_000
_NEW_TABLE_SIZE: Final = 0x20
# Updating this many streams costs as much as reading a small frame.
_STREAMS_PER_NOISE_FRAME: Final = 10


class StreamsOwner(Protocol[Head]):
    """The server, as streams see it."""

    limits: Http2Limits
    peer_resets: PeerResets
    parse_budget: ParseBudget
    traffic: Traffic
    clock: SweepClock
    interpret: Callable[[RequestHead], Head]  # cached for equal header blocks; may raise StreamFault
    accept: Callable[[Head, Http2Stream], Receiver]


class Streams(Generic[Head]):
    """All open streams of a connection. Methods that take frames raise ConnectionFault."""

    def __init__(
        self, owner: StreamsOwner[Head], channel: Http2Channel, noise_frames: FrameBudget, on_empty: Callable[[], None]
    ) -> None:
        """`noise_frames` limits frames without effect; `on_empty` is called when the last stream has ended."""
        limits = owner.limits
        self._owner = owner
        self._clock = owner.clock
        self._limits = limits
        self._channel = channel
        self._noise_bucket = noise_frames
        self._on_empty = on_empty
        self._blocks = RequestBlocks(owner.interpret, limits.header_bytes_hard)
        self._window = ReceiveWindow(limits.connection_window)
        self._open: dict[int, Http2Stream] = {}
        self._reset_ids: deque[int] = deque(maxlen=_MAX_RESET_IDS)
        self._reset_bucket = FrameBudget(limits.resets, limits.resets_per_s, owner.clock.now)
        self._small_bucket = FrameBudget(limits.small_frames, limits.small_frames_per_s, owner.clock.now)
        self.send_scheduler = SendScheduler(channel, limits.held_bytes)
        self._withheld_bytes = 0  # consumed, and not given back to the connection's window
        self._last_opened = 0  # the highest stream that the client has opened
        self.last_accepted = 0  # the highest that was not refused
        self.refusing = False  # whether new streams are refused

    def __len__(self) -> int:
        return len(self._open)

    # Called by the reader.

    def headers(self, stream: int, block: bytes, ended: bool) -> None:
        """Receive a header block: a request, or trailers."""
        if block[:1] and block[0] & 0xE0 == _NEW_TABLE_SIZE:
            self._noise_bucket.spend(self._clock.now, "changes of the header table", _REJECTED_COST_FRAMES)
        if stream <= self._last_opened:
            self._late_headers(stream, block, ended)
            return
        if not stream & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a client's stream cannot be number {stream}")
        self._last_opened = stream
        if self.refusing:
            self._blocks.skip(block)
            self._refuse(stream, ErrorCode.REFUSED_STREAM)
            return
        self.last_accepted = stream
        try:
            head = self._blocks.read(block)
        except StreamFault as fault:
            self._refuse(stream, fault.code)
            return
        if len(self._open) >= self._limits.streams:
            self._refuse(stream, ErrorCode.REFUSED_STREAM)
            return
        opened = Http2Stream(self, self.send_scheduler, stream, self._clock.now)
        opened.ended = ended
        opened.receiver = self._owner.accept(head, opened)
        if not opened.closed:  # by an answer that needs no more than the head
            self._open[stream] = opened
            if not ended:
                return
            opened.receiver.data(b"", True)
        else:
            opened.receiver = ENDED_RECEIVER
        self._noise_bucket.spend(self._clock.now, "requests that cannot be served", _REJECTED_COST_FRAMES)

    def data(self, stream: int, data: Buffer, size: int, ended: bool) -> None:
        """Receive a piece of a DATA frame."""
        if not self._window.receive(size):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        if size < _SMALL_BYTES and not ended:
            self._small_bucket.spend(self._clock.now, "small frames")
        receiving = self._open.get(stream)
        if receiving is None or receiving.ended:
            self._open_window(0, self._window, size)
            self._late_data(stream)
            return
        if ended:
            receiving.ended = True
        elif not size:
            self._noise_bucket.spend(self._clock.now, "empty frames")
        elif not self._window_of(receiving).receive(size):
            self._open_window(0, self._window, size)
            self._reset_faulty(receiving, ErrorCode.FLOW_CONTROL_ERROR)
            return
        receiving.received += size
        receiving.unconsumed += size
        if ended and not receiving.receiver.no_receive_timeout:
            receiving.held = receiving.received
            self.send_scheduler.count(receiving.held)
        if receiving.receiver.data(data, ended):
            self.consumed(receiving, size)

    def reset(self, stream: int) -> None:
        """Receive an RST_STREAM frame."""
        if stream > self._last_opened or not stream & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream}, which is not open")
        ended = self._open.get(stream)
        if ended is not None:
            self._count_reset()
            self._drop(ended)

    def window_update(self, stream: int, increment: int) -> None:
        """Receive a WINDOW_UPDATE frame. More than the sent data explain is noise."""
        send_scheduler = self.send_scheduler
        if send_scheduler.window_credit > 0:
            send_scheduler.window_credit = min(send_scheduler.window_credit, _MAX_WINDOW_CREDIT) - 1
        else:
            self._noise_bucket.spend(self._clock.now, "WINDOW_UPDATE")
        if not stream:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            if not self.send_scheduler.widen(increment):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window larger than 2^31-1")
        elif stream > self._last_opened or not stream & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream}, which is not open")
        elif stream in self._open:
            if not increment:
                self._reset_faulty(self._open[stream], ErrorCode.PROTOCOL_ERROR)
            elif not self._open[stream].widen(increment):
                self._reset_faulty(self._open[stream], ErrorCode.FLOW_CONTROL_ERROR)
            else:
                self._open[stream].flush()

    def initial_window(self, size: int) -> None:
        """Apply the setting of that name."""
        if size > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {size}")
        change = size - self.send_scheduler.initial_window
        if not change:
            return
        # All streams are visited, twice.
        self._noise_bucket.spend(self._clock.now, "changes of windows", 1 + len(self._open) // _STREAMS_PER_NOISE_FRAME)
        self.send_scheduler.initial_window = size
        for stream in self._open.values():
            if not stream.widen(change):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window larger than 2^31-1")
        self.send_scheduler.flush()

    def priority(self, stream: int, payload: bytes) -> None:
        """Check a PRIORITY frame, which is otherwise ignored."""
        if not stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._noise_bucket.spend(self._clock.now, "PRIORITY")
        if len(payload) != 5:
            self._refuse(stream, ErrorCode.FRAME_SIZE_ERROR)

    # Called by streams.

    @property
    def alone(self) -> bool:
        """Whether one stream is open, or none."""
        return len(self._open) <= 1

    def sent(self, stream: Http2Stream) -> None:
        """Close a stream whose answer is complete."""
        if not stream.ended:
            # The rest of the request is not needed.
            self._reset_ids.append(stream.id)
            self._channel.write(frames.reset_frame(stream.id, ErrorCode.NO_ERROR))
        stream.receiver = ENDED_RECEIVER
        self._closed(stream)

    def reset_stream(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream by RST_STREAM."""
        self._reset_ids.append(stream.id)
        self._channel.write(frames.reset_frame(stream.id, code))
        self._drop(stream)

    def consumed(self, stream: Http2Stream, size: int) -> None:
        """Give back `size` bytes of the windows."""
        size = min(size, stream.unconsumed)  # all is given back when a stream ends
        stream.unconsumed -= size
        # A client with too many unanswered requests or unsent answers gets no window (backpressure).
        self._withheld_bytes += size
        if not self.send_scheduler.full:
            self.resume()
        if stream.receive_window is not None and not stream.ended and not stream.closed:
            self._open_window(stream.id, stream.receive_window, size)

    def resume(self) -> None:
        """Let the client send more: no more than the limit is held for it any longer."""
        size, self._withheld_bytes = self._withheld_bytes, 0
        self._open_window(0, self._window, size)

    # For the session.

    def sweep(self) -> None:
        """Enforce the timeouts of streams."""
        now, limits = self._clock.now, self._limits
        for stream in tuple(self._open.values()):
            # As long as more is held than may be, streams without progress are reset soon, the oldest first.
            stalled_s = limits.stalled_full_s if self.send_scheduler.full else limits.stalled_write_s
            if stream.stalled_s(now) > stalled_s:
                self.reset_stream(stream, ErrorCode.CANCEL)
            elif not stream.ended and not stream.receiver.no_receive_timeout:
                allowed_s = limits.receive_grace_s + stream.received / limits.receive_bytes_per_s
                if now - stream.since > allowed_s:
                    stream.receiver.timed_out()

    def abort(self) -> None:
        """End all streams and cancel their calls."""
        streams = tuple(self._open.values())
        self._open.clear()
        for stream in streams:
            stream.close()
            _end_receiver(stream).aborted()

    def _late_headers(self, stream: int, block: bytes, ended: bool) -> None:
        """Receive trailers, or what comes on a stream that has ended; decode it for its effect on the table."""
        self._blocks.skip(block)
        receiving = self._open.get(stream)
        if receiving is None:
            if stream not in self._reset_ids:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream}, which has ended")
            self._noise_bucket.spend(self._clock.now, "HEADERS on streams that have ended", _REJECTED_COST_FRAMES)
        elif receiving.ended:
            self._reset_faulty(receiving, ErrorCode.STREAM_CLOSED)
        elif not ended:
            self._reset_faulty(receiving, ErrorCode.PROTOCOL_ERROR)
        else:
            receiving.ended = True
            receiving.receiver.data(b"", True)

    def _late_data(self, stream: int) -> None:
        if stream > self._last_opened or not stream & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream}, which is not open")
        if stream in self._open:
            self._reset_faulty(self._open[stream], ErrorCode.STREAM_CLOSED)
        elif stream not in self._reset_ids:
            self._noise_bucket.spend(self._clock.now, "frames on streams that have ended")

    def _window_of(self, stream: Http2Stream) -> ReceiveWindow:
        if stream.receive_window is None:
            stream.receive_window = ReceiveWindow(self._limits.stream_window)
        return stream.receive_window

    def _open_window(self, stream: int, window: ReceiveWindow, size: int) -> None:
        increment = window.consume(size)
        if increment:
            self._channel.write(frames.window_update_frame(stream, increment))

    def _reset_faulty(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Reset a stream for a fault of the client, which counts as a reset by the client."""
        self._count_reset()
        self.reset_stream(stream, code)

    def _refuse(self, stream: int, code: ErrorCode) -> None:
        """Reset a stream that may not have been opened."""
        self._count_reset()
        if stream in self._open:
            self.reset_stream(self._open[stream], code)
            return
        self._reset_ids.append(stream)
        self._channel.write(frames.reset_frame(stream, code))

    def _drop(self, stream: Http2Stream) -> None:
        stream.close()
        receiver = _end_receiver(stream)
        self._closed(stream)
        receiver.aborted()

    def _closed(self, stream: Http2Stream) -> None:
        self._open.pop(stream.id, None)
        if stream.unconsumed:
            self.consumed(stream, stream.unconsumed)
        if self.send_scheduler.count(-stream.held):
            self.resume()
        stream.held = 0
        if self.refusing and not self._open:
            self._on_empty()

    def _count_reset(self) -> None:
        self._reset_bucket.spend(self._clock.now, "stream resets")
        self._owner.peer_resets.spend(self._channel.peer, self._clock.now)


def _end_receiver(stream: Http2Stream) -> Receiver:
    """Return the receiver of a stream that has ended, which refers to it: garbage collection need not free the two."""
    receiver, stream.receiver = stream.receiver, ENDED_RECEIVER
    return receiver
