"""The shape of a checkpoint and the size of its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.domain.files.safetensors_file import NotSafetensors, read_safetensors
from conch.measure.advise.config_json import Shape, read_shape

_INDEX = "model.safetensors.index.json"
_MAX_WEIGHT_BYTES = 1 << 60
_MAX_BITS = 64
# Per number of a matrix, with scales.
_QUANTIZED_BITS = {"fp8": 8.0, "int8": 8.0, "awq": 4.25, "gptq": 4.25, "nvfp4": 4.5, "mxfp4": 4.25}
QUANTIZATIONS = tuple(_QUANTIZED_BITS)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. `matrix_bytes` and `other_bytes` are the sizes of one parameter of each kind."""

    path: Path
    shape: Shape
    matrix_bytes: float
    other_bytes: float
    source: str  # description of the origin of the sizes

    @property
    def weight_bytes(self) -> int:
        """Size of the weights on one GPU."""
        matrices = sum(layer.split for layer in self.shape.layers)
        return round(matrices * self.matrix_bytes + (self.shape.parameters - matrices) * self.other_bytes)


def read_checkpoint(path: Path, *, dtype_bytes: int | None = None, quantization: str = "") -> Checkpoint:
    """Read a folder with `config.json`, or only that file. Raises InvalidRequest with the problem.

    `dtype_bytes` and `quantization` override the stored size of the weights. The default is the size of the safetensors
    files, or without them of the configuration's data type.
    """
    path = path / "config.json" if path.is_dir() else path
    config = _read_json(path)
    shape = read_shape(config)
    stored = config.get("quantization_config") or {}
    plain = dtype_bytes or shape.dtype_bytes
    if quantization:
        bits = _QUANTIZED_BITS[quantization]
        return Checkpoint(path.parent, shape, bits / 8, plain, f"matrices in {bits:g} bits ({quantization})")
    files = _stored_bytes(path.parent)
    if files and dtype_bytes is None:
        matrices = sum(layer.split for layer in shape.layers)
        # At most the declared size: a matrix may be stored twice, such as tied embeddings, but is loaded once.
        others = (shape.parameters - matrices) * plain
        return Checkpoint(path.parent, shape, min((files - others) / matrices, plain), plain, "its safetensors files")
    if stored and dtype_bytes is None:
        bits = _stored_bits(stored)
        return Checkpoint(path.parent, shape, bits / 8, plain, f"matrices in {bits:g} bits, from its config.json")
    return Checkpoint(path.parent, shape, plain, plain, f"{plain} bytes for each parameter")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidRequest(f"there is no '{path}': expected the folder of a checkpoint, with a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"'{path}' cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"'{path}' must hold a JSON object")
    return document


def _stored_bits(stored: Any) -> float:
    try:
        return _bits(stored)
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise InvalidRequest(f"config.json: unknown quantization_config: {str(stored)[:200]}") from None


def _bits(stored: Mapping[str, Any]) -> float:
    method = str(stored.get("quant_method", ""))
    if method in _QUANTIZED_BITS and method not in ("awq", "gptq"):
        return _QUANTIZED_BITS[method]
    bits = int(stored.get("bits") or stored.get("w_bit") or (4 if stored.get("load_in_4bit") else 8))
    group = int(stored.get("group_size") or 0)
    if not 0 < bits <= _MAX_BITS:
        raise ValueError(bits)
    return bits + (32 / group if group > 0 and bits < 8 else 0)  # a scale and a zero point for each group


def _stored_bytes(directory: Path) -> int:
    """Return the size of all tensors in the folder's safetensors files, 0 without files; from their index, if any.

    Raises InvalidRequest for a damaged file.
    """
    stored = 0
    for path in directory.glob("*.safetensors"):
        try:
            stored += sum(read_safetensors(path).values())
        except NotSafetensors as error:
            raise InvalidRequest(f"'{path}' {error}") from None
    index = directory / _INDEX
    metadata = _read_json(index).get("metadata") if index.is_file() else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(size) if isinstance(size, int | float) and 0 < size < _MAX_WEIGHT_BYTES else stored
