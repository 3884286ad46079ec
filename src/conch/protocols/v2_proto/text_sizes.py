"""Bound the texts of a serialized message before it is parsed: checking and decoding them blocks the event loop."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.v2_proto.inference import read_varint

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
