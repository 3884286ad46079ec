# Compiled by mypyc in wheels.
"""Cache of decoded requests in JSON, for requests that differ in the values of tensors only.

The key is the text around the values. A hit only slices the body: the binary data into tensors, or JSON with one input
into the array and the text around it.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

import orjson

from conch.domain.request import InferRequest, Timeline
from conch.domain.tensor import BYTES, Buffer, Tensor
from conch.protocols.regions import NO_REGIONS, Regions
from conch.protocols.v2_json.data import pack
from conch.protocols.v2_json.inference import OutputOptions, decode_request

_MAX_ENTRIES: Final = 256
_MAX_TEXT_BYTES: Final = 2048
_DATA: Final = b'"data":'


@dataclass(frozen=True, slots=True)
class _Entry:
    """A request without values. `rest` is the size of the binary data, or the JSON text after the array."""

    request: InferRequest
    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, datatype, shape, size in bytes
    rest: int | bytes
    options: OutputOptions

    def with_tensors(
        self, model_name: str, version: int | None, tensors: list[Tensor], timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        """Return the request with values."""
        request = self.request.with_inputs(tensors, timeline)
        request.model_name = model_name
        request.version = version
        return request, self.options


class JsonRequestCache:
    """Decodes requests as `decode_request` does, with a bounded cache."""

    def __init__(self, regions: Regions = NO_REGIONS) -> None:
        self._regions = regions
        self._entries: dict[bytes, _Entry] = {}

    def decode(
        self, model_name: str, version: int | None, body: Buffer, header_length: int | None, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        """Return the request. Raises as `decode_request`."""
        if header_length is None:
            return self._decode_json(model_name, version, body, timeline)
        return self._decode_binary(model_name, version, body, header_length, timeline)

    def _decode_binary(
        self, model_name: str, version: int | None, body: Buffer, header_length: int, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        header = bytes(body[: min(header_length, _MAX_TEXT_BYTES + 1)])
        entry = self._entries.get(header)
        tail = memoryview(body)[header_length:]
        if entry is not None and entry.rest == len(tail):
            tensors, position = [], 0
            for name, datatype, shape, size in entry.tensors:
                tensors.append(Tensor(name, datatype, shape, tail[position : position + size]))
                position += size
            return entry.with_tensors(model_name, version, tensors, timeline)
        request, options = decode_request(model_name, version, body, header_length, timeline, self._regions)
        if sum(tensor.nbytes for tensor in request.inputs) == len(tail):
            self._add(header, request, len(tail), options)
        return request, options

    def _decode_json(
        self, model_name: str, version: int | None, body: Buffer, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        begin = _begin_of_data(body)
        if begin == 0 or not isinstance(body, bytes):
            return decode_request(model_name, version, body, None, timeline, self._regions)
        before = body[:begin]
        entry = self._entries.get(before)
        if entry is not None and isinstance(entry.rest, bytes) and body.endswith(entry.rest):
            try:
                # The text in between is either the content of one array or not valid JSON.
                values = orjson.loads(body[begin - 1 : len(body) - len(entry.rest) + 1])
            except orjson.JSONDecodeError:
                return decode_request(model_name, version, body, None, timeline, self._regions)
            ((name, datatype, shape, _),) = entry.tensors
            tensor = Tensor(name, datatype, shape, pack(name, datatype, values, prod(shape)))
            return entry.with_tensors(model_name, version, [tensor], timeline)
        request, options = decode_request(model_name, version, body, None, timeline, self._regions)
        after = body[body.find(b"]", begin) :]
        # With several arrays, or escapes in names, the position of the values is ambiguous.
        if (
            len(request.inputs) == 1
            and request.inputs[0].datatype != BYTES
            and body.count(b'data"') == 1
            and b"\\" not in body
            and b"[" not in body[begin : len(body) - len(after)]
        ):
            self._add(before, request, after, options)
        return request, options

    def _add(self, text: bytes, request: InferRequest, rest: int | bytes, options: OutputOptions) -> None:
        if len(text) + (len(rest) if isinstance(rest, bytes) else 0) > _MAX_TEXT_BYTES:
            return
        if options.parts:  # a region may be unregistered or replaced meanwhile
            return
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
        tensors = tuple((tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs)
        self._entries[text] = _Entry(request.with_inputs([]), tensors, rest, options)


def _begin_of_data(body: Buffer) -> int:
    """Return the position of the first value of the first `data` array, 0 if it is not near the start of the body."""
    if not isinstance(body, bytes):
        return 0
    name = body.find(_DATA, 0, _MAX_TEXT_BYTES)
    if name < 0:
        return 0
    bracket = name + len(_DATA)
    if body[bracket : bracket + 1] == b" ":
        bracket += 1
    return bracket + 1 if body[bracket : bracket + 1] == b"[" else 0
