"""Bounds of large messages, and their decoding in a worker process: typed contents become wire bytes.

Raw contents do not count, because they are never parsed.
"""

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from conch.base.errors import InvalidRequest
from conch.domain.tensor import MAX_RANK, Buffer
from conch.domain.triton_messages import service_pb2
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto.inference import check_counts, pack_contents, read_varint, split_fields

# Larger than a configuration may be.
MAX_TEXT_BYTES = 4 * 2**20


def check_texts(data: Buffer, descriptor: Descriptor) -> None:
    """Raise InvalidRequest for a string field of more than `MAX_TEXT_BYTES`, at any depth.

    Stops at anything but length-delimited fields with numbers below 16, which protobuf then has to parse.
    """
    _check(data, 0, len(data), descriptor)


def _check(data: Buffer, position: int, end: int, descriptor: Descriptor) -> None:
    while position < end:
        tag = data[position]
        size, position = read_varint(data, position + 1)
        if tag >= 0x80 or tag & 7 != 2 or not 0 <= size <= end - position:
            return
        field = descriptor.fields_by_number.get(tag >> 3)
        if field is not None and field.message_type is not None:
            _check(data, position, position + size, field.message_type)
        elif field is not None and field.type == FieldDescriptor.TYPE_STRING and size > MAX_TEXT_BYTES:
            raise InvalidRequest(f"'{field.name}' has {size} bytes, the limit is {MAX_TEXT_BYTES}")
        position += size


def is_large(data: Buffer) -> bool:
    """Whether a worker should parse a message. Raises InvalidRequest for too many fields."""
    if len(data) <= MAX_INLINE_BYTES:
        return False
    fields = split_fields(data)
    return fields is None or sum(end - begin for begin, end in fields.others) > MAX_INLINE_BYTES


def pack_message(body: Buffer) -> tuple[bytes, list[bytes | None], list[bytes] | None]:
    """Return a request without contents, the wire bytes of each input's contents, and its raw contents.

    The bytes are None for inputs without contents, and the raw contents are None if the server can find them with
    `split_fields`. Raises InvalidRequest as `InferMessage.decode` does.
    """
    fields = split_fields(body)
    view = memoryview(body)
    head = view if fields is None else b"".join([view[begin:end] for begin, end in fields.others])
    message = service_pb2.ModelInferRequest()
    try:
        message.ParseFromString(head)
    except DecodeError as error:
        raise InvalidRequest(f"failed to parse the request as inference.ModelInferRequest: {error}") from None
    check_counts(message)
    has_raw = bool(message.raw_input_contents if fields is None else fields.contents)
    packed: list[bytes | None] = []
    for entry in message.inputs:
        if len(entry.shape) > MAX_RANK:
            raise InvalidRequest(
                f"shape of input '{entry.name}' has {len(entry.shape)} dimensions, at most {MAX_RANK} are possible"
            )
        if not entry.HasField("contents"):
            packed.append(None)
            continue
        if has_raw:
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents for "
                f"'{entry.name}' for model '{message.model_name}'"
            )
        packed.append(pack_contents(entry, message.model_name))
        entry.ClearField("contents")
        entry.contents.SetInParent()
    raw = list(message.raw_input_contents) if fields is None else None
    message.ClearField("raw_input_contents")
    return message.SerializeToString(), packed, raw
