"""Right HTTP input of every kind that the server takes: the ground that mutations start from."""

import gzip
import json
import struct
import zlib
from random import Random
from typing import Any

from tests.server.robustness.fuzz_server import DATATYPES

WORDS = (
    b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"PRI", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0",
    b"HTTP/0.9", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"transfer-encoding: identity\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n",
    b"Accept-Encoding: gzip;q=0.5, deflate\r\n", b"Inference-Header-Content-Length: ", b"Host: x\r\n",
    b"X-Forward-A: b\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n",
    b"Content-Length: 18446744073709551616\r\n", b"/v2/models/", b"/versions/1", b"/infer", b"..", b"%2e%2e",
    b"%2f", b"/v2/health/ready", b"/v2/models/stats", b"?a=b", b"#", b"http://h/v2", b"*", b"\xc3\xa9", b"\xff",
)  # fmt: skip

JSON_WORDS = (
    b"null", b"true", b"false", b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-0", b"1e-400",
    b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809", b'""', b"[]", b"{}", b"[[", b"]]",
    b"}", b"{", b'"\\ud800"', b'"\\u0000"', b'"\\udc80"', b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbf", b'"inputs"',
    b'"outputs"', b'"name"', b'"shape"', b'"datatype"', b'"data"', b'"parameters"', b'"binary_data_size"',
    b'"binary_data"', b'"binary_data_output"', b'"classification"', b'"id"', b'"sequence_id"', b'"sequence_start"',
    b'"priority"', b'"timeout"', b'"shared_memory_region"', b'"triton_x"', b'"BYTES"', b'"FP32"', b'"FP16"',
    b'"INT32"', b'"BOOL"', b'"INPUT0"', b'"OUTPUT0"', b"[1,2,3,4]", b"[-1]", b"[1,1,1,1,1,1,1,1]", b"[" * 200,
    b"[" * 2000, b"1" * 400, b'"a":{' * 300, b"/*", b"//", b"'", b"\\", b"\\u", b"\x00",
)  # fmt: skip

# Model, its inputs' names, datatype, and the shapes that fit.
_MODELS = {
    "number": ("FP32", [[1, 4], [2, 4], [8, 4]]),
    "queue": ("FP32", [[1, 4], [4, 4]]),
    "open": ("INT32", [[0], [1], [5], [700]]),
    "square": ("INT16", [[1, 2, 3], [4, 1, 1], [2, 0, 5]]),
    "text": ("BYTES", [[1, 1], [3, 2], [1, 0]]),
    "raw_text": ("BYTES", [[1]]),
}
_CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip
_STRINGS = ("", "a", "häuser", "x" * 300, "\u0000", "\U0001f600", 'quote"', "back\\slash", "line\nbreak")
_GETS = (
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/number", "/v2/models/any/config",
    "/v2/models/text/versions/1/ready", "/v2/models/queue/stats", "/v2/models/nothing",
    "/v2/models/number/versions/7", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/nowhere",
)  # fmt: skip


def value(random: Random, datatype: str) -> Any:
    """Return one element as JSON has it."""
    if datatype == "BYTES":
        return random.choice(_STRINGS)
    if datatype == "BOOL":
        return random.random() < 0.5
    if datatype.startswith("FP"):
        return random.choice((0, 1, -1.5, 3.4e38, 1e-45, 0.1, 2**53, 1e39))
    bits = int(datatype.lstrip("UINT"))
    low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return random.choice((0, 1, low, high, random.randint(low, high)))


