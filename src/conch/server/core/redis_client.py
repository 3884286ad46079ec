"""A client of Redis for strings by key: GET and SET over a few connections, by the second version of its protocol.

Redis is untrusted, as what answers in its place is: a reply is a line or a string of bounded size, and anything else
closes the connection. Libraries also read nested lists, of as many entries as a reply announces.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conch.base.control_characters import printable
from conch.base.errors import ConfigError

_DEFAULT_TIMEOUT_MS = 500
_NUMBERS = ("port", "db", "connect_timeout", "socket_timeout", "pool_size", "wait_timeout")
_TLS_FILES = ("cert", "key", "cacert", "cacert_dir")
_TEXTS = ("host", "user", "password", *_TLS_FILES)
REDIS_SETTINGS = (*_TEXTS, *_NUMBERS)
_MAX_LINE_BYTES: Final = 64 << 10
_MAX_SHOWN_CHARACTERS: Final = 200


class RedisError(Exception):
    """Redis refused a command, or what answers is not Redis."""


@dataclass(frozen=True, slots=True, repr=False)
class RedisSettings:
    """Where Redis is, and how to use it. Times are in seconds."""

    host: str
    port: int
    user: str
    password: str
    db: int
    connect_s: float
    socket_s: float
    connections: int
    wait_s: float
    tls: Mapping[str, str]  # paths by the names of their settings

    @classmethod
    def of(cls, settings: Mapping[str, str], environ: Mapping[str, str]) -> "RedisSettings":
        """Read the settings of `--cache-config=redis,…`, and Triton's variables. Raises ConfigError."""
        for name, value in settings.items():
            if name not in REDIS_SETTINGS or (name in _NUMBERS and not (value.isdecimal() and len(value) < 10)):
                expected = "a number" if name in _NUMBERS else f"one of {', '.join(REDIS_SETTINGS)}"
                raise ConfigError(f"--cache-config=redis,{name}=…: expected {expected}")
        if not settings.get("host"):
            raise ConfigError("--cache-config=redis,… needs a host: --cache-config=redis,host=<name>")
        numbers = {name: int(settings[name]) for name in _NUMBERS if name in settings}
        for name, path in settings.items():
            if name in _TLS_FILES and not Path(path).exists():
                raise ConfigError(f"--cache-config=redis,{name}=…: '{path}' does not exist")
        return cls(
            settings["host"],
            numbers.get("port", 6379),
            settings.get("user") or environ.get("TRITONCACHE_REDIS_USERNAME", ""),
            settings.get("password") or environ.get("TRITONCACHE_REDIS_PASSWORD", ""),
            numbers.get("db", 0),
            (numbers.get("connect_timeout") or _DEFAULT_TIMEOUT_MS) / 1000,
            (numbers.get("socket_timeout") or _DEFAULT_TIMEOUT_MS) / 1000,
            max(1, numbers.get("pool_size", 8)),
            numbers.get("wait_timeout", 100) / 1000,
            {name: settings[name] for name in _TLS_FILES if settings.get(name)},
        )

    def __str__(self) -> str:
        """Show where it is, without secrets."""
        return f"Redis at {self.host}:{self.port}"


class RedisClient:
    """Belongs to an event loop. Calls raise RedisError, OSError, ValueError or TimeoutError."""

    def __init__(self, settings: RedisSettings, max_value_bytes: int) -> None:
        """Raises ConfigError for files of TLS that cannot be read."""
        self._settings = settings
        self._max_value_bytes = max_value_bytes
        self._tls = _context(settings.tls) if settings.tls else None
        self._room = asyncio.Semaphore(settings.connections)
        self._idle: list[_Connection] = []

    async def get(self, key: bytes) -> bytes | None:
        """Return a value, None without one."""
        async with self._connection() as connection:
            return await connection.ask(b"GET", key)

    async def set(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        async with self._connection() as connection:
            await connection.ask(b"SET", key, value)

    async def close(self) -> None:
        """Close idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
            await connection.closed()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator["_Connection"]:
        settings = self._settings
        async with asyncio.timeout(settings.wait_s):
            await self._room.acquire()
        connection: _Connection | None = None
        try:
            while self._idle and connection is None:
                connection = self._idle.pop()
                connection = None if connection.is_stale else connection
            if connection is None:
                async with asyncio.timeout(settings.connect_s):
                    connection = await self._connected()
            async with asyncio.timeout(settings.socket_s):
                yield connection
        except BaseException:  # in the middle of a reply, maybe
            if connection is not None:
                connection.close()
            raise
        else:
            self._idle.append(connection)
        finally:
            self._room.release()

    async def _connected(self) -> "_Connection":
        settings = self._settings
        opened = await asyncio.open_connection(settings.host, settings.port, limit=_MAX_LINE_BYTES, ssl=self._tls)
        connection = _Connection(*opened, self._max_value_bytes)
        try:
            if settings.password:
                user = (settings.user.encode(),) if settings.user else ()
                await connection.ask(b"AUTH", *user, settings.password.encode())
            if settings.db:
                await connection.ask(b"SELECT", b"%d" % settings.db)
        except BaseException:
            connection.close()
            raise
        return connection


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_value_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._max_value_bytes = max_value_bytes

    @property
    def is_stale(self) -> bool:
        """Whether it was closed while it was idle."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Return when the connection is closed."""
        with suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, *words: bytes) -> bytes | None:
        """Send a command and return its reply."""
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            parts += (b"$%d\r\n" % len(word), word, b"\r\n")
        self._writer.writelines(parts)
        await self._writer.drain()
        try:
            return await self._reply()
        except asyncio.IncompleteReadError:
            raise RedisError("the connection was closed") from None
        except asyncio.LimitOverrunError:
            raise RedisError("unexpected reply: it is too long") from None

    async def _reply(self) -> bytes | None:
        line = await self._reader.readuntil(b"\r\n")
        kind, text = line[:1], line[1:-2]
        if kind == b"+":
            return text
        if kind == b"-":
            raise RedisError(_shown(text))
        if line == b"$-1\r\n":
            return None
        size = int(text) if kind == b"$" and text.isdigit() and len(text) < 12 else -1
        if not 0 <= size <= self._max_value_bytes:
            raise RedisError(f"unexpected reply {_shown(line[:-2])}")
        return (await self._reader.readexactly(size + 2))[:size]


def _shown(text: bytes) -> str:
    return printable(text[:_MAX_SHOWN_CHARACTERS].decode("utf-8", "replace"))


def _context(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("cacert"), capath=files.get("cacert_dir"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:
        raise ConfigError(f"--cache-config=redis,…: the files of TLS cannot be used: {error}") from None
    return context
