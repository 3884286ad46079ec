"""Probe an exporter through a forward: one HTTP GET."""

import asyncio
from enum import Enum
from pathlib import Path


class ProbeResult(Enum):
    """What a probe showed."""

    ANSWERED = "answered"  # status 200 and the beginning of a body
    NO_EXPORTER = "no exporter"  # the connection was closed or answered with another status: the tunnel works
    TIMEOUT = "timeout"  # half-dead: connected, but no answer
    NO_FORWARD = "no forward"  # ssh does not listen


async def probe(where: tuple[str, int] | Path, path: str, timeout_s: float) -> ProbeResult:
    """Send a GET of `path` to an address or a Unix socket, and wait for the status and the first byte of the body."""
    try:
        async with asyncio.timeout(timeout_s):
            opened = asyncio.open_unix_connection(where) if isinstance(where, Path) else asyncio.open_connection(*where)
            reader, writer = await opened
            try:
                return await _exchange(reader, writer, path)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return ProbeResult.TIMEOUT
    except OSError:
        return ProbeResult.NO_FORWARD


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> ProbeResult:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(1)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return ProbeResult.NO_EXPORTER
    status = head.split(b" ", 2)[1:2]
    return ProbeResult.ANSWERED if status == [b"200"] and body else ProbeResult.NO_EXPORTER
