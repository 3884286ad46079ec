"""`conch repo pack`, `pull` and `tag`: push models to a registry, pull them from it and name them.

`pull --sync` makes a directory equal to an image, as an init container does with an empty volume:

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
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import random
from time import monotonic, sleep
from typing import TypeVar

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from conch.base.command_line.say import say
from conch.base.errors import ConfigError, NotFound, Unavailable, Unreachable
from conch.base.files.atomic import atomic_replace, replace_file
from conch.base.pacing import backoff_s
from conch.server.repository.disk_space import require_space
from conch.server.repository.model_location import ModelLocation
from conch.server.repository.remote.cache import link_or_copy
from conch.server.repository.remote.location import parse_image
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.remote.oci.packing import ModelLayer, write_image
from conch.server.repository.remote.oci.registry import Registry
from conch.server.repository.roots import LocalRoot
from conch.server.repository.store import is_folder_name

_LINE_EVERY_S = 5.0
_MIN_BAR_COLUMNS = 60


class Fetched:
    """Counts the bytes of a download. Thread-safe."""

    def __init__(self) -> None:
        self.expected = 0
        self.fetched = 0
        self._lock = threading.Lock()

    def expect(self, count: int) -> None:
        """Add bytes that are to be fetched."""
        with self._lock:
            self.expected += count
            self.show()

    def received(self, count: int) -> None:
        """Add bytes that were received."""
        with self._lock:
            self.fetched += count
            self.show()

    def show(self) -> None:
        """Show the counts. Called with the lock held."""


class FetchBar(Fetched):
    """Shows the counts in a bar, which is invisible until the first byte, so that a failure prints no empty bar."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("fetching", total=None, visible=False)

    def show(self) -> None:
        """Update the bar."""
        self._bar.update(self._task, total=self.expected, completed=self.fetched, visible=self.fetched > 0)


