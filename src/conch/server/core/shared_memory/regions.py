"""Shared memory regions of clients: POSIX shared memory objects, registered by name and used by requests.

Tensors are copied out of regions and into them, once for each direction, because an object belongs to its client, which
may change or truncate it at any time (see `fault_guard`). The copy goes directly to the memory that the model reads;
before that, a tensor refers to its part of a region.
"""

import mmap
import os
import stat
from collections import deque
from collections.abc import Container
from pathlib import PurePosixPath
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt

from conch.base.errors import Code, ConchError, InvalidRequest, NotFound, Unavailable
from conch.domain.tensor import Buffer, Source
from conch.server.backends.child.conch_child.ipc.fault_guard import FaultGuard
from conch.server.core.shared_memory.cuda_regions import CudaRegion, OpenMemory, open_memory

_OBJECTS = PurePosixPath("/dev/shm")  # noqa: S108 - where shm_open puts them
# Triton's prefix for memory that its server shares with models. Here that memory has no name to register.
_RESERVED_PREFIX = "triton_python_backend_shm_region_"
# Objects of libraries and of other programs, not tensors of clients: semaphores, NCCL, CUDA, OpenMP, multiprocessing,
# databases, browsers. A hidden name is not a client's either.
_FOREIGN_PREFIXES = (
    *(".", "sem.", "nccl-", "cuda.shm.", "__KMP_REGISTERED_LIB_", "pymp-", "torch_", "loky-"),
    *("PostgreSQL.", "pulse-shm-", "org.chromium."),
)
# Each region holds a file descriptor.
MAX_REGIONS = 4096
_MAX_REPORTED_NAMES = 100
_GIB = 2**30


class Region:
    """A region of a shared memory object, mapped until the last request that uses it has ended."""

    kind = "system"
    __slots__ = ("_begin", "_broken", "_bytes", "_guard", "_map", "_object", "byte_size", "key", "name", "offset")

    def __init__(
        self, name: str, key: str, path: str, offset: int, byte_size: int, descriptor: int, guard: FaultGuard
    ) -> None:
        """Map the region. Raises InvalidRequest if it is not within its object."""
        self.name = name
        self.key = key
        self.offset = offset  # of the region in the object, in bytes
        self.byte_size = byte_size
        status = os.fstat(descriptor)
        size = status.st_size
        self._object = (path, status.st_dev, status.st_ino)
        if byte_size <= 0 or offset < 0 or offset + byte_size > size:
            raise InvalidRequest(
                f"failed to register shared memory region '{name}': invalid args: object '{key}' has {size} bytes, "
                f"the region is to have {byte_size} from offset {offset} on"
            )
        self._begin = offset % mmap.ALLOCATIONGRANULARITY
        try:
            self._map = mmap.mmap(descriptor, self._begin + byte_size, offset=offset - self._begin)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"failed to register shared memory region '{name}': {error}") from None
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._guard = guard
        self._broken = False

    @property
    def row(self) -> dict[str, Any]:
        """Its row in the status of regions, by Triton's names."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}

    def location(self, offset: int, size: int) -> tuple[object, ...] | None:
        """Return how another process locates a part; None if the region can no longer be used."""
        return None if self._broken else (*self._object, self.offset, self.byte_size, offset, size)

    def read_into(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill `target` from `offset` of the region on. Raises ConchError if the object was truncated."""
        self._copy(target, self._part(offset, len(target)), offset + len(target))

    def write(self, data: Buffer, offset: int) -> None:
        """Write to `offset` of the region. Raises ConchError if the object was truncated."""
        source = np.frombuffer(data, np.uint8)
        self._copy(self._part(offset, len(source)), source, offset + len(source))

    def _part(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        return self._bytes[self._begin + offset : self._begin + offset + size]

    def _copy(self, target: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8], needed: int) -> None:
        size = self._map.size() - self.offset  # the current size of the object
        if needed <= size and not self._broken:
            if self._guard.copy(target, source, self._bytes):
                return
            size = self._map.size() - self.offset
        self._broken = True
        if size < self.byte_size:
            raise InvalidRequest(
                f"shared memory region '{self.name}' has only {max(size, 0)} of the {self.byte_size} bytes that were "
                f"registered, {needed} are needed: its object '{self.key}' has been made smaller"
            )
        raise Unavailable(
            f"shared memory region '{self.name}' cannot be used any more, since its object '{self.key}' was made "
            "smaller for a time or its memory has run out; register it again"
        )


