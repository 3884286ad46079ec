"""Messages over gRPC repeat themselves: but for the tensors' values, one is, as a rule, like one before it.

What a message was found to say is remembered by its bytes around the values, and the next one with the same bytes
around values of the same sizes is only cut in pieces. What stands around the values of a response is remembered by what
it says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from conch.protocol.regions import NO_REGIONS, Regions
from conch.protocol.v2_proto.inference import (
    InferMessage,
    ResponseOptions,
    encode_infer_response,
    read_infer_request,
    split_fields,
    streamed,
    text_field,
)
from conch.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.tensor import Buffer, Tensor

_MAX_FORMS = 256
# With equally long messages that differ around their values, no more than these are compared.
_MAX_ALIKE = 4
_MAX_TEXT = 2048
# Below this size a copy is cheaper than a view.
_VIEW_FROM = 4096
_MODEL_RESPONSE_ID = 3


class RequestMessage(Protocol):
    """A ModelInferRequest that was read, and whose tensors are looked at by `decode`."""

    @property
    def model_name(self) -> str:
        """The model that is asked."""

    @property
    def id(self) -> str:
        """The client's name for the request."""

    def version(self) -> int | None:
        """Return the version asked for, None for the newest. Raises InvalidRequest if it is not a number."""

    def decode(self, timeline: Timeline, regions: Regions = NO_REGIONS) -> tuple[InferRequest, ResponseOptions]:
        """Return the request as a value. Raises ConchError, naming the parameter or tensor."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A request but for its values: the bytes around them, and what they say."""

    before: bytes
    between: tuple[tuple[int, bytes], ...]  # position in the message, bytes
    tensors: tuple[
        tuple[str, str, tuple[int, ...], int, int], ...
    ]  # name, datatype, shape, begin and end in the message
    request: InferRequest
    options: ResponseOptions

    def fits(self, data: bytes) -> bool:
        """Whether a message of the right size differs in its values at most."""
        if not data.startswith(self.before):
            return False
        return not self.between or all(data.startswith(text, position) for position, text in self.between)


class _Known(NamedTuple):
    """A message of a form that is known."""

    form: _Form
    data: bytes

    @property
    def model_name(self) -> str:
        return self.form.request.model_name

    @property
    def id(self) -> str:
        return self.form.request.id

    def version(self) -> int | None:
        return self.form.request.version

    def decode(
        self,
        timeline: Timeline,
        regions: Regions = NO_REGIONS,  # noqa: ARG002 - what is in one is not known beforehand
    ) -> tuple[InferRequest, ResponseOptions]:
        form, data = self.form, self.data
        source: Buffer = data if len(data) < _VIEW_FROM else memoryview(data)
        tensors = [
            Tensor(name, datatype, shape, source[begin:end]) for name, datatype, shape, begin, end in form.tensors
        ]
        return form.request.with_inputs(tensors, timeline), form.options


class _New(NamedTuple):
    """A message of a form that will be known once it has been decoded without an error."""

    message: InferMessage
    data: bytes
    requests: "ProtoRequestCache"

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
        # A region may have gone by the next time, or be another.
        if not (options.parts or self.message.inputs_have_parameters):
            self.requests.learn(self.data, request, options)
        return request, options


class ProtoRequestCache:
    """Reads requests as `read_infer_request` does; bounded in what it remembers."""

    def __init__(self) -> None:
        self._forms: dict[int, list[_Form]] = {}  # by the size of the message

    def read(self, data: Buffer) -> RequestMessage:
        """Read a serialized ModelInferRequest. Raises InvalidRequest if it is none."""
        if not isinstance(data, bytes):  # large enough that reading it does not matter
            return read_infer_request(data)
        for form in self._forms.get(len(data), ()):
            if form.fits(data):
                return _Known(form, data)
        return _New(read_infer_request(data), data, self)

    def learn(self, data: bytes, request: InferRequest, options: ResponseOptions) -> None:
        """Remember the form of a message, if it may come again and its values are where they can be found."""
        # A request with a name of its own is the only one of its form.
        if request.id or request.correlation_id:
            return
        fields = split_fields(data)
        if fields is None or len(fields.contents) != len(request.inputs) or not fields.contents:
            return
        first = fields.contents[0][0]
        ends = [end for _, end in fields.contents]
        begins = [begin for begin, _ in fields.contents[1:]] + [len(data)]
        between = tuple((end, data[end:begin]) for end, begin in zip(ends, begins, strict=True) if begin > end)
        if first > _MAX_TEXT or any(len(text) > _MAX_TEXT for _, text in between):
            return
        tensors = tuple(
            (tensor.name, tensor.datatype, tensor.shape, begin, end)
            for tensor, (begin, end) in zip(request.inputs, fields.contents, strict=True)
        )
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        alike = self._forms.setdefault(len(data), [])
        alike.insert(0, _Form(data[:first], between, tensors, request.with_inputs([]), options))
        del alike[_MAX_ALIKE:]


# What a response says but for its id and its values: model, version, how it ends, outputs with their sizes.
_ResponseKey: TypeAlias = tuple[str, int, bool | None, tuple[tuple[str, str, tuple[int, ...], int], ...]]


class ProtoResponseCache:
    """Writes responses as `encode_infer_response` does; bounded in what it remembers."""

    def __init__(self) -> None:
        self._forms: dict[_ResponseKey, list[bytes]] = {}

    def encode(self, response: InferResponse) -> list[Buffer]:
        """Serialize a ModelInferResponse, in parts. Raises ConchError if a parameter does not fit its message."""
        return self._parts(response, None)

    def encode_streamed(self, response: InferResponse, final: bool) -> list[Buffer]:
        """Serialize a ModelStreamInferResponse that says whether more will follow. Raises as `encode`."""
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
            tuple([(one.name, one.datatype, one.shape, one.nbytes) for one in outputs]),
        )
        form = self._forms.get(key)
        if form is None:
            form = self._learn(key, response, extra)
        parts: list[Buffer] = []
        for index, tensor in enumerate(outputs):
            parts += (form[index], tensor.data)
        if not outputs:
            parts.append(form[0])
        if response.id:
            parts.append(text_field(_MODEL_RESPONSE_ID, response.id))
        return parts

    def _learn(
        self, key: _ResponseKey, response: InferResponse, extra: Mapping[str, ParameterValue] | None
    ) -> list[bytes]:
        nameless = InferResponse(response.model_name, response.model_version, response.outputs)
        parts = encode_infer_response(nameless, extra)
        # Everything before the first value, then what stands between two values.
        form = [bytes(parts[0])]
        for index in range(len(response.outputs)):
            head = b"".join(parts[1 + 3 * index : 3 + 3 * index])
            if index:
                form.append(head)
            else:
                form[0] += head
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        if sum(map(len, form)) <= _MAX_TEXT:
            self._forms[key] = form
        return form