class FetchLines(Fetched):
    """Prints the counts in lines to stderr, at most one every few seconds, and one at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._begun_s = monotonic()
        self._next_s = self._begun_s + _LINE_EVERY_S

    def show(self) -> None:
        """Print a line if it is due."""
        now_s = monotonic()
        if now_s >= self._next_s or (self.fetched and self.fetched == self.expected):
            self._next_s = now_s + _LINE_EVERY_S
            rate = round(self.fetched / max(now_s - self._begun_s, 0.001))
            left_s = (self.expected - self.fetched) / max(rate, 1)
            left = f", {left_s:.0f} s left" if left_s else ""
            say(f"fetched {decimal(self.fetched)} of {decimal(self.expected)} ({decimal(rate)}/s{left})")


@contextmanager
def fetch_progress(console: Console) -> Iterator[Fetched]:
    """Yield the counter of a download, shown as it suits the console."""
    if not console.is_terminal:
        yield FetchLines()
        return
    with progress_bar(console) as bar:
        yield FetchBar(bar)


def progress_bar(console: Console) -> Progress:
    """Return a bar with size, speed and remaining time; figures alone on a narrow console."""
    whole = partial(Column, no_wrap=True, overflow="crop")  # an ellipsis is several characters in ASCII
    figures = (
        DownloadColumn(table_column=whole()),
        TransferSpeedColumn(whole()),
        TimeRemainingColumn(table_column=whole()),
    )
    if console.width < _MIN_BAR_COLUMNS:
        return Progress(*figures, console=console)
    text = TextColumn("{task.description}", markup=False, table_column=whole())
    return Progress(text, BarColumn(), *figures, console=console)


_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0
_CACHE = ".conch-cache"
_RECORD = "synced.json"
_ABANDONED = ".conch-????????"  # folders of `atomic_replace`, which a killed process leaves behind
_Result = TypeVar("_Result")


def pack(given: Namespace) -> int:
    """Push models of a directory as an image; return 0. Raises ConchError.

    `modelcar` is an image whose layers lie below the models; they are then below `/models`.
    """
    console = Console(stderr=True)
    image = parse_image(given.reference)
    if not image.tag:
        raise ConfigError(f"'{given.reference}' has a digest; a push needs a tag, such as {image.name}:1")
    registry = Registry(image, writes=True)
    path = Path(given.path)
    names = _chosen(LocalRoot(path).scan(), given.model, given.path)
    below = parse_image(given.modelcar) if given.modelcar else None
    layers = [ModelLayer(path / name, "models/" if below else "") for name in names]
    with progress_bar(console) as progress:
        for layer in layers:
            task = progress.add_task(f"reading {layer.name}", total=None, visible=console.is_terminal)
            size, digest = layer.size_and_digest
            if registry.has_blob(digest):
                progress.update(task, description=f"{layer.name}: unchanged", total=size, completed=size, visible=True)
                continue
            progress.update(task, description=layer.name, total=size)
            registry.write_blob(digest, size, partial(_with_progress, layer, progress, task))
            progress.update(task, visible=True)
    digest = write_image(registry, image.tag, layers, Registry(below) if below else None)
    Console().print(f"{image}@{digest}", highlight=False, soft_wrap=True)
    return 0


def tag(given: Namespace) -> int:
    """Give an image another tag; return 0. Raises ConchError."""
    image = parse_image(given.reference)
    target = parse_image(f"{image.registry}/{image.name}:{given.tag}")
    registry = Registry(image, writes=True)
    body, digest = registry.manifest(image.reference)
    registry.write_manifest(target.tag, body)
    Console().print(f"{target}@{digest}", highlight=False, soft_wrap=True)
    return 0


def pull(given: Namespace) -> int:
    """Write models of an image, or of a repository by its URL, to a directory; return 0. Raises ConchError."""
    console, target = Console(), Path(given.path)
    with fetched(given, console) as (folders, others):
        for name, folder in folders.items():
            new = _write(folder, target / name, replace=given.replace)
            _say(console, f"{target / name}{'' if new else '  (unchanged)'}")
    _say_skipped(console, others)
    return 0


@contextmanager
def fetched(given: Namespace, console: Console) -> Iterator[tuple[dict[str, Path], list[str]]]:
    """Fetch the models of an image or a repository; yield their folders by name, and the folders that are not models.

    The folders end with the block. Raises ConchError.
    """
    with ExitStack() as folders:
        with fetch_progress(console) as progress:
            mirror = _mirror(given, given.repository_cache, progress)
            names, others = _scan(mirror, given)
            directories = {name: _location(mirror, name).directory for name in names}
            for folder in directories.values():
                folders.callback(shutil.rmtree, folder, ignore_errors=True)
        if not progress.fetched:
            _say(console, f"all files of {mirror} are in the cache")
        yield directories, others


def sync(given: Namespace) -> int:
    """Make a directory equal to the models of an image, or some of them; return 0. Raises ConchError."""
    console, target = Console(), Path(given.path)
    own = target / _CACHE
    with _locked(target, own):
        with fetch_progress(console) as progress:
            cache = given.repository_cache
            mirror = _mirror(given, cache or str(own), progress, shared=not cache)
            names, others = _scan(mirror, given)
            changed = _write_changed(mirror, names, target, given.retry_secs)
        removed = _remove_others(target, own / _RECORD, names)
    for name in sorted({*names, *removed}):
        state = "removed" if name in removed else "" if name in changed else "unchanged"
        _say(console, f"{target / name}{state and f'  ({state})'}")
    _say_skipped(console, others)
    return 0


def _mirror(given: Namespace, cache: str, progress: Fetched, *, shared: bool = False) -> Mirror:
    """Open the cache of a repository, which is a URL or an image."""
    url = given.repository if "://" in given.repository else f"oci://{given.repository}"
    return open_mirror(
        url, cache, progress=progress, verify_key=given.verify_key, platform=given.platform, shared=shared,
        cache_limit=given.repository_cache_limit,
    )  # fmt: skip


def _scan(mirror: Mirror, given: Namespace) -> tuple[list[str], list[str]]:
    """Return the requested models, all without a request, and the folders that are not models. Raises ConchError."""
    models = given.model
    fingerprints = _retried(mirror.scan, given.retry_secs)
    others = {name for name, files in fingerprints.items() if not _is_model([path for path, *_ in files])}
    names = _chosen(fingerprints.keys() - others.difference(models), models, str(mirror))
    return names, sorted(others.difference(models))


def _location(mirror: Mirror, name: str) -> ModelLocation:
    place = mirror.find(name)
    if place is None:
        raise NotFound(f"model '{name}' was removed from {mirror} in the meantime")
    return place


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _say_skipped(console: Console, names: Iterable[str]) -> None:
    for name in names:
        _say(console, f"skipped: {name}, which has neither config.pbtxt nor a version folder")


def _retried(action: Callable[[], _Result], retry_s: float) -> _Result:
    """Return the result of an action, repeated for `retry_s` while its repository does not answer.

    Raises the errors of the action.
    """
    deadline_s, failures, said = monotonic() + retry_s, 0, ""
    while True:
        try:
            return action()
        except Unreachable as error:
            failures += 1
            wait_s = backoff_s(failures, _FIRST_DELAY_S, _MAX_DELAY_S, random())  # noqa: S311 - jitter for pods that start together
            if monotonic() + wait_s > deadline_s:
                raise
            cause = "no answer" if error.message == said else error.message
            say(f"{cause}; retrying in {wait_s:.1f} s")
            said = error.message
        sleep(wait_s)


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


def _write_changed(mirror: Mirror, names: Sequence[str], target: Path, retry_s: float) -> set[str]:
    """Write the models that differ, and return their names."""
    changed = set()
    with ExitStack() as renames:  # at its end, after the last model is complete
        for name in names:
            place = _retried(partial(_location, mirror, name), retry_s)
            if not _alike(place.directory, target / name, shallow=True):
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
        replace_file(record, json.dumps(list(names)).encode())
    except OSError as error:
        raise Unavailable(f"'{target}' cannot be written: {error.strerror or error}") from error
    return removed


def _recorded(record: Path) -> list[str]:
    try:
        return [name for name in json.loads(record.read_text(encoding="utf-8")) if is_folder_name(name)]
    except (OSError, ValueError, TypeError):
        return []


def _is_model(files: Sequence[str]) -> bool:
    """Whether a folder with these relative paths is a model's."""
    return any(path == "config.pbtxt" or path.partition("/")[0].isdecimal() for path in files)


