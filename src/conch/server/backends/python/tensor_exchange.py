# Compiled by mypyc in wheels.
"""Tensors of requests and responses in shared memory: the server's ends of the two arenas of one process."""

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from conch.base.errors import ConchError
from conch.domain.request import InferRequest
from conch.domain.scheduling.flow import MIN_ROOM_BYTES
from conch.domain.sliced_copy import MIN_SLICED_BYTES, SlicedCopy
from conch.domain.tensor import Buffer, Destination, Tensor
from conch.server.backends.child.conch_child.ipc.arena import (
    KEPT,
    LENT,
    ArenaReader,
    ArenaWriter,
    Parcel,
    create,
)
from conch.server.backends.child.conch_child.ipc.metric_area import AREA_BYTES
from conch.server.backends.child.conch_child.ipc.wire import MAX_PAYLOAD_SIZE, Message, WireError
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.processes import untrusted

# Released outputs are reported with the next batch, or after this time in a message by themselves.
_RELEASE_AFTER_S: Final = 0.005
# An instance that was idle for this time frees the shared memory above its kept size.
_TRIM_AFTER_S: Final = 10.0
# Smaller tensors are copied to the process: it may read them, and then has to fetch them first.
MIN_KEPT_BYTES: Final = 2**20
# What is kept for one process; it is in memory that other processes could reuse.
MAX_KEPT_BYTES: Final = 256 * 2**20


class _Kept:
    """A tensor that is kept for the process, which has not released it."""

    __slots__ = ("data", "fetched", "label")

    def __init__(self, data: memoryview, label: tuple[str, str]) -> None:
        self.data = data
        self.label = label
        self.fetched = False


class _Room:
    """A block of inputs that is filled before the request for the process is made."""

    __slots__ = ("sent", "view")

    def __init__(self, view: "weakref.ref[Any]") -> None:
        self.view = view  # dead when no tensor of the server refers to the block
        self.sent = 0  # how often it was sent, without what the process has released


