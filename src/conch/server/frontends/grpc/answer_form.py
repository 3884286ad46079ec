"""Framing of a call's answers, with compression if it is configured and the client accepts it."""

from collections.abc import Sequence

from conch.base.errors import ConchError, InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http2.header_blocks import response_block
from conch.server.frontends.grpc.framing import IDENTITY, MAX_MESSAGE_SIZE, PREFIX, compressed
from conch.server.frontends.grpc.status import CODINGS, CONTENT_TYPE, GrpcError, error_block, refusal_reason

# `--grpc-infer-response-compression-level` as levels of zlib.
_LEVELS = {"none": 0, "low": 1, "medium": 6, "high": 9}
_HEAD = response_block(200, [CONTENT_TYPE, CODINGS])


class AnswerForm:
    """Frames and compresses the answers to calls with equal heads."""

    __slots__ = ("_coding", "_level", "_traffic", "head")

    def __init__(self, level: str, accepted: bytes, traffic: Traffic) -> None:
        """Take the compression that is configured, and the best coding that the client accepts."""
        self._traffic = traffic
        self._level = _LEVELS[level]
        self._coding = accepted if self._level else IDENTITY
        # The header block that stands before the first message.
        self.head = _HEAD
        if self._coding != IDENTITY:
            self.head = response_block(200, [CONTENT_TYPE, CODINGS, (b"grpc-encoding", self._coding)])

    def error_block(self, error: ConchError | GrpcError) -> bytes:
        """Return the block that answers a call which failed, and count it if it is refused."""
        self._traffic.count_refusal(refusal_reason(error))
        return error_block(error)

    def message(self, parts: Sequence[Buffer]) -> tuple[list[Buffer], int]:
        """Frame a message that is given in parts. Returns the parts to send and their size. Raises InvalidRequest."""
        size = sum(map(len, parts))
        if size > MAX_MESSAGE_SIZE:
            raise InvalidRequest(
                f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_SIZE}."
            )
        if self._coding == IDENTITY:
            return [PREFIX.pack(0, size), *parts], size + PREFIX.size
        packed = compressed(parts, self._coding, self._level)
        size = sum(map(len, packed))
        return [PREFIX.pack(1, size), *packed], size + PREFIX.size
