"""Binary requests repeat themselves: but for the tensors' bytes, the JSON of one is, as a rule, that of one before it.

What a header was found to say is remembered, and the next body behind the same header is only cut in pieces.
"""

from dataclasses import dataclass

from conch.protocol.v2_json import OutputOptions, decode_request
from conch.request import InferRequest, Timeline
from conch.tensor import Buffer, Tensor

_MAX_HEADERS = 256
_MAX_HEADER_SIZE = 2048


@dataclass(frozen=True, slots=True)
class _Form:
    """A request but for the bytes of its tensors."""

    request: InferRequest
    cuts: tuple[tuple[str, str, tuple[int, ...], int, int], ...]  # name, datatype, shape, begin and end in the tail
    tail_size: int
    options: OutputOptions


class RepeatedHeaders:
    """Decodes requests with binary data; bounded in what it remembers."""

    def __init__(self) -> None:
        self._forms: dict[bytes, _Form] = {}

    def decode(
        self, model_name: str, version: int | None, body: Buffer, header_length: int, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        """Do what `decode_request` does, and raise what it raises."""
        if header_length > _MAX_HEADER_SIZE:
            return decode_request(model_name, version, body, header_length, timeline)
        header = bytes(body[:header_length])
        form = self._forms.get(header)
        tail = memoryview(body)[header_length:]
        if form is None or len(tail) != form.tail_size:
            request, options = decode_request(model_name, version, body, header_length, timeline)
            self._remember(header, request, options, len(tail))
            return request, options
        known = form.request
        return InferRequest(
            model_name,
            [Tensor(name, datatype, shape, tail[begin:end]) for name, datatype, shape, begin, end in form.cuts],
            version=version,
            id=known.id,
            outputs=known.outputs,
            parameters=dict(known.parameters),
            correlation_id=known.correlation_id,
            flags=known.flags,
            priority=known.priority,
            timeout_us=known.timeout_us,
            timeline=timeline,
        ), form.options

    def _remember(self, header: bytes, request: InferRequest, options: OutputOptions, tail_size: int) -> None:
        sizes = [tensor.nbytes for tensor in request.inputs]
        if sum(sizes) != tail_size:
            return  # the data of some input are in the JSON
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        cuts = tuple(
            (tensor.name, tensor.datatype, tensor.shape, end - size, end)
            for tensor, size, end in zip(request.inputs, sizes, ends, strict=True)
        )
        if len(self._forms) >= _MAX_HEADERS:
            self._forms.clear()
        form = InferRequest(
            "",
            [],
            id=request.id,
            outputs=request.outputs,
            parameters=dict(request.parameters),
            correlation_id=request.correlation_id,
            flags=request.flags,
            priority=request.priority,
            timeout_us=request.timeout_us,
        )
        self._forms[header] = _Form(form, cuts, tail_size, options)
