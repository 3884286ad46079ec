"""One HTTP/2 connection without its socket: bytes in, streams opened and answered, bytes out.

Every fault of the client ends where it belongs: a stream by RST_STREAM, the connection by GOAWAY. What costs a client
little and the server much is counted: streams given up before they are answered, and frames that do nothing.
"""

import logging
import random
from typing import Generic, TypeVar

from conch.frontends.http2 import frames
from conch.frontends.http2.frames import ConnectionFault, ErrorCode
from conch.frontends.http2.keepalive import Check, Keepalive
from conch.frontends.http2.limits import TokenBucket
from conch.frontends.http2.reader import FrameReader
from conch.frontends.http2.stream import Http2Channel
from conch.frontends.http2.streams import Streams, StreamsOwner
from conch.tensor import Buffer

Head = TypeVar("Head")

_log = logging.getLogger(__name__)

_LEAVE_PING = b"goodbye?"
_KEEPALIVE_PING = b"anybody?"
# Parameters of this size cost as much as a small frame.
_SETTINGS_PER_NOISE_FRAME_BYTES = 60
# How long a client that does not answer the ping may go on asking after it was told not to.
_LEAVE_S = 2.0


class Http2Session(Generic[Head]):
    """The state of one connection. All methods belong to the event loop's thread, and none raises."""

    def __init__(self, owner: StreamsOwner[Head], channel: Http2Channel) -> None:
        limits = owner.limits
        self._owner = owner
        self._limits = limits
        self._channel = channel
        self._noise = TokenBucket(limits.noise_frames, limits.noise_frames_per_s, owner.now)
        self._streams = Streams(owner, channel, self._noise, self._finish)
        self._reader = FrameReader(self._streams, self, limits)
        self._keepalive = Keepalive(limits)
        self._since = self._heard = owner.now
        self._age_s = limits.age_s * random.uniform(0.9, 1.1)  # noqa: S311 - so that not all leave at once
        self._leaving: float | None = None  # since when the client knows that it is to leave
        self._over = False

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def start(self) -> None:
        """Announce the limits."""
        limits = self._limits
        more = limits.connection_window - frames.DEFAULT_WINDOW
        self._channel.write(frames.settings_frame(limits.settings()) + frames.window_update_frame(0, more))

    def receive(self, data: Buffer) -> bool:
        """Take what has come from the client. Of a view, nothing is kept.

        Returns whether some of it is left for the next turn of the loop; more must be received then, if only nothing.
        """
        if self._over:
            return False
        self._heard = self._owner.now
        try:
            return self._reader.feed(data, self._owner.parse_budget.until())
        except ConnectionFault as fault:
            self.fail(fault.code, fault.reason)
        except Exception:
            _log.exception("an HTTP/2 connection failed unexpectedly")
            self.fail(ErrorCode.INTERNAL_ERROR, "internal error")
        return False

    def resume(self) -> None:
        """Hear that the client keeps up again with what is written."""
        self._streams.send_scheduler.flush()

    def leave(self) -> None:
        """Ask the client to open no more streams; the connection closes when those that are open have ended."""
        if self._over or self._leaving is not None:
            return
        self._leaving = self._owner.now
        # What the client opened before it reads this is still taken: until the ping has come back.
        goaway = frames.goaway_frame(frames.LARGEST_ID, ErrorCode.NO_ERROR)
        self._channel.write(goaway + frames.ping_frame(_LEAVE_PING))

    def leave_now(self) -> None:
        """Take no more streams. What the client has opened and is not here yet is refused: it may try elsewhere."""
        if self._over:
            return
        if self._leaving is None:
            self._leaving = self._owner.now
        if not self._streams.refusing:
            self._streams.refusing = True
            self._channel.write(frames.goaway_frame(self._streams.last, ErrorCode.NO_ERROR))
        if not self._streams:
            self._finish()

    def fail(self, code: ErrorCode, reason: str) -> None:
        """End the connection and everything on it."""
        if self._over:
            return
        self._channel.write(frames.goaway_frame(self._streams.last, code, reason))
        self.lost()
        self._channel.close()

    def lost(self) -> None:
        """Hear that the connection is gone, or make it so: whoever works for it is told."""
        self._over = True
        self._reader.clear()
        self._streams.abort()

    def sweep(self) -> None:
        """End what takes too long. Called every second or so."""
        now, limits = self._owner.now, self._limits
        if not self._reader.greeted and now - self._since > limits.preface_s:
            self.fail(ErrorCode.SETTINGS_TIMEOUT, "no HTTP/2 within the time allowed")
            return
        if self._leaving is None:
            if self._outlived(now):
                self.leave()
        else:
            if now - self._leaving > _LEAVE_S:
                self.leave_now()
            if limits.age_s and limits.age_grace_s and now - self._leaving > limits.age_grace_s:
                self.fail(ErrorCode.NO_ERROR, "max_age")
        self._note_data_sent()
        check = self._keepalive.check(now, self._heard, len(self._streams))
        if check is Check.PING:
            self._channel.write(frames.ping_frame(_KEEPALIVE_PING))
        elif check is Check.CLOSE:
            self.fail(ErrorCode.NO_ERROR, "keepalive_timeout")
        self._streams.sweep()

    def frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Take a frame from the reader. Raises ConnectionFault."""
        match kind:
            case frames.WINDOW_UPDATE:
                increment = frames.read_number(payload, "WINDOW_UPDATE") & frames.LARGEST_WINDOW
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
                self.leave_now()
            case frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
            case frames.PRIORITY:
                self._streams.priority(stream, payload)
            case _:
                self._count_noise("frames of unknown types")

    def _outlived(self, now: float) -> bool:
        idle_s = self._limits.idle_s
        if idle_s and not self._streams and now - self._heard > idle_s:
            return True
        return bool(self._age_s) and now - self._since > self._age_s

    def _settings(self, stream: int, flags: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._noise.spend(self._owner.now, "SETTINGS", 1 + len(payload) // _SETTINGS_PER_NOISE_FRAME_BYTES)
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledged with a payload")
            return
        # Of equal ones the last counts; the others would cost as much.
        for key, value in dict(frames.read_settings(payload)).items():
            if key == frames.INITIAL_WINDOW_SIZE:
                self._streams.initial_window(value)
            elif key == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value <= frames.LARGEST_FRAME_SIZE:
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
            self._keepalive.answered()
            if payload == _LEAVE_PING and self._leaving is not None:
                self.leave_now()
            return
        self._note_data_sent()
        if not self._keepalive.pinged(self._owner.now, len(self._streams)):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._channel.write(frames.ping_frame(payload, frames.ACK))

    def _note_data_sent(self) -> None:
        send_scheduler = self._streams.send_scheduler
        if send_scheduler.used:
            send_scheduler.used = False
            self._keepalive.data_sent()

    def _count_noise(self, what: str) -> None:
        self._noise.spend(self._owner.now, what)

    def _finish(self) -> None:
        self._over = True
        self._channel.close()
