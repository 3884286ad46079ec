"""The text in the answers of models that stream it."""

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

_LENGTH_BYTES = 4


def response_text(message: bytes) -> str:
    """Return the joined elements of the outputs of type BYTES of a ModelInferResponse, "" if it is not well-formed."""
    response = service_pb2.ModelInferResponse()
    try:
        response.ParseFromString(message)
    except DecodeError:
        return ""
    parts: list[bytes] = []
    raw = list(response.raw_output_contents)
    for index, output in enumerate(response.outputs):
        if output.datatype != "BYTES":
            continue
        if index < len(raw):
            parts += _elements(raw[index])
        else:
            parts += output.contents.bytes_contents
    return b"".join(parts).decode("utf-8", "replace")


def _elements(raw: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at + _LENGTH_BYTES <= len(raw):
        size = int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        found.append(raw[at : at + size])
        at += size
    return found
