"""What fuzzing asks of the gRPC side, for any bytes: see `fuzz.Target`."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

from google.protobuf.message import DecodeError
from hpack import Decoder
from tritonclient.grpc import service_pb2

from conch.base.errors import ConchError
from conch.protocols.connections.traffic import SweepClock, Traffic
from conch.protocols.http2.connection import Http2Connection
from conch.protocols.http2.limits import Http2Limits, PeerResets
from conch.protocols.v2_proto.inference import read_infer_request
from conch.server.frontends.grpc.dispatch import Dispatcher
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_grpc.service import InferenceService
from conch.server.options.server_options import ServerOptions
from tests.server.robustness import grpc_input as grpc
from tests.server.robustness.fuzz_server import Finding, FuzzServer, InlinePool
from tests.server.robustness.mutate import pieces
from tests.server.robustness.wire import Wire

# UNKNOWN and INTERNAL say that the server is at fault.
_FAULTS = ("2", "13")
# How long nothing is sent when what is left open stays open.
_QUIET_S = 0.01
_PROBE = grpc.OPEN + grpc.frame(grpc.HEADERS, 4, 1, grpc.block("ModelInfer"))


@dataclass
class Outcome:
    """What a client sees of one stream."""

    status: str = ""  # grpc-status, or the HTTP status if there is none
    text: str = ""
    messages: list[bytes] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None  # RST_STREAM with this code
    rest: bytes = b""  # of a message that has not come whole


class GrpcFuzzServer:
    """What a connection knows of its server."""

    def __init__(self, place: FuzzServer) -> None:
        options = ServerOptions(id="fuzzed", grpc_header_forward_pattern="x-forward.*")
        parts = Parts(options, place.server.inference, place.server.control, codecs=InlinePool("fuzz"))
        calls = Dispatcher(parts, InferenceService(parts).methods(), header_limit=4096, traffic=Traffic())
        self.interpret = calls.interpret
        self.accept = lambda opener, stream: opener(stream)
        self.limits = Http2Limits(
            streams=20, stream_window=2**17, connection_window=2**18, frame_bytes=2**16, header_bytes_hard=8192
        )
        self.peer_resets = PeerResets(self.limits)
        self.traffic = Traffic()
        self.clock = SweepClock()
        self.parse_budget = place.parse_budget
        self.read_buffer = memoryview(bytearray(2**16))
        self.connections: set[Http2Connection] = set()

    def opened(self, connection: Http2Connection) -> bool:
        self.connections.add(connection)
        return True

    def closed(self, connection: Http2Connection) -> None:
        self.connections.discard(connection)


async def talk(
    place: GrpcFuzzServer, parts: Sequence[bytes], take: bool = True, to_the_end: bool = False
) -> tuple[dict[int, Outcome], int | None]:
    """Send pieces on a new connection. Returns the outcome of each stream, and the code of a GOAWAY, if any."""
    connection = Http2Connection(place)
    wire = Wire(connection)
    await wire.feed(parts, take)
    quiet_since = [monotonic(), len(wire.sent)]

    def busy() -> bool:
        """Whether an answer is under way: threads and worker processes take time, however often the loop turns."""
        if to_the_end and not wire.gone and b"grpc-status" not in wire.sent:
            return True
        if len(wire.sent) != quiet_since[1]:
            quiet_since[:] = [monotonic(), len(wire.sent)]
        return connection.session.streams > 0 and monotonic() - quiet_since[0] < _QUIET_S

    await wire.finish(busy, turns=40)
    if place.connections:
        raise Finding("the connection was not released")
    return read_frames(bytes(wire.sent))


def read_frames(sent: bytes) -> tuple[dict[int, Outcome], int | None]:
    """Take apart what the server has sent. Raises Finding for what no server may send."""
    streams: dict[int, Outcome] = {}
    goaway: int | None = None
    decoder = Decoder()
    position = 0
    while position < len(sent):
        if len(sent) - position < 9:
            raise Finding("half a frame")
        size, kind = int.from_bytes(sent[position : position + 3], "big"), sent[position + 3]
        flags, stream = sent[position + 4], int.from_bytes(sent[position + 5 : position + 9], "big")
        payload = sent[position + 9 : position + 9 + size]
        if len(payload) < size:
            raise Finding("half a frame's payload")
        position += 9 + size
        if kind == grpc.GOAWAY:
            goaway = struct.unpack_from(">I", payload, 4)[0]
        elif kind in (grpc.HEADERS, grpc.DATA, grpc.RESET):
            outcome = streams.setdefault(stream, Outcome())
            if outcome.reset is not None or (outcome.ended and kind != grpc.RESET):
                raise Finding(f"frame of type {kind} on stream {stream} after its end")
            _note(outcome, kind, flags, payload, decoder)
    return streams, goaway


def _note(outcome: Outcome, kind: int, flags: int, payload: bytes, decoder: Decoder) -> None:
    if kind == grpc.RESET:
        outcome.reset = int.from_bytes(payload, "big")
        return
    if kind == grpc.HEADERS:
        fields = dict(decoder.decode(payload, raw=True))
        status = fields.get(b"grpc-status") or fields.get(b":status")
        outcome.status = status.decode() if status else ""
        outcome.text = fields.get(b"grpc-message", b"").decode()
    else:
        outcome.rest += payload
        while len(outcome.rest) >= 5 and len(outcome.rest) >= 5 + int.from_bytes(outcome.rest[1:5], "big"):
            size = int.from_bytes(outcome.rest[1:5], "big")
            outcome.messages.append(outcome.rest[5 : 5 + size])
            outcome.rest = outcome.rest[5 + size :]
    outcome.ended = bool(flags & grpc.END_STREAM)


def check_outcome(outcome: Outcome) -> None:
    """Raise Finding for an answer that no client's bytes may bring about."""
    if outcome.status in _FAULTS:
        raise Finding(f"status {outcome.status}: {outcome.text}")
    if outcome.ended and (outcome.rest or not outcome.status):
        raise Finding(f"ended badly: {outcome}")
    if outcome.status == "200" and outcome.ended:
        raise Finding("an answer without a status")
    if outcome.reset == 2:
        raise Finding("INTERNAL_ERROR on a stream")


