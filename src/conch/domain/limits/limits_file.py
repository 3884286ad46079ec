"""Limits from a YAML file, read again when it changes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from conch.base.errors import ConfigError
from conch.domain.limits.limit import LimitKey, read_limits

POLL_S = 0.5
MAX_FILE_BYTES = 4 * 2**20
_INSTALL = "reading YAML needs the package pyyaml; install it with: pip install 'conch-server[monitoring]'"


def read_limits_file(path: Path) -> dict[LimitKey, int]:
    """Read a file of limits. Raises ConfigError with its line where that is known."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"'{path}' exceeds the maximum of {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'{path}' is not UTF-8 text") from None
    return read_limits_text(text, f"'{path}'")


def read_limits_text(text: str, where: str) -> dict[LimitKey, int]:
    """Read limits from YAML, of which JSON is a part. Raises ConfigError."""
    try:
        from conch.base.yaml_documents import YamlError, load_documents
    except ModuleNotFoundError:
        raise ConfigError(_INSTALL) from None
    try:
        documents = load_documents(text, unique_keys=True)
    except YamlError as error:
        raise ConfigError(f"line {error.line} of {where}: {error}") from None
    if len(documents) > 1:
        raise ConfigError(f"{where} has {len(documents)} documents; write one")
    if not documents:
        return {}
    document = documents[0]
    return read_limits(document.value, where, lambda index: document.line(("limits", index)))


async def watch_limits_file(path: Path, changed: Callable[[], Awaitable[None]]) -> None:
    """Call `changed` when the file has changed, is replaced, appears or disappears."""
    known = await asyncio.to_thread(_stat, path)
    while True:
        await asyncio.sleep(POLL_S)
        found = await asyncio.to_thread(_stat, path)
        if found != known:
            known = found
            await changed()


def _stat(path: Path) -> tuple[int, ...]:
    """Return time, size and inode, which differ when the file has changed; () if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
