# Compiled by mypyc in wheels.
"""Caches of decoded requests and encoded responses over gRPC, for those that differ in the values of tensors only.

The key of a request is the bytes around values of the same sizes; a hit only slices the message. The key
of a response is everything but its id and values; the cache has the bytes around them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from conch.domain.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.domain.tensor import Buffer, Tensor
from conch.protocols.regions import NO_REGIONS, Regions
from conch.protocols.v2_proto.inference import (
    InferMessage,
    ResponseOptions,
    encode_infer_response,
    read_infer_request,
    split_fields,
    streamed,
    text_field,
)

_MAX_SIZES: Final = 256
_MAX_ENTRIES_PER_SIZE: Final = 4
_MAX_RESPONSES: Final = 256
_MAX_TEXT_BYTES: Final = 2048
# Below this size a copy is faster than a view.
_MIN_VIEW_BYTES: Final = 4096
_MODEL_RESPONSE_ID: Final = 3


class RequestMessage(Protocol):
    """A parsed ModelInferRequest, whose tensors `decode` checks."""

    @property
    def model_name(self) -> str:
        """The requested model."""

    @property
    def id(self) -> str:
        """The request's id."""

    def version(self) -> int | None:
        """Return the requested version, None for the latest. Raises InvalidRequest if it is not a number."""

    def decode(self, timeline: Timeline, regions: Regions = NO_REGIONS) -> tuple[InferRequest, ResponseOptions]:
        """Return the request. Raises ConchError, naming the parameter or tensor."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A decoded request without values, and the bytes around them."""

    before: bytes
    between: tuple[tuple[int, bytes], ...]  # position in the message, bytes
    tensors: tuple[
        tuple[str, str, tuple[int, ...], int, int], ...
    ]  # name, datatype, shape, begin and end in the message
    request: InferRequest
    options: ResponseOptions

    def matches(self, data: bytes) -> bool:
        """Whether a message of this entry's size differs in the values only."""
        if not data.startswith(self.before):
            return False
        return not self.between or all(data.startswith(text, position) for position, text in self.between)


class _Hit(NamedTuple):
    """A message that matches an entry."""

    entry: _Entry
    data: bytes

    @property
    def model_name(self) -> str:
        return self.entry.request.model_name

    @property
    def id(self) -> str:
        return self.entry.request.id

    def version(self) -> int | None:
        return self.entry.request.version

    def decode(
        self,
        timeline: Timeline,
        regions: Regions = NO_REGIONS,  # noqa: ARG002 - entries have no regions
    ) -> tuple[InferRequest, ResponseOptions]:
        entry, data = self.entry, self.data
        source: Buffer = data if len(data) < _MIN_VIEW_BYTES else memoryview(data)
        tensors = [
            Tensor(name, datatype, shape, source[begin:end]) for name, datatype, shape, begin, end in entry.tensors
        ]
        return entry.request.with_inputs(tensors, timeline), entry.options


class _Miss(NamedTuple):
    """A message that is added to the cache after it is decoded without an error."""

    message: InferMessage
    data: bytes
    cache: "ProtoRequestCache"

    @property
    def model_name(self) -> str:
        return self.message.model_name

    @property
    def id(self) -> str:
        return self.message.id

    def version(self) -> int | None:
        return self.message.version()

    def decode(self, timeline: Timeline, regions: Regions = NO_REGIONS) -> tuple[InferRequest, ResponseOptions]:
        request, options = self.message.decode(timeline, regions)
        # A region may be unregistered or replaced meanwhile.
        if not (options.parts or self.message.inputs_have_parameters):
            self.cache.add(self.data, request, options)
        return request, options