class RegionPart:
    """A range of bytes of a region."""

    __slots__ = ("_memory", "_offset", "_region", "_use", "size")

    def __init__(
        self, memory: "SharedMemory", region: Region | CudaRegion, use: "_Use", offset: int, size: int
    ) -> None:
        self._memory = memory
        self._use = use
        self._region = region
        self._offset = offset
        self.size = size

    def read(self) -> memoryview:
        """Return a copy of the bytes. Raises InvalidRequest if the object was truncated, Unavailable."""
        copy = self._memory.room(self.size)
        self._region.read_into(copy, self._offset)
        return copy.data

    def room(self) -> npt.NDArray[np.uint8]:
        """Return memory for a copy. Raises Unavailable."""
        return self._memory.room(self.size)

    def read_into(self, target: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Fill an array with the bytes from `offset` of the part on. Raises InvalidRequest or Unavailable."""
        self._region.read_into(target, self._offset + offset)

    @property
    def location(self) -> tuple[object, ...] | None:
        """How another process locates the part; None if the region can no longer be used."""
        return self._region.location(self._offset, self.size)

    def first(self, size: int) -> "RegionPart":
        """Return the beginning of the part."""
        return RegionPart(self._memory, self._region, self._use, self._offset, size)

    def begins_with(self, source: Source) -> bool:
        """Whether the source is the beginning of the part."""
        return isinstance(source, RegionPart) and source._region is self._region and source._offset == self._offset

    def write(self, data: Buffer, offset: int = 0) -> None:
        """Write bytes to `offset` of the part. Raises InvalidRequest or Unavailable."""
        self._region.write(data, self._offset + offset)


class _Use:
    """Lives as long as a request has a part of a region."""

    __slots__ = ("__weakref__",)


class SharedMemory:
    """The regions of all clients, by name. All methods belong to the event loop's thread.

    A region that a request uses cannot be unregistered: the client would free memory that is still written.
    """

    resolves = True

    def __init__(
        self,
        limit: int = 4 * _GIB,
        open_cuda: OpenMemory = open_memory,
        *,
        prefix: str = "",
        own: Container[int] = frozenset(),
    ) -> None:
        """Create the registry. `limit` bounds the bytes that requests hold in copies out of regions.

        A sparse object takes no memory, so without a bound a short request could allocate any amount. Names of objects
        must begin with `prefix`; `own` are the inodes of the server's objects.
        """
        self._prefix = prefix
        self._own = own
        self._limit = limit
        self._open_cuda = open_cuda
        self._regions: dict[str, Region | CudaRegion] = {}
        self._uses: WeakValueDictionary[str, _Use] = WeakValueDictionary()  # by the name of the region
        self._guard = FaultGuard()
        self._guarded = False
        self._held = 0
        self._freed: deque[int] = deque()  # sizes of copies that were freed, by any thread

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes from `offset` of the object `key` as region `name`. Raises ConchError."""
        path = _path(name, key)
        self._check_new(name)
        if not self._guarded:
            self._guard.install()
            self._guarded = True
        self._check_prefix(name, key)
        descriptor = _open(path, key)
        try:
            if os.fstat(descriptor).st_ino in self._own:
                raise _not_of_clients(name, key, "it belongs to an engine of this server")
            if not name:
                raise _missing_name("system")
            self._regions[name] = Region(name, key, path, offset, byte_size, descriptor, self._guard)
        finally:
            os.close(descriptor)  # the mapping does not need it

    def _check_prefix(self, name: str, key: str) -> None:
        plain = key.lstrip("/")  # as shm_open does
        if not plain.startswith(self._prefix):
            raise _not_of_clients(name, key, f"names begin with '{self._prefix}' here (--client-shm-prefix)")
        if not self._prefix and plain.startswith(_FOREIGN_PREFIXES):
            raise _not_of_clients(name, key, "its name is that of a library or of another program")

    def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> None:
        """Register the first `byte_size` bytes of a CUDA IPC handle's memory as region `name`.

        Raises InvalidRequest, also without GPUs, and Unavailable.
        """
        self._check_new(name)
        region = CudaRegion(name, handle, device, byte_size, self._open_cuda)
        if not name:
            raise _missing_name("cuda")
        self._regions[name] = region

    def unregister(self, name: str, kind: str) -> None:
        """Unregister a region of a kind, "system" or "cuda"; all of them if the name is empty. Ignores unknown names.

        Raises ConchError for regions that requests use.
        """
        regions = [region for region in self._named(name) if region.kind == kind]
        used = [region.name for region in regions if region.name in self._uses]
        for region in regions:
            if region.name not in used:
                del self._regions[region.name]
        if used and name:
            raise ConchError(f"Cannot unregister shared memory region '{name}', it is currently in use.")
        if used:
            names = "".join(f"{region} ," for region in used[:_MAX_REPORTED_NAMES])
            raise ConchError(f"Failed to unregister the following {kind} shared memory regions: {names}")

    def status(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return the row of one region of a kind, "system" or "cuda"; all of them if the name is empty.

        Raises NotFound.
        """
        regions = self._named(name)
        if name and not regions:
            raise NotFound(f"Unable to find {kind} shared memory region: '{name}'")
        rows = [region.row for region in regions if region.kind == kind]
        if name and not rows:
            shown = {"system": "system", "cuda": "CUDA"}
            raise NotFound(
                f"The region named '{name}' is registered as {shown[regions[0].kind]} shared memory, not {shown[kind]} "
                "shared memory"
            )
        return rows

    def _named(self, name: str) -> list[Region | CudaRegion]:
        """Return the region of that name, if there is one; all regions if the name is empty."""
        if name:
            return [self._regions[name]] if name in self._regions else []
        return [region for _, region in sorted(self._regions.items())]

    def _check_new(self, name: str) -> None:
        """Raise InvalidRequest if the name is taken, Unavailable at the maximum number of regions."""
        if name in self._regions:
            raise InvalidRequest(f"shared memory region '{name}' already in manager", Code.ALREADY_EXISTS)
        if len(self._regions) >= MAX_REGIONS:
            raise Unavailable(
                f"failed to register shared memory region '{name}': {MAX_REGIONS} regions are registered, "
                "which is the maximum"
            )

    def part(self, region: str, offset: int, size: int) -> RegionPart:
        """Return bytes of a region. Raises NotFound for the region, InvalidRequest if they are not within it."""
        registered = self._regions.get(region)
        if registered is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        if not 0 <= offset < registered.byte_size:
            raise InvalidRequest(
                f"Invalid offset for shared memory region: '{region}': {offset} is not within its "
                f"{registered.byte_size} bytes"
            )
        if not 0 <= size <= registered.byte_size - offset:
            raise InvalidRequest(
                f"Invalid offset + byte size for shared memory region: '{region}': {offset} + {size} is not within its "
                f"{registered.byte_size} bytes"
            )
        use = self._uses.get(region)
        if use is None:
            use = self._uses[region] = _Use()
        return RegionPart(self, registered, use, offset, size)

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory to copy bytes into, which counts against the limit until it is freed. Raises Unavailable."""
        while self._freed:
            self._held -= self._freed.popleft()
        if self._held + size > self._limit:
            raise Unavailable(
                f"no room for {size} bytes from shared memory: requests hold {self._held} bytes, "
                f"the maximum is {self._limit}"
            )
        array = np.empty(size, np.uint8)
        self._held += size
        finalize(array, self._freed.append, size).atexit = False
        return array


def _missing_name(kind: str) -> InvalidRequest:
    return InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


def _path(name: str, key: str) -> str:
    """Return the path of an object. Raises ConchError for an invalid or reserved key."""
    plain = key.lstrip("/")  # as shm_open does
    if not plain or "/" in plain or "\0" in plain or plain in (".", ".."):
        raise ConchError(
            f"Unable to open shared memory region: '{key}': a key is '/' and a name without any further '/'"
        )
    if plain.startswith(_RESERVED_PREFIX):
        raise InvalidRequest(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED_PREFIX}'"
        )
    return str(_OBJECTS / plain)


def _not_of_clients(name: str, key: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"failed to register shared memory region '{name}' with key '{key}': {reason}")


def _open(path: str, key: str) -> int:
    """Open an object as shm_open does. Raises ConchError, INTERNAL as in Triton."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ConchError(f"Unable to open shared memory region: '{key}': {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConchError(f"Unable to open shared memory region: '{key}': it is not a shared memory object")
    return descriptor
