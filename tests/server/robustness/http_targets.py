"""What fuzzing asks of the HTTP side, for any bytes: see `fuzz.Target`."""

import gzip
import json
import zlib
from collections.abc import Sequence
from random import Random

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, Timeline
from conch.protocols.compression import decompress
from conch.protocols.http.connection import HttpConnection
from conch.protocols.v2_json.documents import read_index, read_load, read_unload
from conch.protocols.v2_json.inference import OutputOptions, decode_request
from conch.protocols.v2_json.request_cache import JsonRequestCache
from tests.server.robustness import http_input
from tests.server.robustness.fuzz_server import MAX_INPUT_BYTES, Finding, FuzzServer
from tests.server.robustness.mutate import mutated, pieces
from tests.server.robustness.wire import Answer, Wire, read_answers

_PROBE_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[7,8]}]}'
PROBE = b"POST /v2/models/open/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_PROBE_BODY),
    _PROBE_BODY,
)
_REFUSALS = (400, 404, 405, 413, 431, 501, 505)


async def talk(
    place: FuzzServer, parts: Sequence[bytes], take: bool = True, allowed: Sequence[int] = (501, 505)
) -> list[Answer]:
    """Send pieces on a new connection and return the answers, held against what every answer must be.

    `allowed` are the statuses from 500 on that may be: nothing that a client sends is the server's fault.
    """
    before = len(place.handled)
    connection = HttpConnection(place, place.context)
    wire = Wire(connection)
    await wire.feed(parts, take)
    await wire.finish(lambda: connection.sender.busy)
    methods = place.handled[before:]
    del place.handled[before:]
    answers = read_answers(bytes(wire.sent), methods)
    refused = len(answers) == len(methods) + 1 and answers[-1].headers.get(b"connection") == b"close"
    if len(answers) != len(methods) and not refused:
        raise Finding(f"{len(answers)} answers to {len(methods)} requests")
    if refused and answers[-1].status not in _REFUSALS:
        raise Finding(f"refused with {answers[-1].status}: {answers[-1].body[:200]!r}")
    for answer, method in zip(answers, [*methods, b""], strict=False):
        _check_answer(answer, method, allowed)
    return answers


def _check_answer(answer: Answer, method: bytes, allowed: Sequence[int]) -> None:
    if answer.status >= 500 and answer.status not in allowed:
        raise Finding(f"{answer.status}: {answer.body[:300]!r}")
    if answer.status >= 400 and method != b"HEAD" and answer.headers[b"content-type"] == b"application/json":
        error = json.loads(answer.body)["error"]
        if not error or "internal" in error or "Traceback" in error:
            raise Finding(f"{answer.status} says: {error}")


async def check_alive(place: FuzzServer) -> None:
    """Ask something simple on a new connection; raise Finding unless the answer is right."""
    (answer,) = await talk(place, [PROBE])
    if answer.status != 200 or json.loads(answer.body)["outputs"][0]["data"] != [7, 8]:
        raise Finding(f"others are not served any more: {answer}")


class ConnectionTarget:
    """A byte stream on one connection gets the same answers however it is cut."""

    name = "http connection"
    words = http_input.WORDS + http_input.JSON_WORDS[:30]

    def __init__(self, place: FuzzServer) -> None:
        self._place = place

    def example(self, random: Random) -> bytes:
        return http_input.conversation(random)

    async def check(self, data: bytes) -> str:
        random = Random(zlib.crc32(data))
        whole = await talk(self._place, [data])
        parts = pieces(random, data)
        cut = await talk(self._place, parts, random.random() < 0.5)
        if not _agree(whole, cut):
            raise Finding(f"in one piece {whole}, as {[len(part) for part in parts]} {cut}")
        return " ".join(str(answer.status) for answer in whole[:2]) or "nothing"


def _agree(answers: list[Answer], other: list[Answer]) -> bool:
    """Whether answers differ only in what cutting may change: when the client is refused, after which nothing comes.

    Of a head that is too large more is waited for where it comes in pieces; data after a request to switch protocols
    are not a fault once that is answered.
    """
    first, second = _served(answers), _served(other)
    shorter = min(len(first), len(second))
    complete = len(first) == len(answers) and len(second) == len(other)
    return first == second if complete else first[:shorter] == second[:shorter]


def _served(answers: list[Answer]) -> list[tuple[int, bytes]]:
    return [
        (answer.status, b"" if b"model_stats" in answer.body else answer.body)
        for answer in answers
        if answer.headers.get(b"connection") != b"close" or answer.status not in _REFUSALS
    ]


