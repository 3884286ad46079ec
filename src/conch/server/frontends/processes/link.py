# Compiled by mypyc in wheels.
"""The link between the core and one frontend process: messages on a Unix socket pair, large tensors in shared memory.

Frames are those of `conch_child/ipc/wire.py`; each carries all messages of one turn of the event loop, so that many
requests cost one system call. Both ends trust each other: they are one program and one user. A message is a tuple whose
first item is its kind:

    to the core                                        from the core
    INFER, GENERATE: a request                         ANSWER, DELTAS: a response or an error of it
    FORWARD: an HTTP request as it came                RAW: bytes of its answer; RAW_END: it is complete
    CALL: a unary gRPC call as it came                 CALLED: its answer
    EXPLAIN: a call that asks where its time went      EXPLAINED: its short form
    CANCEL: a request or call needs no answer
    FINISH: a generation is to end as if the model had
    WRITABLE: whether a client keeps up
    EXCHANGE: a row of the event log
    LIMITED: a request that was refused over a limit
    STARTED, STOPPED, REPORT, LOG, REFUSED, FORGOT     OPTIONS, CATALOG, STATE, COMMAND
    RELEASED: blocks of shared memory are free         RELEASED

A tensor of more than 64 KiB lies in an arena of the end that sends it (`conch_child/ipc/arena.py`); the reader uses it
in place. One that does not fit the arena travels in the frame: slower, but without failure.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from conch.base.errors import ConchError
from conch.domain.request import InferResponse, Timeline
from conch.domain.tensor import Buffer, Tensor
from conch.server.backends.child.conch_child.ipc.arena import MAX_INLINE_BYTES, ArenaReader, ArenaWriter
from conch.server.backends.child.conch_child.ipc.wire import FrameDecoder, encode_to_child
from conch.server.frontends.processes.values import describe_error, restored_error

(
    INFER,
    ANSWER,
    GENERATE,
    DELTAS,
    FORWARD,
    RAW,
    RAW_END,
    CALL,
    CALLED,
    CANCEL,
    FINISH,
    WRITABLE,
    REFUSED,
    OPTIONS,
    CATALOG,
    STATE,
    COMMAND,
    STARTED,
    STOPPED,
    REPORT,
    LOG,
    RELEASED,
    EXCHANGE,
    EXPLAIN,
    EXPLAINED,
    LIMITED,
    FORGOT,
) = range(27)

_log: Final = logging.getLogger(__name__)

Message = tuple[Any, ...]

# A header of a frame is as large as the messages of one turn: those of clients are bounded where they are received.
_MAX_FRAME_BYTES: Final = 2**32 - 1


class FrontendLink:
    """One end. `handle` is called with each message, `lost` once when the other process has ended."""

    def __init__(
        self, handle: Callable[[Message], None], lost: Callable[[], None], outgoing: int, incoming: int
    ) -> None:
        """Map the arenas, whose descriptors may be closed afterwards."""
        self._handle = handle
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        # Dropped with the connection, and not left to the garbage collector: they may be large.
        self._arena: ArenaWriter | None = ArenaWriter(outgoing)
        self._blocks: ArenaReader | None = ArenaReader(incoming, self._on_release)
        self._decoder = FrameDecoder(max_header=_MAX_FRAME_BYTES)
        self._unsent: list[Message] = []
        self._transport: asyncio.Transport | None = None

    @property
    def protocol(self) -> asyncio.Protocol:
        """The link as an asyncio protocol: it has a protocol's methods without being a subclass."""
        return cast("asyncio.Protocol", self)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: Message) -> None:
        """Send a message with the others of this turn of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send the messages that wait."""
        released = None if self._blocks is None else self._blocks.take_released()
        if released:
            self._unsent.append((RELEASED, released))
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_to_child(tuple(unsent)))

    def trim(self, keep: int) -> None:
        """Return memory of the arena above `keep` bytes to the system, if nothing uses it."""
        if self._arena is not None:
            self._arena.trim(keep)

    def close(self) -> None:
        """Close the connection; `lost` is called."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self.connection_lost(None)

    def packed(self, data: Buffer) -> object:
        """Return the bytes of a tensor as they travel: themselves, or the offset and size of a block that has them."""
        size = len(data) if type(data) is bytes else memoryview(data).nbytes
        if size <= MAX_INLINE_BYTES:
            return data
        offset = None if self._arena is None else self._arena.write(data, size)
        return data if offset is None else (offset, size)

    def unpacked(self, packed: object) -> Buffer:
        """Return the bytes of a tensor: those of a block in place."""
        if type(packed) is tuple:
            offset, size = packed
            assert self._blocks is not None  # messages come over the connection
            array = self._blocks.view(offset, size)
            return cast("memoryview", array.data)
        return cast("bytes", packed)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to send."""
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete.

        A failure ends the link, since a request could wait forever, once the log of a process is with the core.
        """
        try:
            for messages, _ in self._decoder.feed(data):
                for message in messages:
                    if message[0] == RELEASED:
                        assert self._arena is not None
                        self._arena.free(message[1])
                    else:
                        self._handle(message)
        except Exception:
            _log.exception("a message between core and frontend process failed; the process ends")
            self.flush()
            if self._transport is not None:
                self._transport.close()

    def eof_received(self) -> bool:
        """Close: the other process has ended."""
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Report the end of the other process."""
        if self._arena is None:
            return
        self._arena = self._blocks = None
        self._decoder.clear()
        self._unsent.clear()
        self._lost()

    def pause_writing(self) -> None:
        """Continue: what is sent is bounded by the requests in flight, and a process that does not read is replaced."""

    def resume_writing(self) -> None:
        """Do nothing."""

    def _on_release(self) -> None:
        # In whatever thread has dropped the last view of a block.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.flush)


