# Compiled by mypyc in wheels.
"""Raw inference requests over HTTP: the body is the data of the model's only input."""

from conch.base.errors import InvalidRequest
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, Timeline
from conch.domain.tensor import BYTES, Buffer, Tensor, byte_size, pack_bytes
from conch.protocols.v2_json.inference import ALL_BINARY, OutputOptions


def decode_raw_request(
    config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline | None = None
) -> tuple[InferRequest, OutputOptions]:
    """Decode a request whose whole body is the data of the model's only input.

    Its batch size is 1; one variable dimension is computed from the size. A BYTES input of shape [1] has the body as
    its element. All outputs are sent as binary data. Raises InvalidRequest.
    """
    if len(config.inputs) != 1:
        raise _refused_raw(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(config.inputs)} inputs in '{config.name}' model configuration"
        )
    spec = config.inputs[0]
    if spec.datatype == BYTES:
        if spec.dims != (1,):
            raise _refused_raw(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        data: Buffer = pack_bytes([body])
        dims = [1]
    else:
        data = body
        dims = _deduced_dims(config, len(body))
    shape = [1, *dims] if config.max_batch_size > 0 else dims
    tensor = Tensor(spec.name, spec.datatype, shape, data)
    return InferRequest(config.name, [tensor], version=version, timeline=timeline), ALL_BINARY


def _deduced_dims(config: ModelConfig, size: int) -> list[int]:
    """Return the dims with the variable one computed. Raises InvalidRequest if the size does not match."""
    name, datatype, dims = config.inputs[0].name, config.inputs[0].datatype, config.inputs[0].dims
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    if not variable:
        if size != (expected := byte_size(datatype, list(dims))):
            raise _wrong_raw_size(config, expected, size)
        return list(dims)
    if len(variable) > 1:
        raise _refused_raw(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            f"dimension: {list(dims)}"
        )
    row = byte_size(datatype, [dim for dim in dims if dim >= 0])
    if not row or size % row:
        raise _wrong_raw_size(config, size - size % row if row else 0, size)
    return [size // row if dim < 0 else dim for dim in dims]


def _wrong_raw_size(config: ModelConfig, expected: int, got: int) -> InvalidRequest:
    return _refused_raw(
        f"input byte size mismatch for input 'raw_input' for model '{config.name}'. Expected {expected}, got {got}: "
        f"the whole body is the input '{config.inputs[0].name}'"
    )


def _refused_raw(message: str) -> InvalidRequest:
    return InvalidRequest(f"[request id: <id_unknown>] {message}")
