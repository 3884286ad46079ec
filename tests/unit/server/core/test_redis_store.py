"""The response cache in Redis, asked by what is not Redis. tests/server/test_redis_cache.py has the real one."""

import asyncio
from contextlib import suppress

import pytest

pytest.importorskip(
    "redis", reason="the client of Redis comes with the extra dev-all, which `make quick` does not install"
)

from conch.server.core.redis_store import RedisSettings, RedisStore


async def entry_of(reply: bytes) -> tuple[bytes | None, str]:
    """The entry that a store gets of a server that sends these bytes, and what it then reports."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            command: list[bytes] = []
            while command[1:2] != [b"GET\r\n"]:  # the client first says what it is
                if command:
                    writer.write(b"+OK\r\n")
                count = int((await reader.readuntil(b"\r\n"))[1:])
                command = [await reader.readuntil(b"\r\n") for _ in range(2 * count)]
            writer.write(reply)
            with suppress(ConnectionError):
                await reader.read()
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        store = RedisStore(RedisSettings.of({"host": "127.0.0.1", "port": port}, {}))
        entry: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        store.look_up(b"KEY", entry.set_result)
        try:
            return await entry, store.problem
        finally:
            await store.close()


@pytest.mark.asyncio
async def test_a_value() -> None:
    assert await entry_of(b"$3\r\na\r\n\r\n") == (b"a\r\n", "")


@pytest.mark.asyncio
@pytest.mark.parametrize("reply", [b"*1\r\n" * 3000, b"%1\r\n*1\r\n:1\r\n:2\r\n", b"\xff\x00\r\n", b"-ERR x\r\n"])
async def test_other_replies_are_misses_and_are_reported(reply: bytes) -> None:
    entry, problem = await entry_of(reply)
    assert entry is None
    assert "does not answer" in problem
