# Compiled by mypyc in wheels.
"""One HTTP/2 stream of the load generator, unary or ModelStreamInfer, and the heads and trailers of responses."""

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from conch.measure.bench.load.connection import LoadRequest
from conch.protocols.http2.header_blocks import Field, HeaderBlocks

MAX_HEADER_BYTES = 2**20
_MAX_MESSAGE_BYTES = 4096
_DIGITS = re.compile(rb"[0-9]{1,3}\Z")
_NO_NUMBER = 2  # of grpc-status: UNKNOWN, as other clients take what is not a number


class GrpcHead:
    """A header block of a response: its head, its trailers, or both in one."""

    __slots__ = ("content_type", "grpc_status", "http_status", "message")

    def __init__(self) -> None:
        self.http_status = -1  # -1: there is none, as in trailers; 0: not a number
        self.grpc_status = -1  # -1: there is none
        self.message = ""
        self.content_type = ""


class ClientStream:
    """One call. `number` is its stream identifier."""

    __slots__ = (
        "bidirectional",
        "data",
        "ended",
        "ends",
        "failed",
        "head",
        "message",
        "message_left",
        "messages",
        "number",
        "pending",
        "prefix",
        "received_bytes",
        "request",
        "sent",
        "unreturned",
        "user",
        "window",
        "wrong",
    )

    def __init__(self, number: int, request: LoadRequest, window: int, bidirectional: bool) -> None:
        self.number = number
        self.request: LoadRequest | None = request  # of a unary call
        self.bidirectional = bidirectional
        self.user = request.user
        # What is sent.
        self.window = window
        self.data = b""  # waits for windows
        self.sent = 0  # how much of `data` has been sent
        self.ends = False  # whether the client's side ends with `data`
        self.ended = False  # whether the client's side has ended
        # What is received.
        self.unreturned = 0  # bytes that were received and not given back to the window
        self.received_bytes = 0
        self.head: GrpcHead | None = None
        self.prefix = b""  # an incomplete prefix of a message
        self.message_left = 0  # bytes of the present message that are to come
        self.message: list[bytes] = []  # its pieces, if it is kept
        self.messages = 0
        # Of a bidirectional call: the requests without their last response, by their identifiers.
        self.pending: dict[bytes, LoadRequest] = {}
        self.failed: dict[bytes, str] = {}  # error messages of requests that have not ended
        self.wrong: dict[bytes, str] = {}  # what is wrong with responses of theirs


class ResponseBlocks(HeaderBlocks[GrpcHead]):
    """Decodes the header blocks of one server. Fields that do not matter may be malformed."""

    def __init__(self) -> None:
        super().__init__(MAX_HEADER_BYTES)

    def interpret(self, fields: Iterable[Field]) -> GrpcHead:
        head = GrpcHead()
        for name, value in fields:
            if name == b":status":
                head.http_status = int(value) if _DIGITS.match(value) else 0
            elif name == b"grpc-status":
                head.grpc_status = int(value) if _DIGITS.match(value) else _NO_NUMBER
            elif name == b"grpc-message":
                text = unquote_to_bytes(bytes(value[:_MAX_MESSAGE_BYTES])).decode("utf-8", "replace")
                head.message = " ".join(text.split())
            elif name == b"content-type":
                head.content_type = value.decode("latin-1")
        return head