class _GrpcTarget:
    name = ""
    words: tuple[bytes, ...] = grpc.MESSAGE_WORDS

    def __init__(self, place: FuzzServer) -> None:
        self._place = GrpcFuzzServer(place)

    async def _call(self, method: str, content: bytes, random: Random, *more: tuple[str, str]) -> Outcome:
        head = grpc.headers(random, 1, grpc.block(method, *more))
        stream = grpc.OPEN + head + grpc.data(random, 1, content)
        streams, goaway = await talk(self._place, pieces(random, stream), to_the_end=True)
        if goaway is not None or set(streams) != {1}:
            raise Finding(f"a right conversation ended with {goaway}, {streams}")
        outcome = streams[1]
        check_outcome(outcome)
        if not outcome.ended:
            raise Finding(f"not answered: {outcome}")
        return outcome

    async def _check_alive(self) -> None:
        asked = service_pb2.ModelInferRequest(model_name="open", raw_input_contents=[struct.pack("<2i", 7, 8)])
        asked.inputs.add(name="INPUT0", datatype="INT32", shape=[2])
        content = grpc.message(asked.SerializeToString())
        streams, _ = await talk(self._place, [_PROBE + grpc.frame(grpc.DATA, 1, 1, content)])
        answer = service_pb2.ModelInferResponse.FromString(streams[1].messages[0])
        if streams[1].status != "0" or list(answer.raw_output_contents) != list(asked.raw_input_contents):
            raise Finding(f"others are not served any more: {streams}")


class MessageTarget(_GrpcTarget):
    """The message of a ModelInfer call."""

    name = "grpc infer message"

    def example(self, random: Random) -> bytes:
        return grpc.infer_message(random, ("number", "open", "any", "queue", "stream", "text"))

    async def check(self, data: bytes) -> str:
        _check_split(data)
        outcome = await self._call("ModelInfer", grpc.message(data), Random(zlib.crc32(data)))
        if (outcome.status == "0") != (len(outcome.messages) == 1):
            raise Finding(f"{len(outcome.messages)} messages with status {outcome.status}")
        if outcome.messages:
            service_pb2.ModelInferResponse.FromString(outcome.messages[0])
        if data[-1:] == b"\x07":
            await self._check_alive()
        return f"status {outcome.status}"


