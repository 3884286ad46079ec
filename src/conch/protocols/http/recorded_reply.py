# Compiled by mypyc in wheels.
"""Replies to requests that the server makes itself, without a connection."""

from collections.abc import Callable

from conch.domain.tensor import Buffer
from conch.protocols.http.reply import ReplyChannel

_END_OF_HEAD = b"\r\n\r\n"


class RecordedReply(ReplyChannel):
    """Collects an answer of known size. `done` is called once with its status, head and body."""

    def __init__(self, done: Callable[[int, bytes, bytes], None]) -> None:
        super().__init__()
        self._done: Callable[[int, bytes, bytes], None] | None = done
        self._written = bytearray()

    @property
    def peer(self) -> str:
        """The address of no client."""
        return ""

    def write(self, data: Buffer) -> None:
        """Collect a buffer."""
        self._written += data

    def write_parts(self, parts: list[Buffer]) -> None:
        """Collect several buffers."""
        for part in parts:
            self._written += part

    def finished(self, keep_alive: bool) -> None:  # noqa: ARG002
        """Report the answer."""
        head, _, body = bytes(self._written).partition(_END_OF_HEAD)
        self._report(int(head.split(b" ", 2)[1]), head, body)

    def abort(self) -> None:
        """Report that the server failed."""
        self._report(500, b"", b"{}")

    def count_status(self, status: int) -> None:
        """Do nothing: the answer is not one to a client."""

    async def drained(self) -> None:
        """Return at once: nothing waits."""

    def _report(self, status: int, head: bytes, body: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status, head, body)
