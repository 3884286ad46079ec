# Compiled by mypyc in wheels.
"""One HTTP/2 connection without its socket: bytes in, streams opened and answered, bytes out.

A fault of the client ends the stream by RST_STREAM or the connection by GOAWAY. What costs a client little and the
server much is limited by token buckets: stream resets, and frames without effect.
"""

import logging
import random
from typing import Final, Generic, TypeVar

from conch.domain.tensor import Buffer
from conch.protocols.http2 import frames
from conch.protocols.http2.flow_control import Http2Channel
from conch.protocols.http2.frames import ConnectionFault, ErrorCode
from conch.protocols.http2.keepalive import Check, Keepalive
from conch.protocols.http2.limits import FrameBudget
from conch.protocols.http2.reader import FrameReader
from conch.protocols.http2.streams import Streams, StreamsOwner

Head = TypeVar("Head")

_log: Final = logging.getLogger(__name__)

_DRAIN_PING: Final = b"goodbye?"
_KEEPALIVE_PING: Final = b"anybody?"
# Parameters of this size cost as much as a small frame.
_SETTINGS_PER_NOISE_FRAME_BYTES: Final = 60
# How long a client that does not acknowledge the ping may still open streams after GOAWAY.
_DRAIN_TIMEOUT_S: Final = 2.0


