"""Decode large ModelInferRequests in a worker process: typed contents become wire bytes.

Raw contents do not count, because they are never parsed.
"""

from google.protobuf.message import DecodeError

from conch.base.errors import InvalidRequest
from conch.domain.tensor import MAX_RANK, Buffer
from conch.domain.triton_messages import service_pb2
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto.contents import pack_contents
from conch.protocols.v2_proto.inference import check_counts, split_fields


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