def _chosen(available: Iterable[str], requested: Sequence[str], where: str) -> list[str]:
    known = sorted(available)
    missing = sorted(set(requested) - set(known))
    if missing:
        raise NotFound(f"there is no model '{missing[0]}' in {where}; found {', '.join(known) or 'none'}")
    if not known:
        raise NotFound(f"there are no models in {where}")
    return sorted(set(requested)) or known


def _write(source: Path, target: Path, *, replace: bool) -> bool:
    """Copy a model to its target atomically; return False if the target is already identical."""
    if target.exists():
        try:
            if _alike(source, target, shallow=False):
                return False
        except OSError as error:
            raise Unavailable(f"'{target}' cannot be read: {error.strerror or error}") from error
        if not replace:
            raise ConfigError(f"'{target}' exists and differs; --replace replaces it")
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    require_space(target.parent, size, f"'{target}'", "name a directory on another disk")
    with atomic_replace(target, replace=True) as folder:
        # Copied, not linked: changes by the user must not affect the cache.
        shutil.copytree(source, folder, copy_function=_copy, dirs_exist_ok=True)
    return True


def _copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)


def _alike(source: Path, target: Path, *, shallow: bool) -> bool:
    """Whether two folders have the same files. `shallow`: equal sizes and times suffice, as in copies of the cache."""
    if not target.is_dir():
        return False
    files, others = ({path.relative_to(top) for path in top.rglob("*")} for top in (source, target))
    return files == others and all(
        filecmp.cmp(source / path, target / path, shallow) for path in files if (source / path).is_file()
    )


def _with_progress(layer: ModelLayer, progress: Progress, task: TaskID) -> Iterator[bytes]:
    for chunk in layer.content():
        yield chunk
        progress.advance(task, len(chunk))
