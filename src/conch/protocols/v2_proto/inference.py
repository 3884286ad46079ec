# Compiled by mypyc in wheels.
"""Decode ModelInferRequest and encode ModelInferResponse of `GRPCInferenceService`.

Wire format and rules: KServe v2 `grpc_service.proto` with Triton's extensions. Decoding has two steps, because the
model's name and version are checked before the rest: `read_infer_request`, then `InferMessage.decode`.

Tensor bytes of large messages are not copied: protobuf parses the message without `raw_input_contents`, which are views
of the received bytes, and `raw_output_contents` are appended to the message that protobuf serializes. The order of
fields in a message is arbitrary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from conch.base.errors import InvalidRequest
from conch.domain.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.domain.tensor import BYTES, DATATYPES, MAX_RANK, NUMPY_DTYPES, Buffer, Tensor, pack_bytes
from conch.domain.triton_messages import service_pb2
from conch.protocols.regions import (
    BYTE_SIZE,
    NO_REGIONS,
    OFFSET,
    REGION,
    RegionBytes,
    Regions,
    Window,
    missing_region,
    missing_size,
)
from conch.protocols.v2_proto.parameters import decode_parameters, encode_parameters

# A message of service_pb2, whose classes protobuf creates at run time.
Message: TypeAlias = Any

_INT64_MAX: Final = 2**63 - 1
_INT64_DIGITS: Final = len(str(_INT64_MAX))
# Below this size a parse that copies the tensors is faster than splitting the message first (measured).
_MIN_SPLIT_BYTES: Final = 16 * 1024
# Of inputs, outputs and parameters each; one takes about 10 µs on the event loop.
MAX_ENTRIES: Final = 2048
# Fields of a message: inputs, outputs, parameters and raw contents.
MAX_FIELDS: Final = 4 * MAX_ENTRIES

# The first bytes of length-delimited fields: number << 3 | 2.
_RAW_INPUT_CONTENTS: Final = 7 << 3 | 2
_RAW_OUTPUT_CONTENTS: Final = bytes((6 << 3 | 2,))
_STREAM_INFER_RESPONSE: Final = bytes((2 << 3 | 2,))


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The requested form of the responses.

    `classification` maps outputs to numbers of classes. `empty_final_response`: send an empty message if a decoupled
    model ends with the final flag only (`triton_enable_empty_final_response`). `parts` maps outputs to shared memory.
    """

    classification: Mapping[str, int] = field(default_factory=dict)
    empty_final_response: bool = False
    parts: Mapping[str, RegionBytes] = field(default_factory=dict)


_DEFAULT_OPTIONS: Final = ResponseOptions()


class InferMessage(NamedTuple):
    """A parsed ModelInferRequest; `raw_contents` are its `raw_input_contents`, in the message or not.

    If a worker has read the message, `packed` has the wire bytes of each input's `contents`, None without.
    """

    message: Message
    raw_contents: Sequence[Buffer]
    packed: Sequence[Buffer | None] = ()

    @property
    def model_name(self) -> str:
        """The requested model."""
        return str(self.message.model_name)

    @property
    def id(self) -> str:
        """The request's id."""
        return str(self.message.id)

    def version(self) -> int | None:
        """Return the requested version, None for the latest. Raises InvalidRequest if it is not a number."""
        return parse_version(self.message.model_version)

    @property
    def inputs_have_parameters(self) -> bool:
        """Whether an input has parameters, such as those of shared memory."""
        return any(entry.parameters for entry in self.message.inputs)

    def decode(self, timeline: Timeline, regions: Regions = NO_REGIONS) -> tuple[InferRequest, ResponseOptions]:
        """Return the request. Raises ConchError, naming the parameter or tensor."""
        message = self.message
        request = InferRequest(message.model_name, [], version=self.version(), id=message.id, timeline=timeline)
        options = _DEFAULT_OPTIONS
        if message.parameters:
            options = ResponseOptions(empty_final_response=decode_parameters(message.parameters, request))
        request.inputs = self._inputs(request, regions)
        if message.outputs:
            names, classification, parts = self._outputs(regions)
            request.outputs = names
            if parts:
                request.destinations = parts
            if classification or parts:
                options = ResponseOptions(classification, options.empty_final_response, parts)
        return request, options

    def _inputs(self, request: InferRequest, regions: Regions) -> list[Tensor]:
        message, raw_contents = self.message, self.raw_contents
        tensors: list[Tensor] = []
        used = 0
        for index, entry in enumerate(message.inputs):
            name, datatype, shape = entry.name, entry.datatype, tuple(entry.shape)
            if datatype not in DATATYPES:
                raise InvalidRequest(
                    f"invalid datatype for input {name}: '{datatype}', expected one of {', '.join(sorted(DATATYPES))}"
                )
            if len(shape) > MAX_RANK:
                raise InvalidRequest(
                    f"shape of input '{name}' has {len(shape)} dimensions, at most {MAX_RANK} are possible"
                )
            if shape and min(shape) < 0:
                raise InvalidRequest(f"shape of input '{name}' has a negative dimension: {list(shape)}")
            window = read_window(entry) if entry.parameters else None
            if window is not None:
                if entry.HasField("contents"):
                    raise InvalidRequest(
                        f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                        f"for model '{message.model_name}'"
                    )
                tensors.append(window.input(regions, name, datatype, shape, request))
                continue
            if entry.HasField("contents"):
                if raw_contents:
                    raise InvalidRequest(
                        "contents field must not be specified when using raw_input_contents for "
                        f"'{name}' for model '{message.model_name}'"
                    )
                packed = self.packed[index] if self.packed else None
                data: Buffer = pack_contents(entry, message.model_name) if packed is None else packed
            elif used < len(raw_contents):
                data = raw_contents[used]
                used += 1
            else:
                raise InvalidRequest(
                    f"unable to find data for input tensor '{name}' for model '{message.model_name}' in request."
                )
            tensors.append(Tensor(name, datatype, shape, data))
        return tensors

    def _outputs(self, regions: Regions) -> tuple[tuple[str, ...], dict[str, int], dict[str, RegionBytes]]:
        names: dict[str, None] = {}
        classification: dict[str, int] = {}
        parts: dict[str, RegionBytes] = {}
        for entry in self.message.outputs:
            names[entry.name] = None
            if not entry.parameters:
                continue
            if "classification" in entry.parameters:
                classification[entry.name] = _class_count(entry)
            window = read_window(entry)
            if window is not None:
                if entry.name in classification:
                    raise InvalidRequest("output can't set both 'shared_memory_region' and 'classification'")
                parts[entry.name] = window.output(regions)
        return tuple(names), classification, parts


def read_infer_request(data: Buffer) -> InferMessage:
    """Parse a serialized ModelInferRequest. Raises InvalidRequest if it is malformed."""
    parts = _split(data) if len(data) >= _MIN_SPLIT_BYTES else None
    head, raw_contents = parts or (data, None)
    message = service_pb2.ModelInferRequest()
    try:
        message.ParseFromString(head)
    except DecodeError as error:
        raise InvalidRequest(f"failed to parse the request as inference.ModelInferRequest: {error}") from None
    if len(data) >= _MIN_SPLIT_BYTES:
        check_counts(message)
    return InferMessage(message, message.raw_input_contents if raw_contents is None else raw_contents)


def check_counts(message: Message) -> None:
    """Raise InvalidRequest for too many tensors or parameters."""
    for what in ("inputs", "outputs", "parameters"):
        count = len(getattr(message, what))
        if count > MAX_ENTRIES:
            raise InvalidRequest(f"a request may have at most {MAX_ENTRIES} {what}, got {count}")


