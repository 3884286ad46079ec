"""The client of Redis, asked by what is not Redis. tests/server/test_redis_cache.py has the real one."""

import asyncio
from contextlib import suppress

import pytest

from conch.server.core.redis_client import RedisClient, RedisError, RedisSettings

MAX_BYTES = 1000


async def answer_of(reply: bytes, *, ended: bool = False) -> bytes | None:
    """What a client gets of a server that sends these bytes; the client leaves the connection."""
    left = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"KEY\r\n")
        writer.write(reply)
        if ended:
            writer.write_eof()
        with suppress(ConnectionError):  # the client did not read all
            while await reader.read(65_536):
                pass
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        client = RedisClient(RedisSettings.of({"host": "127.0.0.1", "port": port}, {}), MAX_BYTES)
        try:
            return await client.get(b"KEY")
        except BaseException:
            async with asyncio.timeout(60):
                await left.wait()
            raise
        finally:
            await client.close()
            writers[0].close()
            with suppress(OSError):
                await writers[0].wait_closed()


@pytest.mark.asyncio
@pytest.mark.parametrize(("reply", "value"), [(b"$3\r\na\r\n\r\n", b"a\r\n"), (b"$0\r\n\r\n", b""), (b"$-1\r\n", None)])
async def test_values(reply: bytes, value: bytes | None) -> None:
    assert await answer_of(reply) == value


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply",
    [
        b"$1001\r\n",
        b"$-2\r\n",
        b"$99999999999999\r\n",
        b"*1\r\n" * 2000,
        b"*2000000000\r\n:1\r\n",
        b"%1\r\n*1\r\n:1\r\n:2\r\n",
        b"-ERR \x1b[31m" + b"x" * 1000 + b"\r\n",
        b"+" + b"a" * 200_000,
        b"\xff\x00\r\n",
        b"\r\n",
    ],
)
async def test_other_replies_close_the_connection(reply: bytes) -> None:
    with pytest.raises(RedisError) as refused:
        await answer_of(reply)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.asyncio
@pytest.mark.parametrize("reply", [b"", b"$5\r\nabc"])
async def test_a_reply_that_is_cut_short(reply: bytes) -> None:
    with pytest.raises(RedisError, match="closed"):
        await answer_of(reply, ended=True)


@pytest.mark.asyncio
async def test_a_reply_that_does_not_end() -> None:
    with pytest.raises(TimeoutError):
        await answer_of(b"$5\r\nabc")
