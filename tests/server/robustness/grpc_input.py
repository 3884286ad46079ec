"""Right gRPC input of every kind that the server takes, and its framing in HTTP/2, uncompressed."""

import gzip
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from tritonclient.grpc import service_pb2

from tests.server.robustness.http_input import value

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/inference.GRPCInferenceService/"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
_FRAME_SIZE = 16_000
_DIFFERENT = 20  # values of a tensor; then they repeat themselves
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8

# What means something in a message: tags, lengths, names.
MESSAGE_WORDS = (
    b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32", b"\x3a", b"\x42", b"\x0b", b"\x0c", b"\x0f", b"\x08",
    b"\x0d", b"\x09", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x10",
    b"\x80\x00", b"\x00", b"\xf8\xff\xff\xff\x0f", b"\x0a\x06number", b"\x0a\x04open", b"\x0a\x06stream", b"FP32",
    b"INT32", b"BYTES", b"BF16", b"INPUT0", b"OUTPUT0", b"classification", b"sequence_id", b"priority", b"timeout",
    b"triton_enable_empty_final_response", b"shared_memory_region", b"triton_x", b"\xff\xff", b"\xed\xa0\x80",
)  # fmt: skip
FRAME_WORDS = (
    PREFACE, *(bytes((0, 0, 0, kind, 0, 0, 0, 0, 0)) for kind in range(12)),
    *(bytes((0, 0, 4, kind, 0, 0, 0, 0, 1, 0, 0, 0, 8)) for kind in (RESET, WINDOW)),
    b"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
    b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff",
    b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\xff\xff\xff",
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff", b"\xff\xff\xff", b"\x00\x00\x00\x01",
    b"\x80\x00\x00\x03", b"\x3f\xe1\x1f", b"\x20", b"\x7f\xff\xff\xff\x0f", b"\xbe", b"\x82", b"\x40",
    b"grpc-timeout", b"grpc-encoding", b":path",
)  # fmt: skip
_FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def infer_message(random: Random, models: Sequence[str] = ()) -> bytes:
    """Return a right ModelInferRequest, its tensors all raw or all typed."""
    message = service_pb2.ModelInferRequest(model_name=random.choice(models) if models else "any")
    if message.model_name in ("number", "queue"):
        message.inputs.add(name="INPUT0", datatype="FP32", shape=[random.choice((1, 2)), 4])
    elif message.model_name in ("open", "stream"):
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[random.choice((0, 1, 5, 5000))])
    else:
        for datatype in random.sample(sorted(_FIELDS), random.randint(1, 4)):
            name = "IN_STRING" if datatype == "BYTES" else f"IN_{datatype}"
            message.inputs.add(name=name, datatype=datatype, shape=[random.randint(0, 4)])
    raw = random.random() < 0.6
    for entry in message.inputs:
        count = 1
        for dim in entry.shape:
            count *= dim
        _fill(random, message, entry, count, raw)
    if random.random() < 0.3:
        message.id = random.choice(("a", "häuser", "x" * 200))
    if random.random() < 0.3:
        _add_parameters(random, message.parameters)
    if random.random() < 0.2 and message.model_name != "any":
        output = message.outputs.add(name="OUTPUT0")
        if random.random() < 0.5:
            output.parameters["classification"].int64_param = random.choice((1, 3, 2**62))
    return bytes(message.SerializeToString())


def _fill(random: Random, message: Any, entry: Any, count: int, raw: bool) -> None:
    values = [value(random, entry.datatype) for _ in range(min(count, _DIFFERENT))]
    values = (values * (count // _DIFFERENT + 1))[:count]
    if entry.datatype == "BYTES":
        encoded = [text.encode() for text in values]
        if raw:
            message.raw_input_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in encoded))
        else:
            entry.contents.bytes_contents.extend(encoded or [])
            entry.contents.SetInParent()
    elif raw:
        sizes = {"BOOL": 1, "FP32": 4, "FP64": 8}
        size = sizes.get(entry.datatype) or int(entry.datatype.lstrip("UINT")) // 8
        message.raw_input_contents.append(random.choice((bytes(size * count), b"\x01" * (size * count))))
    else:
        limited = [min(number, 3e38) for number in values] if entry.datatype == "FP32" else values
        getattr(entry.contents, _FIELDS[entry.datatype]).extend(limited)
        entry.contents.SetInParent()


def _add_parameters(random: Random, parameters: Any) -> None:
    kind = random.randrange(5)
    if kind == 0:
        parameters["sequence_id"].int64_param = 5
        parameters["sequence_start"].bool_param = True
    elif kind == 1:
        parameters["priority"].uint64_param = random.choice((0, 2, 2**64 - 1))
    elif kind == 2:
        parameters["timeout"].int64_param = random.choice((0, 2**63 - 1))
    elif kind == 3:
        parameters["triton_enable_empty_final_response"].bool_param = True
    else:
        parameters["mine"].double_param = 1.5