def parse_version(text: str) -> int | None:
    """Return the version in a text, None for the empty string. Raises InvalidRequest."""
    if not text:
        return None
    # The length first: Python refuses to parse numbers of thousands of digits.
    if len(text) <= _INT64_DIGITS and text.isascii() and text.isdigit() and int(text) <= _INT64_MAX:
        return int(text)
    expected = "version should be an integral value > 0"
    if len(text) <= _INT64_DIGITS and text[:1] == "-" and text[1:].isascii() and text[1:].isdigit():
        raise InvalidRequest(f"invalid model version specified '{text}' , {expected}")
    raise InvalidRequest(
        f"failed to get model version from specified version string '{text}' (details: stol), {expected}"
    )


def streamed(parts: Sequence[Buffer]) -> list[Buffer]:
    """Wrap a serialized ModelInferResponse in a ModelStreamInferResponse."""
    return [_STREAM_INFER_RESPONSE + _varint(sum(map(len, parts))), *parts]


def encode_stream_error(text: str, request_id: str, final: bool | None, model_name: str = "") -> list[Buffer]:
    """Serialize the ModelStreamInferResponse of a failed request; `final` is None if it was not admitted."""
    answer = service_pb2.ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    answer.infer_response.model_name = model_name
    if final is not None:
        answer.infer_response.parameters["triton_final_response"].bool_param = final
    return [answer.SerializeToString()]


def text_field(number: int, text: str) -> bytes:
    """Serialize one string field with a number below 16."""
    octets = text.encode()
    return bytes((number << 3 | 2,)) + _varint(len(octets)) + octets


def encode_infer_response(response: InferResponse, extra: Mapping[str, ParameterValue] | None = None) -> list[Buffer]:
    """Serialize a ModelInferResponse, in parts: the fields without values, then tag, size and value of each output.

    `extra` parameters are added to those of the response. Raises ConchError for an integer parameter over 64 bits.
    """
    message = service_pb2.ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    if response.parameters:
        encode_parameters(response.parameters, message.parameters)
    if extra:
        encode_parameters(extra, message.parameters)
    contents: list[Buffer] = []
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        contents += (_RAW_OUTPUT_CONTENTS, _varint(tensor.nbytes), tensor.data)
    return [message.SerializeToString(), *contents]


def _class_count(entry: Message) -> int:
    value = entry.parameters["classification"]
    if value.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidRequest(
            f"invalid value type for 'classification' parameter, expected int64_param for output '{entry.name}'"
        )
    if value.int64_param <= 0:
        raise InvalidRequest(
            f"invalid value for 'classification' parameter, expected >= 0: for output '{entry.name}' it is "
            f"{value.int64_param}, at least 1 is needed"
        )
    return int(value.int64_param)


class ProtoFields(NamedTuple):
    """Begin and end of fields in a message: `contents` without their tags and sizes, `others` with them."""

    others: list[tuple[int, int]]
    contents: list[tuple[int, int]]


def split_fields(data: Buffer) -> ProtoFields | None:
    """Find `raw_input_contents` and the other fields of a ModelInferRequest.

    Returns None for a message that does not only consist of complete length-delimited fields with numbers below 16,
    which protobuf then has to parse. Raises InvalidRequest for more than `MAX_FIELDS` fields.
    """
    fields = ProtoFields([], [])
    position, end = 0, len(data)
    while position < end:
        start, tag = position, data[position]
        if tag >= 0x80 or tag & 7 != 2:
            return None
        if len(fields.others) + len(fields.contents) >= MAX_FIELDS:
            raise InvalidRequest(f"a request may have at most {MAX_FIELDS} inputs, outputs, parameters and contents")
        size, position = read_varint(data, position + 1)
        if size < 0 or size > end - position:
            return None
        following = position + size
        if tag == _RAW_INPUT_CONTENTS:
            fields.contents.append((position, following))
        else:
            fields.others.append((start, following))
        position = following
    return fields


