"""`conch repo pull --sync`: make a directory equal to an image, as an init container does with an empty volume.

    DIR/<model>/…                 hard links to the cache
    DIR/.conch-cache/             the cache, so that the next run fetches only what has changed
    DIR/.conch-cache/synced.json  the models that this command has written, which it may remove

All models are complete beside the directory's before the first one is renamed: an interruption leaves the old ones.
"""

import fcntl
import filecmp
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from conch.base.errors import NotFound, Unavailable
from conch.base.files.atomic import atomic_replace
from conch.clients.repository.progress import fetch_progress
from conch.clients.repository.transfer import image_url, retried, say_skipped, scan
from conch.server.repository.remote.cache import link_or_copy
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.store import is_folder_name

_CACHE = ".conch-cache"
_RECORD = "synced.json"
_ABANDONED = ".conch-????????"  # folders of `atomic_replace`, which a killed process leaves behind


def sync(
    repository: str,
    path: str,
    models: Sequence[str],
    *,
    cache: str,
    cache_limit: int,
    verify_key: str,
    platform: str,
    retry_s: float,
) -> int:
    """Make a directory equal to the models of an image, or some of them; return 0. Raises ConchError."""
    console = Console()
    target = Path(path)
    own = target / _CACHE
    with _locked(target, own):
        with fetch_progress(console) as progress:
            mirror = open_mirror(
                image_url(repository), cache or str(own), progress=progress, verify_key=verify_key, platform=platform,
                shared=not cache, cache_limit=cache_limit,
            )  # fmt: skip
            names, others = scan(mirror, models, retry_s)
            changed = _write(mirror, names, target, retry_s)
        removed = _remove_others(target, own / _RECORD, names)
    for name in sorted({*names, *removed}):
        state = "removed" if name in removed else "" if name in changed else "unchanged"
        console.print(f"{target / name}{state and f'  ({state})'}", highlight=False, soft_wrap=True, markup=False)
    say_skipped(console, others)
    return 0


@contextmanager
def _locked(target: Path, own: Path) -> Iterator[None]:
    """Let one process at a time write the directory, as pods that share a volume start together."""
    try:
        own.mkdir(parents=True, exist_ok=True)
        lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(f"'{target}' cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for abandoned in target.glob(_ABANDONED):
            shutil.rmtree(abandoned, ignore_errors=True)
        yield
    finally:
        os.close(lock)


def _write(mirror: Mirror, names: Sequence[str], target: Path, retry_s: float) -> set[str]:
    """Write the models that differ, and return their names."""
    changed = set()
    with ExitStack() as renames:  # at its end, after the last model is complete
        for name in names:
            place = retried(partial(mirror.find, name), retry_s)
            if place is None:
                raise NotFound(f"model '{name}' was removed from {mirror} in the meantime")
            if not _equal(place.directory, target / name):
                folder = renames.enter_context(atomic_replace(target / name, replace=True))
                shutil.copytree(place.directory, folder, copy_function=link_or_copy, dirs_exist_ok=True)
                changed.add(name)
            shutil.rmtree(place.directory, ignore_errors=True)
    return changed


def _remove_others(target: Path, record: Path, names: Sequence[str]) -> list[str]:
    """Remove the models of an earlier run that the image does not have, and return their names."""
    removed = sorted(set(_recorded(record)) - set(names))
    try:
        for name in removed:
            shutil.rmtree(target / name, ignore_errors=True)
        record.write_text(json.dumps(list(names)), encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"'{target}' cannot be written: {error.strerror or error}") from error
    return removed


def _recorded(record: Path) -> list[str]:
    try:
        return [name for name in json.loads(record.read_text(encoding="utf-8")) if is_folder_name(name)]
    except (OSError, ValueError, TypeError):
        return []


def _equal(source: Path, target: Path) -> bool:
    """Whether two folders have the same files. Equal sizes and times suffice: the cache derives times from contents."""
    if not target.is_dir():
        return False
    files, others = ({path.relative_to(top) for path in top.rglob("*")} for top in (source, target))
    return files == others and all(
        filecmp.cmp(source / path, target / path) for path in files if (source / path).is_file()
    )
