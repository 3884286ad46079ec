"""Redis as the store of cached responses. Where it does not answer, requests are executed as without a cache."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError
from conch.base.extras import install_command
from conch.protocols.cached_responses import MAX_ENTRY_BYTES

_log = getLogger(__name__)

_MAX_LOOKUPS = 256
_MAX_INSERTS = 64
_MAX_INSERT_BYTES = 2 * MAX_ENTRY_BYTES
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_DEFAULT_TIMEOUT_MS = 500
_NUMBERS = ("port", "db", "connect_timeout", "socket_timeout", "pool_size", "wait_timeout")
_TLS_FILES = {"cert": "ssl_certfile", "key": "ssl_keyfile", "cacert": "ssl_ca_certs", "cacert_dir": "ssl_ca_path"}
_TEXTS = ("host", "user", "password", *_TLS_FILES)
REDIS_SETTINGS = (*_TEXTS, *_NUMBERS)


@dataclass(frozen=True, slots=True, repr=False)
class RedisSettings:
    """Where Redis is, and the arguments of its client. Times are in seconds."""

    host: str
    port: int
    user: str
    password: str
    db: int
    connect_s: float
    socket_s: float
    connections: int
    wait_s: float
    tls: Mapping[str, str]  # argument of the client → path

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
            {argument: settings[name] for name, argument in _TLS_FILES.items() if settings.get(name)},
        )

    def __str__(self) -> str:
        """Show where it is, without secrets."""
        return f"Redis at {self.host}:{self.port}"


class RedisStore:
    """Asks Redis in tasks; see `EntryStore`. After a failure it is not asked for a while, which doubles."""

    def __init__(self, settings: RedisSettings) -> None:
        """Create the client, which connects at the first request. Raises ConfigError without the package."""
        self._settings = settings
        self._client, error = _client(settings)
        # The last three: of replies that Redis does not send, such as maps with lists as keys, or deeply nested lists.
        self._errors: tuple[type[Exception], ...] = (
            error,
            OSError,
            TimeoutError,
            ValueError,
            TypeError,
            RecursionError,
        )
        self._lookups = 0
        self._inserts = 0
        self._insert_bytes = 0
        self._pause_s = 0.0
        self._closed_until = 0.0
        self._trying = False  # one request tests whether Redis answers again
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem = ""

    def available(self) -> bool:
        """Whether to ask Redis: not in a pause after a failure, nor while many requests wait for it."""
        if self._pause_s and (self._trying or asyncio.get_running_loop().time() < self._closed_until):
            return False
        return self._lookups < _MAX_LOOKUPS

    def look_up(self, key: bytes, done: Callable[[bytes | None], None]) -> None:
        """Call `done` with the entry of a key, or None."""
        self._lookups += 1
        self._trying = bool(self._pause_s)
        self._run(self._get(key, done))

    def insert(self, key: bytes, entry: bytes) -> None:
        """Store an entry; drop it where Redis fails or many wait."""
        size = len(entry)
        if self._pause_s or self._inserts >= _MAX_INSERTS or self._insert_bytes + size > _MAX_INSERT_BYTES:
            return
        self._inserts += 1
        self._insert_bytes += size
        self._run(self._put(key, entry))

    async def close(self) -> None:
        """Close the connections; look-ups in flight end without an entry."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _get(self, key: bytes, done: Callable[[bytes | None], None]) -> None:
        entry: bytes | None = None
        try:
            value = await self._asked(self._client.get(key))
            entry = value if isinstance(value, bytes) else None
        finally:
            self._lookups -= 1
            self._trying = False
            done(entry)

    async def _put(self, key: bytes, entry: bytes) -> None:
        try:
            await self._asked(self._client.set(key, entry))
        finally:
            self._inserts -= 1
            self._insert_bytes -= len(entry)

    async def _asked(self, reply: Awaitable[object]) -> object:
        """Return a reply of Redis, None if it fails."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_s + settings.socket_s + settings.wait_s):
                result = await reply
        except self._errors as error:
            self._failed(error)
            return None
        if self._pause_s:
            self._pause_s, self.problem = 0.0, ""
            _log.info("the response cache answers again: %s", settings)
        return result

    def _failed(self, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.problem = f"{self._settings} does not answer ({cause}); requests are executed without it"
        if not self._pause_s:
            _log.warning("response cache: %s", self.problem)
        self._pause_s = min(self._pause_s * 2 or _FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._closed_until = asyncio.get_running_loop().time() + self._pause_s


def _client(settings: RedisSettings) -> tuple[Any, type[Exception]]:
    try:
        from redis import RedisError
        from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigError(f"--cache-config=redis,… needs the package 'redis': {install_command('redis')}") from None
    tls: dict[str, Any] = {"connection_class": SSLConnection, **settings.tls} if settings.tls else {}
    pool = BlockingConnectionPool(
        max_connections=settings.connections,
        timeout=settings.wait_s,
        host=settings.host,
        port=settings.port,
        db=settings.db,
        username=settings.user or None,
        password=settings.password or None,
        socket_connect_timeout=settings.connect_s,
        socket_timeout=settings.socket_s,
        retry=Retry(NoBackoff(), 0),
        **tls,
    )
    return Redis(connection_pool=pool), RedisError


def content_identity(document: Mapping[str, Any], folder: Path, labels: Sequence[str], version: int) -> bytes:
    """Return a digest of a model version: its configuration and its files. Reads them all.

    Servers with equal files share entries; a model whose weights have changed gets none of the former ones.
    """
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    root = folder / str(version)
    files = [*(path for path in sorted(root.rglob("*")) if path.is_file()), *(folder / name for name in sorted(labels))]
    for path in files:
        if "__pycache__" in path.parts:
            continue
        with path.open("rb") as file:
            digest.update(b"%s\0" % str(path.relative_to(folder)).encode("utf-8", "surrogateescape"))
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()