def encode_answer(link: FrontendLink, answer: InferResponse | ConchError | None) -> object:
    """Return a response or an error as it travels."""
    if isinstance(answer, InferResponse):
        outputs = [
            (
                tensor.name,
                tensor.datatype,
                tensor.shape,
                link.packed(tensor.data) if tensor.source is None else tensor.nbytes,
            )
            for tensor in answer.outputs
        ]
        return (answer.model_name, answer.model_version, answer.id, outputs, answer.parameters, answer.degraded)
    return None if answer is None else [describe_error(answer)]


def decode_answer(link: FrontendLink, encoded: Any) -> InferResponse | ConchError | None:
    """Return the response or error that was encoded; outputs in clients' shared memory have a `Placed` source."""
    if encoded is None:
        return None
    if type(encoded) is list:
        return restored_error(encoded[0])
    model, version, request_id, outputs, parameters, degraded = encoded
    tensors = [
        Tensor(name, datatype, shape, b"", Placed(data))
        if type(data) is int
        else Tensor(name, datatype, shape, link.unpacked(data))
        for name, datatype, shape, data in outputs
    ]
    response = InferResponse(model, version, tensors, id=request_id, parameters=parameters)
    response.degraded = degraded
    return response


def times_of(timeline: Timeline) -> tuple[int, ...]:
    """Return what the core continues of a timeline."""
    return (timeline.received, timeline.deadline, timeline.first_token_by, timeline.exchange)


def timeline_of(times: Sequence[int]) -> Timeline:
    """Return the timeline that was sent."""
    timeline = Timeline(times[0])
    timeline.deadline, timeline.first_token_by, timeline.exchange = times[1], times[2], times[3]
    return timeline


class Placed:
    """The source of an output that the core has written to the client's shared memory, and that of a region's range.

    A request of a frontend process names ranges; the core reads and writes them.
    """

    __slots__ = ("offset", "region", "size")

    def __init__(self, size: int, region: str = "", offset: int = 0) -> None:
        self.size = size
        self.region = region
        self.offset = offset

    @property
    def location(self) -> tuple[object, ...] | None:
        """None: the core decides who writes it."""
        return None

    def first(self, size: int) -> "Placed":
        """Return its first `size` bytes."""
        return Placed(size, self.region, self.offset)

    def begins_with(self, source: object) -> bool:
        """Whether the output lies there already, which the core has seen to."""
        return isinstance(source, Placed)

    def read(self) -> Buffer:
        """Return no bytes: they are in the client's memory."""
        return b""

    def room(self) -> Any:
        """Raise: the core has the memory."""
        raise ConchError("internal error")

    def read_into(self, target: Any, offset: int = 0) -> None:  # noqa: ARG002 - see `room`
        """Raise: the core has the memory."""
        raise ConchError("internal error")

    def write(self, data: Buffer, offset: int = 0) -> None:  # noqa: ARG002 - see `room`
        """Raise: the core has written it."""
        raise ConchError("internal error")


class NamedRegions:
    """The regions of a frontend process: names, which the core looks up."""

    resolves = False

    def part(self, region: str, offset: int, size: int) -> Placed:
        """Return a range of a region."""
        return Placed(size, region, offset)