def _count(shape: list[int]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def _packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        raw = [element.encode() for element in values]
        return b"".join(struct.pack("<I", len(element)) + element for element in raw)
    limited = [min(element, 3e38) for element in values] if datatype == "FP32" else values
    return struct.pack(f"<{len(values)}{_CODES[datatype]}", *limited)


def _nested(values: list[Any], shape: list[int]) -> list[Any]:
    if len(shape) < 2 or 0 in shape:
        return values
    step = len(values) // shape[0]
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def infer_body(random: Random) -> tuple[str, bytes, int | None]:
    """Return a model, a right body for it, and the size of its JSON part if binary data follow."""
    if random.random() < 0.15:
        model = "any"
        chosen = random.sample(DATATYPES, random.randint(1, 4))
        inputs = [(f"IN_{name}", "BYTES" if name == "STRING" else name, [random.randint(0, 5)]) for name in chosen]
    else:
        model = random.choice(list(_MODELS))
        datatype, shapes = _MODELS[model]
        inputs = [("INPUT0", datatype, random.choice(shapes))]
    entries: list[dict[str, Any]] = []
    tail = b""
    for name, datatype, shape in inputs:
        values = [value(random, datatype) for _ in range(_count(shape))]
        entry: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        if random.random() < 0.35:
            packed = _packed(datatype, values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            tail += packed
        else:
            entry["data"] = _nested(values, shape) if random.random() < 0.3 else values
        entries.append(entry)
    document: dict[str, Any] = {"inputs": entries}
    if random.random() < 0.3:
        document["id"] = random.choice(_STRINGS)
    if random.random() < 0.3:
        document["parameters"] = _parameters(random)
    if random.random() < 0.4 and model != "any":
        document["outputs"] = [{"name": "OUTPUT0", **_output_options(random, inputs[0][1])}]
    text = json.dumps(
        document, ensure_ascii=random.random() < 0.5, separators=random.choice(((",", ":"), (", ", ": ")))
    )
    head = text.encode()
    return model, head + tail, len(head) if tail or random.random() < 0.1 else None


def _parameters(random: Random) -> dict[str, Any]:
    known: dict[str, Any] = {
        "sequence_id": random.choice((1, "s", 2**64 - 1)),
        "sequence_start": True,
        "sequence_end": False,
        "priority": random.choice((0, 1, 3, 2**64 - 1)),
        "timeout": random.choice((0, 10_000_000, 2**64 - 1)),
        "binary_data_output": random.random() < 0.5,
        "mine": random.choice((1, -(2**63), 1.5, True, "text")),
    }
    return {key: known[key] for key in random.sample(list(known), random.randint(0, 4))}


def _output_options(random: Random, datatype: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if random.random() < 0.5:
        options["binary_data"] = random.random() < 0.5
    if random.random() < 0.3 and datatype != "BYTES":
        options["classification"] = random.choice((0, 1, 3, 2**31 - 1))
    return {"parameters": options} if options else {}


def infer_request(random: Random) -> bytes:
    """Return a whole request for an inference."""
    model, body, header_length = infer_body(random)
    fields = [b"Host: x"]
    if header_length is not None:
        fields.append(b"Inference-Header-Content-Length: %d" % header_length)
    coding = random.choice((None, None, None, None, b"gzip", b"deflate"))
    if coding is not None:
        body = gzip.compress(body, 1, mtime=0) if coding == b"gzip" else zlib.compress(body, 1)
        fields.append(b"Content-Encoding: " + coding)
    if random.random() < 0.1:
        fields.append(b"Accept-Encoding: " + random.choice((b"gzip", b"deflate, gzip;q=0.1", b"*", b"br, gzip;q=2")))
    if random.random() < 0.05:
        fields.append(b"Expect: 100-continue")
    if random.random() < 0.1:
        fields.append(b"X-Forward-Me: value")
    version = random.choice(("", "", "/versions/1"))
    return framed(random, f"POST /v2/models/{model}{version}/infer HTTP/1.1".encode(), fields, body)


def framed(random: Random, line: bytes, fields: list[bytes], body: bytes) -> bytes:
    """Put a request together, its body with a length or in chunks."""
    fields = list(fields)
    if random.random() < 0.2:
        fields.append(b"Transfer-Encoding: chunked")
        size = random.choice((1, 7, 100, 5000)) if len(body) < 500 else 1000
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        extension = random.choice((b"", b"", b";a=b"))
        body = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n"
        body += random.choice((b"", b"", b"Trailer: x\r\n")) + b"\r\n"
    else:
        fields.append(b"Content-Length: %d" % len(body))
    random.shuffle(fields)
    return line + b"\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def other_request(random: Random) -> bytes:
    """Return a question about models or the server."""
    if random.random() < 0.85:
        return b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % random.choice(_GETS).encode()
    body = random.choice((b"", b"{}", b'{"ready":true}'))
    return framed(random, b"POST /v2/repository/index HTTP/1.1", [b"Host: x"], body)


def conversation(random: Random) -> bytes:
    """Return what a client may send on one connection: some requests, one behind the other."""
    requests = [
        infer_request(random) if random.random() < 0.7 else other_request(random)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6)))
    ]
    if random.random() < 0.2:
        requests += [requests[-1]] * random.randint(1, 3)
    return b"".join(requests)
