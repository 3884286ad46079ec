"""Shared memory in JSON: parameters of tensors, and registrations."""

from base64 import b64decode
from typing import Any

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.json_document import key_at_end, parse, text, unsigned
from conch.protocols.regions import BYTE_SIZE, OFFSET, REGION, Regions, Window, missing_region, missing_size

_CUDA_HANDLE_BYTES = 64


def read_window(parameters: dict[str, Any], name: str, regions: Regions) -> Window | None:
    """Return the shared memory in a tensor's parameters, if any. Raises ConchError."""
    if REGION not in parameters:
        error = missing_region(parameters, name)
        if error is not None:
            raise error
        return None
    region = text(parameters[REGION], REGION)
    offset = unsigned(parameters.get(OFFSET, 0), OFFSET)
    if BYTE_SIZE not in parameters:
        regions.part(region, offset, 0)  # the error for an unknown region has precedence, as in Triton
        raise missing_size(name)
    return Window(region, offset, unsigned(parameters[BYTE_SIZE], BYTE_SIZE))


def read_registration(body: Buffer) -> tuple[str, int, int]:
    """Return the key of a system shared memory object, and offset and size of the region. Raises InvalidRequest."""
    document = parse(body)
    for key in ("key", "byte_size"):
        if type(document) is not dict or key not in document:
            raise InvalidRequest(f"Shared memory register request has no '{key}' field")
    try:
        key = text(document["key"], "key")
    except InvalidRequest as error:
        raise key_at_end(error, "key") from None
    return key, _size(document, "offset"), _size(document, "byte_size")


def _size(document: dict[str, Any], key: str) -> int:
    try:
        return unsigned(document.get(key, 0), key)
    except InvalidRequest as error:
        raise key_at_end(error, key) from None


def read_cuda_registration(body: Buffer) -> tuple[bytes, int, int]:
    """Return the handle of CUDA shared memory, its GPU, and the size of the region. Raises InvalidRequest."""
    document = parse(body)
    if type(document) is not dict or "raw_handle" not in document:
        raise InvalidRequest("Shared memory register request has no 'raw_handle' field")
    raw = document["raw_handle"]
    if type(raw) is not dict or "b64" not in raw:
        raise InvalidRequest(
            "attempt to access non-existing object member 'b64'; it is the handle in the request's 'raw_handle'"
        )
    try:
        handle = b64decode(text(raw["b64"], "b64"), validate=True)
    except ValueError:
        raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t") from None
    for key in ("device_id", "byte_size"):
        if key not in document:
            raise InvalidRequest(
                f"attempt to access non-existing object member '{key}'; "
                f"the shared memory register request has no '{key}' field"
            )
    if len(handle) != _CUDA_HANDLE_BYTES:
        raise InvalidRequest(
            f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: {len(handle)} bytes instead of "
            f"{_CUDA_HANDLE_BYTES}"
        )
    return handle, _size(document, "device_id"), _size(document, "byte_size")
