"""Read the header of a safetensors file, without its weights and without a library, and bounded on damaged files.

A file is the length of the header in 8 bytes, the header in JSON, and the data of the tensors without gaps.
"""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from conch.base.typed_json import check_json_values
from conch.domain.tensor import MAX_RANK

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # by the format
_METADATA = "__metadata__"
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class NotSafetensors(ValueError):
    """The file is not a safetensors file, or is damaged. The message begins with a verb: "is", "has"."""


def read_safetensors(path: Path) -> dict[str, int]:
    """Return the bytes of each tensor of a file. Raises NotSafetensors; OSError if it cannot be read."""
    if not path.is_file():  # opening a pipe would block
        raise NotSafetensors("is not a regular file")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) < _LENGTH_BYTES or not 0 < length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            if start.startswith(b"version "):
                raise NotSafetensors("is a Git LFS pointer: run `git lfs pull`")
            raise NotSafetensors(f"is not a safetensors file, or is cut off: its header would have {length} bytes")
        content = file.read(length)
    try:
        check_json_values(content)
        header = json.loads(content, object_pairs_hook=_object)
        spans = sorted(_spans(header))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotSafetensors(f"is not a safetensors file: {type(error).__name__} in its header: {error}") from None
    end = _LENGTH_BYTES + length + max((last for _, last, _ in spans), default=0)
    if end != size:
        raise NotSafetensors(f"has {size} bytes, but its tensors end at byte {end}")
    at = 0
    for first, last, name in spans:
        if first != at:
            raise NotSafetensors(f"has a gap or an overlap before tensor '{name}', at byte {first} of the tensors")
        at = last
    return {name: last - first for first, last, name in spans}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError if it has a name twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name is there twice")
    return value


def _spans(header: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yield where each tensor begins and ends, and its name. Raises KeyError, TypeError, ValueError, AttributeError."""
    for name, described in header.items():
        if name == _METADATA:
            continue
        (first, last), shape, bits = described["data_offsets"], described["shape"], _BITS.get(described["dtype"])
        if not all(type(value) is int and 0 <= value < 1 << 63 for value in (first, last, *shape)) or first > last:
            raise ValueError(f"tensor '{name}' has an invalid shape or place")
        if len(shape) > MAX_RANK or (bits is not None and prod(shape) * bits != 8 * (last - first)):
            raise ValueError(f"tensor '{name}' has {last - first} bytes, which is not what its shape needs")
        yield first, last, name
