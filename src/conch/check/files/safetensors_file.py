"""Check the safetensors files of a checkpoint by their headers: present, complete, and of the size that they claim."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # by the format
_MAX_INDEX_BYTES = 64 << 20


def safetensors_problems(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of a file and what is wrong with it. A folder without safetensors files has no problem."""
    index = directory / _INDEX
    listed: dict[str, set[str]] = {}
    if index.is_file() and index.stat().st_size <= _MAX_INDEX_BYTES:
        try:
            for tensor, file in json.loads(index.read_bytes())["weight_map"].items():
                listed.setdefault(str(file), set()).add(tensor)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            yield index, f"cannot be read: {type(error).__name__}: {error}"
            return
    for name in sorted(listed):
        if "\0" in name or not (directory / name).is_file():
            yield index, f"names {name}, which is not in the folder"
    for path in sorted(directory.glob("*.safetensors")):
        try:
            header = _header(path)
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}"
            continue
        except ValueError as error:
            yield path, str(error)
            continue
        if missing := sorted(listed.get(path.name, set()) - header.keys()):
            yield path, f"lacks tensor '{missing[0]}' ({len(missing)} in all), which {_INDEX} lists"


def _header(path: Path) -> dict[str, Any]:
    """Return the header of a file. Raises ValueError for one that is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) < _LENGTH_BYTES or not 0 < length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            if start.startswith(b"version "):
                raise ValueError("is a Git LFS pointer: run `git lfs pull`")
            raise ValueError(f"is not a safetensors file, or is cut off: its header would have {length} bytes")
        try:
            header = json.loads(file.read(length))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
            end = max(ends, default=0) + _LENGTH_BYTES + length
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"has an invalid header: {type(error).__name__}: {error}") from None
    if end != size:
        raise ValueError(f"has {size} bytes, but its tensors end at byte {end}")
    return dict(header)
