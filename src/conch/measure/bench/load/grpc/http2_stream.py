"""One HTTP/2 stream of the load generator: a unary call, or one of ModelStreamInfer with several requests."""

from conch.measure.bench.load.connection import LoadRequest


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