def _check_split(data: bytes) -> None:
    """A large message is read in another way than a small one: hold one against the other."""
    large = data + b"\x3a\x80\x80\x02" + bytes(32_768)
    try:
        plain: Any = service_pb2.ModelInferRequest.FromString(large)
    except DecodeError:
        plain = None
    try:
        read: Any = read_infer_request(large)
    except ConchError:
        read = None
    if (plain is None) != (read is None):
        raise Finding(f"as a whole {plain}, in parts {read}")
    if read is not None:
        contents = [bytes(part) for part in read.raw_contents]
        if contents != list(plain.raw_input_contents):
            raise Finding(f"{len(contents)} raw contents instead of {len(plain.raw_input_contents)}")
        read.message.ClearField("raw_input_contents")
        plain.ClearField("raw_input_contents")
        if read.message.SerializeToString(deterministic=True) != plain.SerializeToString(deterministic=True):
            raise Finding("another message in parts")


class StreamTarget(_GrpcTarget):
    """The messages of a ModelStreamInfer call, each behind its length; the framing itself is part of the input."""

    name = "grpc stream messages"

    def example(self, random: Random) -> bytes:
        models = ("open", "any", "stream", "number")
        return b"".join(grpc.message(grpc.infer_message(random, models)) for _ in range(random.randint(0, 6)))

    async def check(self, data: bytes) -> str:
        random = Random(zlib.crc32(data))
        more = (("triton_grpc_error", "true"),) if random.random() < 0.2 else ()
        outcome = await self._call("ModelStreamInfer", data, random, *more)
        for message in outcome.messages:
            service_pb2.ModelStreamInferResponse.FromString(message)
        return f"status {outcome.status}, {min(len(outcome.messages), 2)} or more"


class CallTarget(_GrpcTarget):
    """The messages of all other methods: the first byte chooses one."""

    name = "grpc other messages"
    _methods = (
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
        "RepositoryIndex", "RepositoryModelUnload", "RepositoryModelLoad", "TraceSetting", "LogSettings",
        "SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "/grpc.health.v1.Health/Check", "Nothing",
    )  # fmt: skip

    def example(self, random: Random) -> bytes:
        name, content = grpc.other_call(random)
        return bytes((self._methods.index(name),)) + content

    async def check(self, data: bytes) -> str:
        method = self._methods[(data[:1] or b"\0")[0] % len(self._methods)]
        outcome = await self._call(method, grpc.message(data[1:]), Random(zlib.crc32(data)))
        return f"status {outcome.status}"


class FrameTarget(_GrpcTarget):
    """Everything that a client sends on one connection."""

    name = "http/2 frames"
    words = grpc.FRAME_WORDS

    def example(self, random: Random) -> bytes:
        return grpc.conversation(random)

    async def check(self, data: bytes) -> str:
        random = Random(zlib.crc32(data))
        whole, goaway = await talk(self._place, [data])
        cut, other_goaway = await talk(self._place, pieces(random, data), random.random() < 0.5)
        if goaway == 2 or (goaway is None) != (other_goaway is None):
            raise Finding(f"GOAWAY with {goaway} in one piece, with {other_goaway} in pieces")
        for outcome in (*whole.values(), *cut.values()):
            check_outcome(outcome)
        if goaway is None and _comparable(whole) != _comparable(cut):
            raise Finding(f"in one piece {whole}, in pieces {cut}")
        if random.random() < 0.02:
            await self._check_alive()
        return "nothing" if goaway is None and not whole else f"goaway {goaway}" if goaway is not None else "answers"


def _comparable(streams: dict[int, Outcome]) -> object:
    """Reduce answers to what cutting must not change: a fault may come for what is seen first."""
    return {
        number: (stream.status, stream.reset or 0, stream.ended, len(stream.messages))
        for number, stream in streams.items()
    }


GRPC_TARGETS = (MessageTarget, StreamTarget, CallTarget, FrameTarget)