class ProtoRequestCache:
    """Parses requests as `read_infer_request` does, with a bounded cache."""

    def __init__(self) -> None:
        self._entries: dict[int, list[_Entry]] = {}  # by the size of the message

    def read(self, data: Buffer) -> RequestMessage:
        """Parse a serialized ModelInferRequest. Raises InvalidRequest if it is malformed."""
        if not isinstance(data, bytes):  # so large that the time for parsing is negligible
            return read_infer_request(data)
        for entry in self._entries.get(len(data), ()):
            if entry.matches(data):
                return _Hit(entry, data)
        return _Miss(read_infer_request(data), data, self)

    def add(self, data: bytes, request: InferRequest, options: ResponseOptions) -> None:
        """Add a message, unless it is unlikely to be repeated or its values are not in raw contents."""
        # With an id the message is unique.
        if request.id or request.correlation_id:
            return
        fields = split_fields(data)
        if fields is None or len(fields.contents) != len(request.inputs) or not fields.contents:
            return
        first = fields.contents[0][0]
        ends = [end for _, end in fields.contents]
        begins = [begin for begin, _ in fields.contents[1:]] + [len(data)]
        between = tuple((end, data[end:begin]) for end, begin in zip(ends, begins, strict=True) if begin > end)
        if first > _MAX_TEXT_BYTES or any(len(text) > _MAX_TEXT_BYTES for _, text in between):
            return
        tensors = tuple(
            (tensor.name, tensor.datatype, tensor.shape, begin, end)
            for tensor, (begin, end) in zip(request.inputs, fields.contents, strict=True)
        )
        if len(self._entries) >= _MAX_SIZES:
            self._entries.clear()
        entries = self._entries.setdefault(len(data), [])
        entries.insert(0, _Entry(data[:first], between, tensors, request.with_inputs([]), options))
        del entries[_MAX_ENTRIES_PER_SIZE:]


# Model, version, final flag, and outputs with their sizes.
_ResponseKey: TypeAlias = tuple[str, int, bool | None, tuple[tuple[str, str, tuple[int, ...], int], ...]]


class ProtoResponseCache:
    """Encodes responses as `encode_infer_response` does, with a bounded cache."""

    def __init__(self) -> None:
        self._templates: dict[_ResponseKey, list[bytes]] = {}

    def encode(self, response: InferResponse) -> list[Buffer]:
        """Serialize a ModelInferResponse, in parts. Raises ConchError for an integer parameter over 64 bits."""
        return self._parts(response, None)

    def encode_streamed(self, response: InferResponse, final: bool) -> list[Buffer]:
        """Serialize a ModelStreamInferResponse with the final flag. Raises as `encode`."""
        return streamed(self._parts(response, final))

    def _parts(self, response: InferResponse, final: bool | None) -> list[Buffer]:
        extra: Mapping[str, ParameterValue] | None = None if final is None else {"triton_final_response": final}
        if response.parameters:
            return encode_infer_response(response, extra)
        outputs = response.outputs
        key = (
            response.model_name,
            response.model_version,
            final,
            tuple([(output.name, output.datatype, output.shape, output.nbytes) for output in outputs]),
        )
        template = self._templates.get(key)
        if template is None:
            template = self._add(key, response, extra)
        parts: list[Buffer] = []
        for index, tensor in enumerate(outputs):
            parts += (template[index], tensor.data)
        if not outputs:
            parts.append(template[0])
        if response.id:
            parts.append(text_field(_MODEL_RESPONSE_ID, response.id))
        return parts

    def _add(
        self, key: _ResponseKey, response: InferResponse, extra: Mapping[str, ParameterValue] | None
    ) -> list[bytes]:
        without_id = InferResponse(response.model_name, response.model_version, response.outputs)
        parts = encode_infer_response(without_id, extra)
        # The bytes before each value.
        template = [bytes(parts[0])]
        for index in range(len(response.outputs)):
            head = b"".join(parts[1 + 3 * index : 3 + 3 * index])
            if index:
                template.append(head)
            else:
                template[0] += head
        if len(self._templates) >= _MAX_RESPONSES:
            self._templates.clear()
        if sum(map(len, template)) <= _MAX_TEXT_BYTES:
            self._templates[key] = template
        return template