def _split(data: Buffer) -> tuple[bytes, list[memoryview]] | None:
    """Split a message into its head and its `raw_input_contents`; None if `split_fields` cannot."""
    fields = split_fields(data)
    if fields is None:
        return None
    view = memoryview(data)
    head = b"".join(view[begin:end] for begin, end in fields.others)
    return head, [view[begin:end] for begin, end in fields.contents]


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Parse a length of up to five bytes; return it, or -1 if it is invalid, and the position after it."""
    value = 0
    for shift, byte in zip(range(0, 35, 7), data[position : position + 5], strict=False):
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    return -1, position


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


# `InferInputTensor`, which protobuf creates at run time.
InputMessage: TypeAlias = Any


class _Field(NamedTuple):
    datatype: str  # of the field's values
    narrower: frozenset[str] = frozenset()  # other datatypes with values in this field


_FIELDS: Final = {
    "bool_contents": _Field("BOOL"),
    "int_contents": _Field("INT32", frozenset({"INT8", "INT16"})),
    "int64_contents": _Field("INT64"),
    "uint_contents": _Field("UINT32", frozenset({"UINT8", "UINT16"})),
    "uint64_contents": _Field("UINT64"),
    "fp32_contents": _Field("FP32"),
    "fp64_contents": _Field("FP64"),
    "bytes_contents": _Field(BYTES),
}


def pack_contents(entry: InputMessage, model_name: str) -> bytes:
    """Return the wire bytes of an input's `contents`, empty without a field.

    Raises InvalidRequest for a field of another datatype, for more than one field, and for values that are out of
    range.
    """
    packed: bytes | None = None
    where = f"unexpected explicit tensor data for input tensor '{entry.name}' for model '{model_name}'"
    for descriptor, values in entry.contents.ListFields():
        source = _FIELDS[descriptor.name]
        if packed is not None:
            raise InvalidRequest(f"{where}, binary data was already supplied.")
        if entry.datatype == source.datatype:
            packed = _pack(values, source.datatype)
        elif entry.datatype in source.narrower:
            packed = _narrow(entry, values, source.datatype)
        else:
            raise InvalidRequest(f"{where} of type '{source.datatype}', expected datatype '{entry.datatype}'")
    return packed or b""


def _pack(values: Any, datatype: str) -> bytes:
    if datatype == BYTES:
        return pack_bytes(values)
    return np.fromiter(values, NUMPY_DTYPES[datatype], count=len(values)).tobytes()


def _narrow(entry: InputMessage, values: Any, datatype: str) -> bytes:
    wide = np.fromiter(values, NUMPY_DTYPES[datatype], count=len(values))
    narrow = wide.astype(NUMPY_DTYPES[entry.datatype])
    overflows = wide != narrow
    if overflows.any():
        raise InvalidRequest(
            f"value {wide[overflows][0]} in the contents of input tensor '{entry.name}' does not fit {entry.datatype}"
        )
    return narrow.tobytes()


# `InferInputTensor` or `InferRequestedOutputTensor`, which protobuf creates at run time.
TensorMessage: TypeAlias = Any


def read_window(entry: TensorMessage) -> Window | None:
    """Return the shared memory in a tensor's parameters, if any. Raises InvalidRequest."""
    parameters = entry.parameters
    if REGION not in parameters:
        error = missing_region(parameters, entry.name)
        if error is not None:
            raise error
        return None
    region = str(_value(entry, REGION, "string_param"))
    if BYTE_SIZE not in parameters:
        raise missing_size(entry.name)
    offset = int(_value(entry, OFFSET, "int64_param")) if OFFSET in parameters else 0
    return Window(region, offset, int(_value(entry, BYTE_SIZE, "int64_param")))


def _value(entry: TensorMessage, key: str, kind: str) -> Any:
    parameter = entry.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{entry.name}', expected {kind}.")
    return getattr(parameter, kind)
