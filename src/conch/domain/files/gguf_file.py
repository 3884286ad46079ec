"""Read the header of a GGUF file, without its weights and without a library, and bounded on damaged files.

The format is "GGUF" of the ggml project: magic, version, counts, metadata, then name, shape, type and offset of each
tensor, and the aligned data.
"""

import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 512 << 20  # vocabularies of 300,000 tokens take 10 MB
_MAX_TENSORS = 1 << 20
_MAX_KEYS = 1 << 16
_MAX_TEXT_BYTES = 16 << 20
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

# Type of a metadata value → struct format; 8 is a text, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

# Type of a tensor → name, elements of a block, bytes of a block.
_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


class NotGguf(ValueError):
    """The file is not a GGUF file, or is damaged."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Contents of a header. `metadata` has scalars and strings, not arrays; `types` counts the types of tensors."""

    metadata: dict[str, Any]
    tensors: tuple[str, ...]
    types: Counter[str]

    @property
    def architecture(self) -> str:
        """The model's architecture, such as `qwen2`."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def blocks(self) -> int:
        """The number of layers, 0 if unknown."""
        return self._number("block_count")

    @property
    def context_length(self) -> int:
        """The context length in tokens that the model was trained with, 0 if unknown."""
        return self._number("context_length")

    @property
    def chat_template(self) -> str | None:
        """The chat template in Jinja."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def missing_tensors(self) -> list[str]:
        """Return tensors that the header promises and does not have: the embedding, and one of each layer."""
        names = set(self.tensors)
        missing = [] if "token_embd.weight" in names else ["token_embd.weight"]
        present = {name.split(".")[1] for name in names if name.startswith("blk.")}
        return missing + [
            f"blk.{layer}.*" for layer in range(min(self.blocks, _MAX_TENSORS)) if str(layer) not in present
        ]

    def _number(self, key: str) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a file. Raises NotGguf if it is not one or is cut off, OSError if it cannot be read."""
    size = path.stat().st_size
    if not size:
        raise NotGguf("it is empty")
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        reader = _Reader(data)
        if reader.take(4) != MAGIC:
            raise NotGguf("it does not begin with GGUF")
        version = reader.number("I")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise NotGguf(f"version {version} of the format; {known} are known")
        tensors, keys = reader.number("Q"), reader.number("Q")
        if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
            raise NotGguf(f"its header claims {tensors} tensors and {keys} keys")
        metadata = {}
        for _ in range(keys):
            name = reader.text()
            if (value := reader.value(reader.number("I"))) is not None:
                metadata[name] = value
        infos = [_tensor(reader) for _ in range(tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise NotGguf(f"an alignment of {alignment!r}")
        begin = -(-reader.at // alignment) * alignment
    types: Counter[str] = Counter()
    for name, kind, offset, length in infos:
        types[kind] += 1
        if begin + offset + length > size:
            raise NotGguf(f"tensor '{name}' ends at byte {begin + offset + length}, but the file has {size}")
    return GgufFile(metadata, tuple(name for name, *_ in infos), types)


def _tensor(reader: "_Reader") -> tuple[str, str, int, int]:
    """Return name, type, offset and size of the next tensor."""
    name, dimensions = reader.text(), reader.number("I")
    if dimensions > _MAX_DIMENSIONS:
        raise NotGguf(f"tensor '{name}' has {dimensions} dimensions")
    shape = [reader.number("Q") for _ in range(dimensions)]
    number, offset = reader.number("I"), reader.number("Q")
    if number not in _TENSOR_TYPES:
        return name, f"type {number}", offset, 0
    kind, elements, size = _TENSOR_TYPES[number]
    return name, kind, offset, prod(shape) // elements * size


class _Reader:
    """Reads values in order. Raises NotGguf at the end of the file, and beyond the maximum size of a header."""

    def __init__(self, data: mmap) -> None:
        self._data = data
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self.at = 0

    def skip(self, length: int) -> int:
        """Move on by a number of bytes; return where they begin."""
        begin = self.at
        if length > self._end - begin:
            raise NotGguf("it is truncated in the header")
        self.at = begin + length
        return begin

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        begin = self.skip(length)
        return self._data[begin : self.at]

    def number(self, kind: str) -> Any:
        """Return a number in the format of struct."""
        size = struct.calcsize(f"<{kind}")
        return struct.unpack_from(f"<{kind}", self._data, self.skip(size))[0]

    def text(self) -> str:
        """Return a text with its length before it."""
        length = self.number("Q")
        if length > _MAX_TEXT_BYTES:
            raise NotGguf(f"a text of {length} bytes in the header")
        return str(self.take(length), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return a scalar or text; skip an array and return None."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise NotGguf(f"a value of the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        elif inner == _TEXT:
            for _ in range(min(count, _MAX_HEADER_BYTES)):
                self.skip(self.number("Q"))
        else:
            raise NotGguf(f"an array of {count} values of type {inner}")
        return None
