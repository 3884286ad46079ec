"""Redis as the store of cached responses. Where it does not answer, requests are executed as without a cache."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from conch.protocols.cached_responses import MAX_ENCODED_BYTES, MAX_ENTRY_BYTES
from conch.server.core.redis_client import RedisClient, RedisError, RedisSettings

_log = getLogger(__name__)
_T = TypeVar("_T")

_MAX_LOOKUPS = 256
_MAX_INSERTS = 64
_MAX_INSERT_BYTES = 2 * MAX_ENTRY_BYTES
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0


class RedisStore:
    """Asks Redis in tasks; see `EntryStore`. After a failure it is not asked for a while, which doubles."""

    def __init__(self, settings: RedisSettings) -> None:
        """Create the client, which connects at the first request. Raises ConfigError."""
        self._settings = settings
        self._client = RedisClient(settings, MAX_ENCODED_BYTES)
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
        await self._client.close()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _get(self, key: bytes, done: Callable[[bytes | None], None]) -> None:
        entry: bytes | None = None
        try:
            entry = await self._asked(self._client.get(key))
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

    async def _asked(self, reply: Awaitable[_T]) -> _T | None:
        """Return a reply of Redis, None if it fails."""
        try:
            result = await reply
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self._failed(error)
            return None
        if self._pause_s:
            self._pause_s, self.problem = 0.0, ""
            _log.info("the response cache answers again: %s", self._settings)
        return result

    def _failed(self, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.problem = f"{self._settings} does not answer ({cause}); requests are executed without it"
        if not self._pause_s:
            _log.warning("response cache: %s", self.problem)
        self._pause_s = min(self._pause_s * 2 or _FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._closed_until = asyncio.get_running_loop().time() + self._pause_s


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