class InferTarget:
    """The body of an inference: two bytes choose model and form, two are the length of its JSON part."""

    name = "http infer body"
    words = http_input.JSON_WORDS
    _models = ("number", "open", "square", "text", "raw_text", "any", "queue", "half", "stream", "nothing")

    def __init__(self, place: FuzzServer) -> None:
        self._place = place
        self._repeated = JsonRequestCache()

    def example(self, random: Random) -> bytes:
        model, body, header_length = http_input.infer_body(random)
        form = random.choice((0, 0, 0, 1, 2, 3)) | (8 if header_length is not None else 0) | random.choice((0, 0, 16))
        choice = bytes((self._models.index(model), form))
        return choice + (header_length or 0).to_bytes(2, "big") + body

    async def check(self, data: bytes) -> str:
        data = data.ljust(4, b"\0")
        model = self._models[data[0] % len(self._models)]
        form, header_length, body = data[1], int.from_bytes(data[2:4], "big"), data[4:]
        length = header_length if form & 8 else None
        self._check_memory(model, body, length)
        request = self._request(model, form, length, body)
        # Twice, because the second time much of it is recognised.
        first, *rest = await talk(self._place, [request, request])
        if rest and rest != [first]:
            raise Finding(f"first {first}, then {rest}")
        return str(first.status)

    def _request(self, model: str, form: int, length: int | None, body: bytes) -> bytes:
        fields = []
        if length is not None:
            fields.append(b"Inference-Header-Content-Length: %d" % length)
        coding = form & 3
        if coding:
            body = (gzip.compress(body, 1, mtime=0), zlib.compress(body, 1), body)[coding - 1]
            fields.append(b"Content-Encoding: " + (b"gzip", b"deflate", b"gzip")[coding - 1])
        if form & 16:
            fields.append(b"Accept-Encoding: gzip")
        head = b"".join(field + b"\r\n" for field in [*fields, b"Content-Length: %d" % len(body)])
        return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n%s\r\n%s" % (model.encode(), head, body)

    def _check_memory(self, model: str, body: bytes, length: int | None) -> None:
        """Hold decoding with a memory against decoding without, for this body and one much like it."""
        if length is not None and not 0 < length <= len(body):
            return
        near = mutated(Random(zlib.crc32(body)), body, self.words, body)
        for text in (body, near, body):
            if length is not None and length > len(text):
                continue
            remembered = _decoded(lambda text=text: self._repeated.decode(model, None, text, length, Timeline()))
            other = _decoded(lambda text=text: decode_request(model, None, text, length))
            if remembered != other:
                raise Finding(f"with a memory {remembered}, without {other}, for {text!r}")


def _decoded(decode: object) -> object:
    try:
        request, options = decode()  # type: ignore[operator]
    except ConchError as error:
        return type(error), error.message
    return _fields(request), _options(options)


def _fields(request: InferRequest) -> dict[str, object]:
    # A compiled class has no __slots__ to be asked.
    names = {name for name in dir(request) if not name.startswith("__")} - {"inputs", "timeline"}
    inputs = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    return {"inputs": inputs, **{name: repr(value) for name in names if not callable(value := getattr(request, name))}}


def _options(options: OutputOptions) -> tuple[object, ...]:
    return options.binary_default, options.binary, options.classes


class RepositoryTarget:
    """Bodies of load, unload and index."""

    name = "http repository body"
    words = (
        *http_input.JSON_WORDS,
        b'"config"',
        b'"file:1/model.py"',
        b'"unload_dependents"',
        b'"ready"',
        b"AAAA",
        b"====",
    )

    def __init__(self, place: FuzzServer) -> None:
        self._place = place

    def example(self, random: Random) -> bytes:
        documents = (
            b'{"parameters":{"config":"{\\"backend\\":\\"identity\\"}","file:1/model.onnx":"AAECAw=="}}',
            b'{"parameters":{"unload_dependents":true}}',
            b'{"ready":true}',
        )
        return random.choice(documents)

    async def check(self, data: bytes) -> str:
        outcomes = []
        for read in (read_index, read_load, read_unload):
            try:
                read(data)
                outcomes.append("right")
            except ConchError:
                outcomes.append("refused")
        head = b"POST /v2/repository/models/nothing/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        for action in (b"load", b"unload"):
            # Loading is switched off here.
            await talk(self._place, [head % (action, len(data)) + data], allowed=(503,))
        return " ".join(outcomes)


class CompressionTarget:
    """Compressed bodies, against the standard library's own reader."""

    name = "content codings"
    words = (b"\x1f\x8b\x08", b"\x78\x01", b"\x00\x00\xff\xff", b"\x03\x00")

    def __init__(self, place: FuzzServer) -> None:
        pass

    def example(self, random: Random) -> bytes:
        plain = random.randbytes(random.choice((0, 10, 300))) + bytes(random.choice((0, 5, 30_000)))
        coding = random.randrange(2)
        return bytes((coding,)) + (gzip.compress(plain, mtime=0) if coding else zlib.compress(plain))

    async def check(self, data: bytes) -> str:
        coding = b"gzip" if data[:1] == b"\x01" else b"deflate"
        try:
            plain = decompress(data[1:], coding, MAX_INPUT_BYTES)
        except ConchError:
            return "refused"
        expected = gzip.decompress(data[1:]) if coding == b"gzip" else zlib.decompress(data[1:])
        if plain != expected or len(plain) > MAX_INPUT_BYTES:
            raise Finding("decompressed to something else")
        return "right"


HTTP_TARGETS = (ConnectionTarget, InferTarget, RepositoryTarget, CompressionTarget)
