"""Tensors in clients' shared memory: parameters of requests, and access to registered regions.

A client registers a region of shared memory under a name. An input or output then has the parameters
`shared_memory_region`, `shared_memory_byte_size` and `shared_memory_offset` instead of bytes. Codecs access regions
through the protocol `Regions` only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from conch.base.errors import BackendError, InvalidRequest, Unsupported, request_prefix
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import BYTES, Destination, Tensor, byte_size

REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"


class RegionBytes(Destination, Protocol):
    """A range of bytes of a region, which cannot be unregistered while this exists."""


class Regions(Protocol):
    """The regions that clients have registered. `resolves`: they are here, not in another process that checks sizes."""

    resolves: bool

    def part(self, region: str, offset: int, size: int) -> RegionBytes:
        """Return a range of a region. Raises NotFound for the region, InvalidRequest for a range outside it."""


class _NoRegions:
    """The regions of a server that does not allow client shared memory."""

    resolves = True

    def part(self, region: str, offset: int, size: int) -> RegionBytes:  # noqa: ARG002 - always an error
        raise not_allowed(f"'{REGION}', here '{region}',")


NO_REGIONS: Final[Regions] = _NoRegions()


def not_allowed(what: str) -> Unsupported:
    """Return the error for the use of shared memory on a server without --allow-client-shm."""
    return Unsupported(
        f"{what} needs client shared memory, which this server does not allow; start it with --allow-client-shm=true"
    )


def missing_name(kind: str) -> InvalidRequest:
    """Return the error for a registration without a name; `kind` is `system` or `cuda`."""
    return InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


class Window(NamedTuple):
    """The range of a region that a request names for a tensor."""

    region: str
    offset: int
    size: int

    def input(self, regions: Regions, name: str, datatype: str, shape: Sequence[int], request: InferRequest) -> Tensor:
        """Return an input whose source is this range. Raises ConchError for an invalid range or size."""
        part = regions.part(self.region, self.offset, self.size)
        # Checked before the bytes are read: the region may be much larger than the tensor.
        if regions.resolves and datatype != BYTES and self.size != (expected := byte_size(datatype, shape)):
            raise InvalidRequest(
                f"{request_prefix(request.id)}input byte size mismatch for input '{name}' for model "
                f"'{request.model_name}'. Expected {expected}, got {self.size} in shared memory region '{self.region}'"
            )
        return Tensor(name, datatype, shape, source=part)

    def output(self, regions: Regions) -> RegionBytes:
        """Return the destination of an output. Raises ConchError for an invalid range."""
        return regions.part(self.region, self.offset, self.size)


def missing_region(parameters: Iterable[str], name: str) -> InvalidRequest | None:
    """Return the error for a size or an offset without a region, if there is one."""
    for key in (BYTE_SIZE, OFFSET):
        if key in parameters:
            return InvalidRequest(f"'{key}' can not be specified without '{REGION}' parameter for tensor '{name}'")
    return None


def missing_size(name: str) -> InvalidRequest:
    """Return the error for a region without a size."""
    return InvalidRequest(f"'{BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{name}'")


def write_output(tensor: Tensor, part: RegionBytes) -> None:
    """Write an output to shared memory. Raises BackendError if it is too large, which is 500 as in Triton."""
    if tensor.nbytes > part.size:
        raise BackendError(
            f"shared memory size specified with the request for output '{tensor.name}' ({part.size} bytes) "
            f"should be at least {tensor.nbytes} bytes to hold the results"
        )
    # The model's process may have written it already.
    if tensor.source is None or not part.begins_with(tensor.source):
        part.write(tensor.data)


def write_outputs(response: InferResponse, parts: Mapping[str, RegionBytes]) -> InferResponse:
    """Write outputs to shared memory and return the response without their bytes. Raises ConchError."""
    outputs = []
    for tensor in response.outputs:
        part = parts.get(tensor.name)
        if part is not None:
            write_output(tensor, part)
            tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
        outputs.append(tensor)
    return InferResponse(
        response.model_name, response.model_version, outputs, id=response.id, parameters=response.parameters
    )
