"""What all proxies do."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Protocol

from conch.base.errors import Unavailable
from conch.operate.fleet.child import Child
from conch.operate.fleet.replica import Replica

_START_TIMEOUT_S = 30.0
_POLL_S = 0.05


class Proxy(Protocol):
    """A proxy on 127.0.0.1. Life: `start`, `update` again and again, `stop`."""

    child: Child

    async def start(self) -> None:
        """Listen, without replicas. Raises Unavailable."""

    async def update(self, ready: Sequence[Replica]) -> None:
        """Send new requests to these replicas only; requests in flight elsewhere continue."""

    async def stop(self) -> None:
        """End."""


async def until_listening(child: Child, ports: Sequence[int], log: Path) -> None:
    """Return when a proxy accepts connections on all ports. Raises Unavailable with its log."""
    deadline = monotonic() + _START_TIMEOUT_S
    for port in ports:
        while not await _accepts(port):
            if child.status is not None or monotonic() > deadline:
                raise Unavailable(f"{log.stem} does not listen: {child.tail.strip()}")
            await asyncio.sleep(_POLL_S)


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
