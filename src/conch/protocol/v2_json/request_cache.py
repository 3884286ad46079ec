"""Requests repeat themselves: but for the tensors' values, the body of one is, as a rule, that of one before it.

What a body was found to say is remembered by the text around the values. The next one with the same text is only cut
in pieces: behind a binary header into tensors, in JSON into the text around `data` and the array in it.
"""

from dataclasses import dataclass
from math import prod

import orjson

from conch.protocol.regions import NO_REGIONS, Regions
from conch.protocol.v2_json.data import pack
from conch.protocol.v2_json.inference import OutputOptions, decode_request
from conch.request import InferRequest, Timeline
from conch.tensor import BYTES, Buffer, Tensor

_MAX_FORMS = 256
_MAX_TEXT = 2048
_DATA = b'"data":'


@dataclass(frozen=True, slots=True)
class _Form:
    """A request but for its values. `rest` is the size of binary data, or the JSON text behind the array."""

    request: InferRequest
    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, datatype, shape, size in bytes
    rest: int | bytes
    options: OutputOptions

    def again(
        self, model_name: str, version: int | None, tensors: list[Tensor], timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        """Return a request of this form."""
        request = self.request.with_inputs(tensors, timeline)
        request.model_name = model_name
        request.version = version
        return request, self.options


class JsonRequestCache:
    """Decodes requests as `decode_request` does; bounded in what it remembers."""

    def __init__(self, regions: Regions = NO_REGIONS) -> None:
        self._regions = regions
        self._forms: dict[bytes, _Form] = {}

    def decode(
        self, model_name: str, version: int | None, body: Buffer, header_length: int | None, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        """Return the request. Raises what `decode_request` raises."""
        if header_length is None:
            return self._decode_json(model_name, version, body, timeline)
        return self._decode_binary(model_name, version, body, header_length, timeline)

    def _decode_binary(
        self, model_name: str, version: int | None, body: Buffer, header_length: int, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        header = bytes(body[: min(header_length, _MAX_TEXT + 1)])
        form = self._forms.get(header)
        tail = memoryview(body)[header_length:]
        if form is not None and form.rest == len(tail):
            tensors, position = [], 0
            for name, datatype, shape, size in form.tensors:
                tensors.append(Tensor(name, datatype, shape, tail[position : position + size]))
                position += size
            return form.again(model_name, version, tensors, timeline)
        request, options = decode_request(model_name, version, body, header_length, timeline, self._regions)
        if sum(tensor.nbytes for tensor in request.inputs) == len(tail):
            self._remember(header, request, len(tail), options)
        return request, options

    def _decode_json(
        self, model_name: str, version: int | None, body: Buffer, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        begin = _begin_of_data(body)
        if begin == 0 or not isinstance(body, bytes):
            return decode_request(model_name, version, body, None, timeline, self._regions)
        before = body[:begin]
        form = self._forms.get(before)
        if form is not None and isinstance(form.rest, bytes) and body.endswith(form.rest):
            try:
                # What stands between is the content of one array or no JSON at all.
                values = orjson.loads(body[begin - 1 : len(body) - len(form.rest) + 1])
            except orjson.JSONDecodeError:
                return decode_request(model_name, version, body, None, timeline, self._regions)
            ((name, datatype, shape, _),) = form.tensors
            tensor = Tensor(name, datatype, shape, pack(name, datatype, values, prod(shape)))
            return form.again(model_name, version, [tensor], timeline)
        request, options = decode_request(model_name, version, body, None, timeline, self._regions)
        behind = body[body.find(b"]", begin) :]
        # With several arrays, or names written with escapes, the text does not show which value belongs where.
        if (
            len(request.inputs) == 1
            and request.inputs[0].datatype != BYTES
            and body.count(b'data"') == 1
            and b"\\" not in body
            and b"[" not in body[begin : len(body) - len(behind)]
        ):
            self._remember(before, request, behind, options)
        return request, options

    def _remember(self, text: bytes, request: InferRequest, rest: int | bytes, options: OutputOptions) -> None:
        if len(text) + (len(rest) if isinstance(rest, bytes) else 0) > _MAX_TEXT:
            return
        if options.parts:  # a region may have gone by the next time, or be another
            return
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        form = request.with_inputs([])
        tensors = tuple((tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs)
        self._forms[text] = _Form(form, tensors, rest, options)


def _begin_of_data(body: Buffer) -> int:
    """Return where the content of the first `data` array begins, 0 if that is not near the beginning of a text."""
    if not isinstance(body, bytes):
        return 0
    name = body.find(_DATA, 0, _MAX_TEXT)
    if name < 0:
        return 0
    bracket = name + len(_DATA)
    if body[bracket : bracket + 1] == b" ":
        bracket += 1
    return bracket + 1 if body[bracket : bracket + 1] == b"[" else 0