class TensorExchange:
    """Two arenas of `size` bytes each. `on_release` is called, in any thread, when the process may reuse an output.

    Raises OSError where the system gives no more memory or descriptors.
    """

    def __init__(self, name: str, size: int, on_release: Callable[[], None]) -> None:
        # For the process to inherit; to be closed afterwards.
        self.descriptors: list[int] = []
        self._kept: dict[int, _Kept] = {}  # by place
        self._kept_bytes = 0
        self._kept_places = count(KEPT)
        self._rooms: dict[int, _Room] = {}  # by offset
        try:
            self.descriptors.append(create(f"conch {name} inputs", size))
            self.descriptors.append(create(f"conch {name} outputs", size, AREA_BYTES))
            self.inputs = ArenaWriter(self.descriptors[0])
            self.outputs = ArenaReader(self.descriptors[1], on_release, AREA_BYTES)
        except OSError:
            self.close_descriptors()
            raise

    def close_descriptors(self) -> None:
        """Close the descriptors, which only the process needs; the memory stays while either side maps it."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def parcel(self) -> Parcel:
        """Return an empty parcel for the tensors of one message."""
        return Parcel(self.inputs)

    def encode(self, key: int, request: InferRequest, parcel: Parcel) -> tuple[Any, ...]:
        """Return a request's part of an EXECUTE message; its tensors go into the parcel.

        Raises ConchError if a tensor cannot be read from its source; then the parcel has none of the request's tensors.
        """
        return (
            key,
            request.id,
            request.correlation_id,
            request.flags,
            request.timeout_us,
            request.parameters or None,
            request.outputs,
            None if request.span is None else request.span.context,
            self.place(request.inputs, parcel, key),
            None if request.destinations is None else _locations(request.destinations),
        )

    def place(self, tensors: list[Tensor], parcel: Parcel, key: int = 0) -> list[tuple[Any, ...]]:
        """Put tensors into a parcel and return their descriptions for a message. Raises as `encode`.

        Large tensors are added to `parcel.copies` with the key of their request, and copied later.
        """
        placed = []
        blocks = len(parcel.blocks)
        copies = 0 if parcel.copies is None else len(parcel.copies)
        for tensor in tensors:
            size = tensor.nbytes
            if self._rooms and size >= MIN_ROOM_BYTES and tensor.source is None:
                offset = self._room_of(tensor.data)
                if offset is not None:
                    placed.append((tensor.name, tensor.datatype, tensor.shape, offset, size))
                    continue
            if size >= MIN_SLICED_BYTES and (block := parcel.reserve(size)) is not None:
                source = tensor.source if tensor.source is not None else tensor.data
                if parcel.copies is None:
                    parcel.copies = []
                parcel.copies.append(SlicedCopy(block[1], source, key))
                placed.append((tensor.name, tensor.datatype, tensor.shape, block[0], size))
                continue
            try:
                place = parcel.fill(size, tensor.source.read_into) if tensor.source is not None else None
                if place is None:
                    place = parcel.put(tensor.data, size)
            except ConchError:
                if parcel.copies is not None:
                    del parcel.copies[copies:]
                self._unsend(placed)
                parcel.discard(blocks)
                raise
            placed.append((tensor.name, tensor.datatype, tensor.shape, place, size))
        return placed

    def drop_failed(self, requests: list[tuple[Any, ...]], parcel: Parcel) -> dict[int, ConchError]:
        """Remove the requests (as returned by `encode`) with a tensor that could not be copied; return the errors."""
        errors = {copy.key: copy.error for copy in parcel.copies or () if copy.error is not None}
        for encoded in [request for request in requests if request[0] in errors]:
            requests.remove(encoded)
            self._unsend(encoded[8])
            self.inputs.discard([place for *_, place, _ in encoded[8] if place >= 0 and place not in self._rooms])
        return errors

    def room(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Allocate memory for an input, which is not copied if it is sent to this process; None if it has too little.

        May be called in any thread.
        """
        block = self.inputs.reserve(size)
        if block is None:
            return None
        array: npt.NDArray[np.uint8] = self.inputs.own(block[0], size)
        self._rooms[block[0]] = _Room(weakref.ref(array))
        return array

    def sweep(self) -> None:
        """Free rooms that no tensor of the server refers to and the process has released."""
        for offset in [offset for offset, room in self._rooms.items() if not room.sent and room.view() is None]:
            del self._rooms[offset]
            self.inputs.discard((offset,))

    def _room_of(self, data: Buffer) -> int | None:
        """Return the offset of the room that these bytes are, which is then sent once more."""
        self.sweep()
        offset = self.inputs.offset_of(np.frombuffer(data, np.uint8))
        room = self._rooms.get(-1 if offset is None else offset)
        view = None if room is None else room.view()
        if room is None or view is None or len(view) != len(data):
            return None
        room.sent += 1
        return offset

    def _unsend(self, placed: Sequence[tuple[Any, ...]]) -> None:
        for *_, place, _ in placed:
            if place in self._rooms:
                self._rooms[place].sent -= 1

    def keep(self, data: Buffer, label: tuple[str, str]) -> int | None:
        """Keep a tensor's bytes for the process; return their place, or None if it has too many already."""
        view = memoryview(data).cast("B")
        if self._kept_bytes + len(view) > MAX_KEPT_BYTES:
            return None
        self._kept_bytes += len(view)
        place = next(self._kept_places)
        self._kept[place] = _Kept(view, label)
        return place

    def fetch(self, place: int) -> tuple[memoryview, tuple[str, str]]:
        """Return the bytes at a place and their label. Raises WireError for the second time."""
        kept = self._kept.get(place)
        if kept is None or kept.fetched:
            raise WireError(f"no tensor to fetch is kept at place {place}")
        kept.fetched = True
        return kept.data, kept.label

    def release(self, released: Any) -> None:
        """Free the blocks and places that a message of the process reports. Raises WireError."""
        if released == []:
            return
        offsets = untrusted.integers(released, 0, untrusted.MAX_COUNT, "a released offset")
        blocks = []
        for place in offsets:
            if place in self._rooms:
                room = self._rooms[place]
                if not room.sent:
                    raise WireError(f"the block at offset {place} was not sent")
                room.sent -= 1
            elif not KEPT <= place < LENT:
                blocks.append(place)
            elif (kept := self._kept.pop(place, None)) is not None:
                self._kept_bytes -= len(kept.data)
            else:
                raise WireError(f"no tensor is kept at place {place}")
        self.inputs.free(blocks)

    def decode(
        self,
        outputs: Any,
        payload: memoryview,
        destinations: Mapping[str, Destination] | None = None,
    ) -> list[Tensor]:
        """Return the tensors of a response or a BLS call: views of the message, or of shared memory until they die.

        Outputs that the process has written to the client's shared memory (`destinations`) refer to it. Raises
        WireError for a description that is not valid, or a tensor outside of the message or the memory.
        """
        tensors = []
        for output in untrusted.array(outputs, "tensors"):
            name, datatype, shape, place, size = untrusted.items(output, 5, "a tensor")
            untrusted.check_tensor(name, datatype, shape, size)
            if place is not None:
                tensors.append(Tensor(name, datatype, shape, self.data(name, place, size, payload)))
            elif destinations is not None:
                destination = destinations.get(name)
                if destination is None or not 0 <= size <= destination.size:
                    raise WireError(f"the client has no shared memory for '{name}' of {size} bytes")
                tensors.append(Tensor(name, datatype, shape, source=destination.first(size)))
        return tensors

    def data(self, name: str, place: Any, size: int, payload: memoryview) -> memoryview:
        """Return the data at a place in shared memory, or in the message. Raises WireError if it is outside of them."""
        untrusted.integer(place, -MAX_PAYLOAD_SIZE, untrusted.MAX_COUNT, "the place of a tensor")
        if place >= LENT:
            data = memoryview(self.outputs.borrow(place, size, self.inputs))
        elif place in self._kept:
            data = self._kept[place].data
        else:
            data = memoryview(self.outputs.view(place, size)) if place >= 0 else payload[~place : ~place + size]
        if len(data) != size:
            raise WireError(f"'{name}' ends outside of its message")
        return data


