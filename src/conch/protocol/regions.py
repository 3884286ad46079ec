"""Tensors in memory that a client shares with the server: what a request says of them, and how they come and go.

A client registers a region of shared memory under a name. An input or output then names the region in place of its
bytes: `shared_memory_region`, `shared_memory_byte_size` and `shared_memory_offset` are its parameters. What a region is
and where its bytes lie, codecs do not know: they are given a look-up, and read and write through what it returns.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from conch.errors import BackendError, InvalidRequest, Unsupported
from conch.request import InferRequest, InferResponse
from conch.tensor import BYTES, Destination, Tensor, byte_size

REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"


class RegionBytes(Destination, Protocol):
    """Some bytes of a region. It stays usable for as long as somebody has it, whatever becomes of the region's name."""


class Regions(Protocol):
    """The regions that clients have registered."""

    def part(self, region: str, offset: int, size: int) -> RegionBytes:
        """Find bytes of a region. Raises NotFound for the region, InvalidRequest if they are not within it."""


class _NoRegions:
    """What a server looks in that shares no memory with clients."""

    def part(self, region: str, offset: int, size: int) -> RegionBytes:  # noqa: ARG002 - there is none
        raise not_allowed(f"'{REGION}', here '{region}',")


NO_REGIONS: Final[Regions] = _NoRegions()


def not_allowed(what: str) -> Unsupported:
    """Say that something needs a permission which the server was not given."""
    return Unsupported(
        f"{what} needs client shared memory, which this server does not allow; start it with --allow-client-shm=true"
    )


def nameless(kind: str) -> InvalidRequest:
    """Return the error for a registration without a name; `kind` is `system` or `cuda`."""
    return InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


class Window(NamedTuple):
    """Where a request says that a tensor is, or is to be put."""

    region: str
    offset: int
    size: int

    def input(self, regions: Regions, name: str, datatype: str, shape: Sequence[int], request: InferRequest) -> Tensor:
        """Return the input that is there. Raises ConchError if it is not, or if its size is not that of the shape.

        Its bytes stay in the region until they are asked for.
        """
        part = regions.part(self.region, self.offset, self.size)
        # Before the bytes are read: a region may be far larger than anything that was ever in it.
        if datatype != BYTES and self.size != (expected := byte_size(datatype, shape)):
            raise InvalidRequest(
                f"[request id: {request.id or '<id_unknown>'}] input byte size mismatch for input '{name}' for model "
                f"'{request.model_name}'. Expected {expected}, got {self.size} in shared memory region '{self.region}'"
            )
        return Tensor(name, datatype, shape, source=part)

    def output(self, regions: Regions) -> RegionBytes:
        """Return where an output is to be put. Raises ConchError if there is no such place."""
        return regions.part(self.region, self.offset, self.size)


def stray_key(parameters: Iterable[str], name: str) -> InvalidRequest | None:
    """Return the error for a size or an offset in a region that is not named."""
    for key in (BYTE_SIZE, OFFSET):
        if key in parameters:
            return InvalidRequest(f"'{key}' can not be specified without '{REGION}' parameter for tensor '{name}'")
    return None


def sizeless(name: str) -> InvalidRequest:
    """Return the error for a region without the size of the tensor that is in it."""
    return InvalidRequest(f"'{BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{name}'")


def put(tensor: Tensor, part: RegionBytes) -> None:
    """Write an output into shared memory. Raises BackendError if it is too large for its place, 500 as in Triton."""
    if tensor.nbytes > part.size:
        raise BackendError(
            f"shared memory size specified with the request for output '{tensor.name}' ({part.size} bytes) "
            f"should be at least {tensor.nbytes} bytes to hold the results"
        )
    # It may be there already: its model's process has written it.
    if tensor.source is None or not part.begins_with(tensor.source):
        part.write(tensor.data)


def placed(response: InferResponse, parts: Mapping[str, RegionBytes]) -> InferResponse:
    """Write outputs into shared memory and return the response without their bytes. Raises ConchError."""
    outputs = []
    for tensor in response.outputs:
        part = parts.get(tensor.name)
        if part is not None:
            put(tensor, part)
            tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
        outputs.append(tensor)
    return InferResponse(
        response.model_name, response.model_version, outputs, id=response.id, parameters=response.parameters
    )