class Http2Session(Generic[Head]):
    """The state of one connection. All methods belong to the event loop's thread, and none raises."""

    __deletable__ = ("_reader", "_streams")

    def __init__(self, owner: StreamsOwner[Head], channel: Http2Channel) -> None:
        limits = owner.limits
        self._owner = owner
        self._clock = owner.clock
        self._parse_budget = owner.parse_budget
        self._limits = limits
        self._channel = channel
        self._noise_bucket = FrameBudget(limits.noise_frames, limits.noise_frames_per_s, owner.clock.now)
        self._streams = Streams(owner, channel, self._noise_bucket, self._finish)
        self._reader = FrameReader(self._streams, self, limits)
        self._keepalive = Keepalive(limits)
        self._since = self._last_received = owner.clock.now
        self._age_s = limits.age_s * random.uniform(0.9, 1.1)  # noqa: S311 - so that not all expire at once
        self._draining_since: float | None = None  # when the first GOAWAY was sent
        self._closed = False

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def start(self) -> None:
        """Send SETTINGS and open the connection's window."""
        limits = self._limits
        more = limits.connection_window - frames.DEFAULT_WINDOW_BYTES
        self._channel.write(frames.settings_frame(limits.settings()) + frames.window_update_frame(0, more))

    def receive(self, data: Buffer) -> bool:
        """Process received data. No reference to a view is kept.

        Returns whether some of it is left for the next turn of the loop; call again then, if only with b"".
        """
        if self._closed:
            return False
        self._last_received = self._clock.now
        try:
            return self._reader.feed(data, self._parse_budget.until())
        except ConnectionFault as fault:
            self.fail(fault.code, fault.reason)
        except Exception:
            _log.exception("an HTTP/2 connection failed unexpectedly")
            self.fail(ErrorCode.INTERNAL_ERROR, "internal error")
        return False

    def resume(self) -> None:
        """Resume sending."""
        self._streams.send_scheduler.flush()

    def drain(self) -> None:
        """Send GOAWAY; the connection closes when the open streams have ended."""
        if self._closed or self._draining_since is not None:
            return
        self._draining_since = self._clock.now
        # Streams that the client opens before it reads this are still accepted: until the ping is acknowledged.
        goaway = frames.goaway_frame(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR)
        self._channel.write(goaway + frames.ping_frame(_DRAIN_PING))

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that wait for windows or for the transport."""
        return self._streams.send_scheduler.unsent_bytes

    def refuse_streams(self) -> None:
        """Refuse streams from now on, also those on their way; the client may retry them on another connection."""
        if self._closed:
            return
        if self._draining_since is None:
            self._draining_since = self._clock.now
        if not self._streams.refusing:
            self._streams.refusing = True
            self._channel.write(frames.goaway_frame(self._streams.last_accepted, ErrorCode.NO_ERROR))
        if not self._streams:
            self._finish()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """End the connection and everything on it."""
        if self._closed:
            return
        self._channel.write(frames.goaway_frame(self._streams.last_accepted, code, reason))
        self.disconnected()
        self._channel.close()

    def disconnected(self) -> None:
        """Cancel the calls and release resources: the connection has ended."""
        self._closed = True
        self._reader.clear()
        self._streams.abort()

    def release(self) -> None:
        """Cancel the calls and break all reference cycles: the client is gone. Must be the last call."""
        self.disconnected()
        del self._reader
        del self._streams

    def sweep(self) -> None:
        """Enforce the timeouts. Called about once a second."""
        now, limits = self._clock.now, self._limits
        if not self._reader.ready and now - self._since > limits.preface_s:
            self.fail(ErrorCode.SETTINGS_TIMEOUT, "no HTTP/2 preface within the time allowed")
            return
        if self._draining_since is None:
            if self._expired(now):
                self.drain()
        else:
            if now - self._draining_since > _DRAIN_TIMEOUT_S:
                self.refuse_streams()
            if limits.age_s and limits.age_grace_s and now - self._draining_since > limits.age_grace_s:
                self.fail(ErrorCode.NO_ERROR, "max_age")
        self._note_data_sent()
        check = self._keepalive.check(now, self._last_received, len(self._streams))
        if check is Check.PING:
            self._channel.write(frames.ping_frame(_KEEPALIVE_PING))
        elif check is Check.CLOSE:
            self.fail(ErrorCode.NO_ERROR, "keepalive_timeout")
        self._streams.sweep()

    def frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Handle a frame from the reader. Raises ConnectionFault."""
        match kind:
            case frames.WINDOW_UPDATE:
                increment = frames.read_number(payload, "WINDOW_UPDATE") & frames.MAX_WINDOW_BYTES
                self._streams.window_update(stream, increment)
            case frames.PING:
                self._ping(stream, flags, payload)
            case frames.SETTINGS:
                self._settings(stream, flags, payload)
            case frames.RST_STREAM:
                frames.read_number(payload, "RST_STREAM")
                self._streams.reset(stream)
            case frames.GOAWAY:
                if stream or len(payload) < 8:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "malformed GOAWAY")
                self._count_noise("GOAWAY")
                self.refuse_streams()
            case frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
            case frames.PRIORITY:
                self._streams.priority(stream, payload)
            case _:
                self._count_noise("frames of unknown types")

    def _expired(self, now: float) -> bool:
        idle_s = self._limits.idle_s
        if idle_s and not self._streams and now - self._last_received > idle_s:
            return True
        return bool(self._age_s) and now - self._since > self._age_s

    def _settings(self, stream: int, flags: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._noise_bucket.spend(self._clock.now, "SETTINGS", 1 + len(payload) // _SETTINGS_PER_NOISE_FRAME_BYTES)
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledged with a payload")
            return
        # Of equal parameters only the last is applied; each would cost as much.
        for key, value in dict(frames.read_settings(payload)).items():
            if key == frames.INITIAL_WINDOW_SIZE:
                self._streams.initial_window(value)
            elif key == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")
                self._streams.send_scheduler.frame_bytes = value
            elif key == frames.ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        self._channel.write(frames.SETTINGS_ACK)

    def _ping(self, stream: int, flags: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self._count_noise("PING")
        if flags & frames.ACK:
            self._keepalive.acknowledged()
            if payload == _DRAIN_PING and self._draining_since is not None:
                self.refuse_streams()
            return
        self._note_data_sent()
        if not self._keepalive.pinged(self._clock.now, len(self._streams)):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._channel.write(frames.ping_frame(payload, frames.ACK))

    def _note_data_sent(self) -> None:
        send_scheduler = self._streams.send_scheduler
        if send_scheduler.data_sent:
            send_scheduler.data_sent = False
            self._keepalive.data_sent()

    def _count_noise(self, what: str) -> None:
        self._noise_bucket.spend(self._clock.now, what)

    def _finish(self) -> None:
        self._closed = True
        self._channel.close()