def _locations(destinations: Mapping[str, Destination]) -> dict[str, tuple[object, ...]]:
    return {
        name: location for name, destination in destinations.items() if (location := destination.location) is not None
    }


class ArenaTrimmer:
    """`send` sends the process a message; `idle` returns whether no request is in flight. Life: `start` → `stop`."""

    def __init__(self, send: Callable[[Message], None], idle: Callable[[], bool], kept_size: int) -> None:
        self._send = send
        self._idle = idle
        self._kept_size = kept_size
        self._loop = asyncio.get_running_loop()
        self._tensors: TensorExchange | None = None
        self._worked_at = 0.0
        self._release_timer: asyncio.TimerHandle | None = None
        self._trim_timer: asyncio.TimerHandle | None = None

    def start(self, tensors: TensorExchange) -> None:
        """Trim these arenas from now on."""
        self._tensors = tensors

    def stop(self) -> None:
        """Stop the timers; the process has exited."""
        self._tensors = None
        for timer in (self._release_timer, self._trim_timer):
            if timer is not None:
                timer.cancel()

    def output_released(self) -> None:
        """Release outputs soon, as the process may reuse one. Called in any thread."""
        if self._release_timer is None and self._tensors is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._arm_release)

    def worked(self) -> None:
        """Release memory later, as the process has finished a batch."""
        self._worked_at = monotonic()
        self._arm_trim()

    def _arm_release(self) -> None:
        if self._release_timer is None and self._tensors is not None:
            self._release_timer = self._loop.call_later(_RELEASE_AFTER_S, self._release)

    def _release(self) -> None:
        self._release_timer = None
        released = self._tensors.outputs.take_released() if self._tensors is not None else ()
        if released:
            self._send((messages.RELEASE, released))

    def _arm_trim(self) -> None:
        tensors = self._tensors
        if self._trim_timer is None and tensors is not None:
            used = max(tensors.inputs.high_water, tensors.outputs.high_water)
            if used > self._kept_size:
                self._trim_timer = self._loop.call_later(_TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        self._trim_timer = None
        tensors = self._tensors
        if tensors is not None and self._idle() and monotonic() - self._worked_at >= _TRIM_AFTER_S:
            self._release()
            tensors.sweep()
            tensors.inputs.trim(self._kept_size)
            if not tensors.outputs.in_use:
                tensors.outputs.high_water = self._kept_size
            self._send((messages.TRIM,))
        self._arm_trim()
