"""API keys: read from files, compared in constant time, reloaded when a file changes.

A line of `--api-key-file` is `<name> <scope>[,<scope>…] <key>`; empty lines and lines that begin with `#` do not count.
A line of `--openai-api-key-file` is a key.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from conch.base.errors import ConfigError
from conch.base.files.stamps import file_stamp

_log = logging.getLogger(__name__)

INFER, MANAGE, METRICS, DEBUG = "infer", "manage", "metrics", "debug"
SCOPES = (INFER, MANAGE, METRICS, DEBUG)
# The scopes of an OpenAI API key where there is no file with scopes.
_OPENAI_SCOPES = frozenset((INFER, MANAGE))
WATCH_S = 1.0
_REPEAT_S = 60.0  # between log lines while a file is missing or invalid
_BEARER = b"bearer"


class ApiKey(NamedTuple):
    """An API key, of which only the digest is kept."""

    name: str
    scopes: frozenset[str]
    digest: bytes


class ApiKeys:
    """The keys of one server. Life: `load` → `watch`. Belongs to the event loop's thread."""

    def __init__(self, path: str = "", openai_keys: Iterable[str] = (), openai_path: str = "") -> None:
        """`path` and `openai_path` are files, "" for none; `openai_keys` are further keys."""
        self._path = path
        self._openai_path = openai_path
        self._openai_keys = tuple(openai_keys)
        # Keys are looked up by a salted hash, so that the duration of a look-up reveals nothing.
        self._salt = secrets.token_bytes(32)
        self._keys: dict[bytes, ApiKey] = {}
        self._stamps: list[tuple[int, ...]] = []
        self.version = 0  # changes with the keys
        self._failure = ""  # why the files could not be read at the last check
        self._logged_s = 0.0  # monotonic

    def __bool__(self) -> bool:
        return bool(self._path or self._openai_path or self._openai_keys)

    @property
    def scoped(self) -> bool:
        """Whether there is a file with scopes, so that everything but health needs a key."""
        return bool(self._path)

    def load(self) -> None:
        """Read the files. Raises ConfigError."""
        stamps = self._read_stamps()
        keys = self._read()
        if not keys:
            flag = "--api-key-file" if self._path else "--openai-api-key-file"
            raise ConfigError(f"{flag}: '{self._path or self._openai_path}' contains no keys")
        self._replace(keys, stamps)

    @property
    def up(self) -> bool:
        """Whether the keys are those of the files: a missing or invalid file leaves the previous ones valid."""
        return not self._failure

    async def watch(self) -> None:
        """Reload files that change; a missing or invalid file leaves the keys unchanged, an empty one removes all.

        Keys that may have been revoked stay valid then, because a failed mount must not lock out all clients; the log
        repeats it.
        """
        while self._path or self._openai_path:
            await asyncio.sleep(WATCH_S)
            stamps = await asyncio.to_thread(self._read_stamps)
            if stamps == self._stamps:
                self._repeat_failure()
                continue
            try:
                keys = await asyncio.to_thread(self._read)
            except ConfigError as error:
                self._stamps = stamps
                self._failure = error.message
                self._logged_s = 0.0
                self._repeat_failure()
            else:
                self._failure = ""
                self._replace(keys, stamps)
                _log.info("API keys reloaded: %d", len(keys))

    def _repeat_failure(self) -> None:
        now_s = monotonic()
        if self._failure and (not self._logged_s or now_s - self._logged_s > _REPEAT_S):
            self._logged_s = now_s
            _log.error(
                "API keys not reloaded, keeping the previous ones, %d keys stay valid: %s",
                len(self._keys),
                self._failure,
            )

    def find(self, authorization: bytes) -> ApiKey | None:
        """Return the key that a value of the header `authorization` has as its bearer token, None if it is not one."""
        scheme, _, token = authorization.partition(b" ")
        digest = self._digest(token.strip())
        key = self._keys.get(digest)
        if key is None or scheme.lower() != _BEARER or not hmac.compare_digest(key.digest, digest):
            return None
        return key

    def _replace(self, keys: list[ApiKey], stamps: list[tuple[int, ...]]) -> None:
        self._keys = {key.digest: key for key in keys}
        self._stamps = stamps
        self.version += 1

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()

    def _read_stamps(self) -> list[tuple[int, ...]]:
        return [file_stamp(path) for path in (self._path, self._openai_path)]

    def _read(self) -> list[ApiKey]:
        keys: list[ApiKey] = []
        if self._path:
            keys += self._scoped_keys()
        openai = [(f"openai-{number}", key) for number, key in enumerate(self._openai_keys, 1)]
        for number, line in _lines(self._openai_path, "--openai-api-key-file"):
            if len(line.split()) != 1:
                raise ConfigError(
                    f"--openai-api-key-file: line {number} of '{self._openai_path}' must be one key alone"
                )
            openai.append((f"openai-file-{number}", line))
        scopes = frozenset((INFER,)) if self._path else _OPENAI_SCOPES
        known = {key.digest for key in keys}
        for name, text in openai:
            digest = self._digest(text.encode())
            if digest not in known:  # the file with scopes has precedence
                keys.append(ApiKey(name, scopes, digest))
        return keys

    def _scoped_keys(self) -> Iterator[ApiKey]:
        names: set[str] = set()
        digests: set[bytes] = set()
        for number, line in _lines(self._path, "--api-key-file"):
            where = f"--api-key-file: line {number} of '{self._path}'"
            words = line.split()
            if len(words) != 3:
                raise ConfigError(f"{where} is not of the form <name> <scope>[,<scope>…] <key>")
            name, listed, text = words
            scopes = frozenset(listed.split(","))
            unknown = sorted(scopes - set(SCOPES))
            if unknown:
                raise ConfigError(f"{where}: unknown scope '{unknown[0]}', expected {', '.join(SCOPES)}")
            digest = self._digest(text.encode())
            if name in names or digest in digests:
                raise ConfigError(f"{where}: the {'name' if name in names else 'key'} is given more than once")
            names.add(name)
            digests.add(digest)
            yield ApiKey(name, scopes, digest)


def _lines(path: str, flag: str) -> Iterator[tuple[int, str]]:
    """Yield numbers and texts of the lines that count. Raises ConfigError."""
    if not path:
        return
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: '{path}' is not UTF-8 text") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("%s: '%s' is accessible to other users (mode %04o); chmod 600 it", flag, path, mode & 0o7777)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped
