"""Heads and trailers of gRPC responses, decoded once for equal header blocks."""

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from conch.measure.bench.load.grpc.http2_stream import GrpcHead
from conch.protocols.http2.header_blocks import Field, HeaderBlocks

MAX_HEADER_BYTES = 2**20
_MAX_MESSAGE_BYTES = 4096
_DIGITS = re.compile(rb"[0-9]{1,3}\Z")
_NO_NUMBER = 2  # of grpc-status: UNKNOWN, as other clients take what is not a number


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