def other_call(random: Random) -> tuple[str, bytes]:
    """Return another method and a right message for it."""
    name, message = random.choice(
        (
            ("ServerLive", service_pb2.ServerLiveRequest()),
            ("ModelReady", service_pb2.ModelReadyRequest(name="open", version="1")),
            ("ModelMetadata", service_pb2.ModelMetadataRequest(name="any")),
            ("ModelConfig", service_pb2.ModelConfigRequest(name="queue")),
            ("ModelStatistics", service_pb2.ModelStatisticsRequest(name="text", version="1")),
            ("RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True)),
            ("TraceSetting", service_pb2.TraceSettingRequest()),
        )
    )
    return name, bytes(message.SerializeToString())


# Framing.


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Write a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, number) for key, number in pairs))


# The beginning of a client that takes whatever is sent.
OPEN = PREFACE + settings((4, 2**30)) + frame(WINDOW, 0, 0, struct.pack(">I", 2**30))


def block(method: str, *more: tuple[str, str]) -> bytes:
    """Write the header block of a call, its fields literal and not indexed."""
    path = method if method.startswith("/") else SERVICE + method
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
    return b"".join(b"\0" + _text(name) + _text(text) for name, text in [*fields, *_CONTENT_TYPE, *more])


_CONTENT_TYPE = (("content-type", "application/grpc"),)


def _text(text: str) -> bytes:
    octets = text.encode("latin-1")
    assert len(octets) < 127
    return bytes((len(octets),)) + octets


def message(content: bytes, compressed: bool = False) -> bytes:
    """Frame a message as gRPC does."""
    if compressed:
        content = gzip.compress(content, 1, mtime=0)
    return bytes((compressed,)) + struct.pack(">I", len(content)) + content


def data(random: Random, stream: int, content: bytes, end: bool = True) -> bytes:
    """Write DATA frames, sometimes several and padded."""
    flag = END_STREAM if end else 0
    if len(content) > _FRAME_SIZE:
        return frame(DATA, 0, stream, content[:_FRAME_SIZE]) + data(random, stream, content[_FRAME_SIZE:], end)
    kind = random.randrange(5)
    if kind == 0:
        at = random.randint(0, len(content))
        return frame(DATA, 0, stream, content[:at]) + frame(DATA, flag, stream, content[at:])
    if kind == 1:
        return frame(DATA, flag | PADDED, stream, b"\x05" + content + bytes(5))
    if kind == 2:
        return frame(DATA, 0, stream, content) + frame(DATA, flag, stream)
    return frame(DATA, flag, stream, content)


def headers(random: Random, stream: int, content: bytes, end: bool = False) -> bytes:
    """Write a header block, sometimes in several frames."""
    flag = END_STREAM if end else 0
    if random.random() < 0.2:
        at = random.randint(0, len(content))
        return frame(HEADERS, flag, stream, content[:at]) + frame(CONTINUATION, END_HEADERS, stream, content[at:])
    return frame(HEADERS, flag | END_HEADERS, stream, content)


def conversation(random: Random) -> bytes:
    """Return what a client may send on one connection: several calls, side by side."""
    calls = [_call(random, 2 * index + 1) for index in range(random.choice((1, 1, 2, 3, 5)))]
    parts = [part for call in calls for part in call]
    if random.random() < 0.3:
        # Any order is right that keeps that of each stream.
        order = [index for index, call in enumerate(calls) for _ in call]
        random.shuffle(order)
        seen = sorted(range(len(calls)), key=lambda index: order.index(index))
        rank = {index: place for place, index in enumerate(seen)}
        renumbered = [iter(_call(random, 2 * place + 1)) for place in range(len(calls))]
        parts = [part for index in order if (part := next(renumbered[rank[index]], b""))]
        parts += [part for rest in renumbered for part in rest]
    between = [b"", b"", b"", frame(PING, ACK, 0, b"12345678"), frame(WINDOW, 0, 0, b"\0\0\1\0"), settings((3, 100))]
    start = PREFACE + settings(*random.choice(((), ((4, 2**20),), ((1, 0), (5, 2**15)))))
    return start + b"".join(part + random.choice(between) for part in parts)


def _call(random: Random, stream: int) -> list[bytes]:
    kind = random.random()
    if kind < 0.15:
        name, content = other_call(random)
        return [headers(random, stream, block(name)), data(random, stream, message(content))]
    if kind < 0.65:
        content = infer_message(random, ("number", "open", "any", "queue"))
        packed = random.random() < 0.1
        more = (("grpc-encoding", "gzip"),) if packed else ()
        more += random.choice(((), (), (("grpc-timeout", "10S"),), (("grpc-accept-encoding", "gzip"),)))
        return [headers(random, stream, block("ModelInfer", *more)), data(random, stream, message(content, packed))]
    count = random.choice((0, 1, 3))
    contents = [message(infer_message(random, ("stream", "open", "any"))) for _ in range(count)]
    reset = random.random() < 0.3
    ends = frame(RESET, 0, stream, b"\0\0\0\x08") if reset else frame(DATA, END_STREAM, stream)
    return [
        headers(random, stream, block("ModelStreamInfer")),
        *(data(random, stream, content, end=False) for content in contents),
        ends,
    ]
