"""`conch repo pack`, `pull` and `tag`: push models to a registry, pull them from it and name them."""

import filecmp
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import uniform
from time import monotonic, sleep
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, TaskID

from conch.base.errors import ConfigError, NotFound, Unavailable, Unreachable
from conch.base.files.atomic import atomic_replace
from conch.clients.repository.progress import fetch_progress, progress_bar
from conch.server.repository.disk_space import require_space
from conch.server.repository.remote.location import parse_image
from conch.server.repository.remote.mirror import Mirror, open_mirror
from conch.server.repository.remote.oci.packing import ModelLayer, write_image
from conch.server.repository.remote.oci.registry import Registry
from conch.server.repository.roots import LocalRoot

_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0
_Result = TypeVar("_Result")


def pack(path: str, reference: str, models: Sequence[str], *, base: str = "") -> int:
    """Push models of a directory as an image; return 0. Raises ConchError.

    `base` is an image whose layers lie below the models; they are then below `/models`.
    """
    console = Console()
    image = parse_image(reference)
    if not image.tag:
        raise ConfigError(f"'{reference}' has a digest; a push needs a tag, such as {image.name}:1")
    registry = Registry(image, writes=True)
    names = _chosen(LocalRoot(Path(path)).scan(), models, path)
    below = parse_image(base) if base else None
    layers = [ModelLayer(Path(path) / name, "models/" if below else "") for name in names]
    with progress_bar(console) as progress:
        for layer in layers:
            task = progress.add_task(f"reading {layer.name}", total=None)
            size, digest = layer.size_and_digest
            if registry.has_blob(digest):
                progress.update(task, description=f"{layer.name}: unchanged", total=size, completed=size)
                continue
            progress.update(task, description=layer.name, total=size)
            registry.write_blob(digest, size, partial(_with_progress, layer, progress, task))
    digest = write_image(registry, image.tag, layers, Registry(below) if below else None)
    console.print(f"{image}@{digest}", highlight=False, soft_wrap=True)
    return 0


def tag(reference: str, name: str) -> int:
    """Give an image another tag; return 0. Raises ConchError."""
    image = parse_image(reference)
    target = parse_image(f"{image.registry}/{image.name}:{name}")
    registry = Registry(image, writes=True)
    body, digest = registry.manifest(image.reference)
    registry.write_manifest(target.tag, body)
    Console().print(f"{target}@{digest}", highlight=False, soft_wrap=True)
    return 0


def pull(
    repository: str,
    path: str,
    models: Sequence[str],
    *,
    cache: str,
    cache_limit: int,
    replace: bool,
    verify_key: str = "",
    platform: str = "",
    retry_s: float = 0.0,
) -> int:
    """Write models of an image, or of a repository by its URL, to a directory; return 0. Raises ConchError."""
    console = Console()
    with fetch_progress(console) as progress:
        mirror = open_mirror(
            image_url(repository), cache, progress=progress, verify_key=verify_key, platform=platform,
            cache_limit=cache_limit,
        )  # fmt: skip
        names, others = scan(mirror, models, retry_s)
        target = Path(path)
        written = []
        for name in names:
            place = mirror.find(name)
            if place is None:
                raise NotFound(f"model '{name}' was removed from {mirror} in the meantime")
            written.append(_write(place.directory, target / name, replace=replace))
            shutil.rmtree(place.directory, ignore_errors=True)
    if not progress.fetched:
        console.print(f"all files of {mirror} are in the cache", highlight=False, soft_wrap=True, markup=False)
    for name, new in zip(names, written, strict=True):
        state = "" if new else "  (unchanged)"
        console.print(f"{target / name}{state}", highlight=False, soft_wrap=True, markup=False)
    say_skipped(console, others)
    return 0


def image_url(repository: str) -> str:
    """Return a URL as it is, and an image as its URL."""
    return repository if "://" in repository else f"oci://{repository}"


def scan(mirror: Mirror, models: Sequence[str], retry_s: float) -> tuple[list[str], list[str]]:
    """Return the requested models, all without a request, and the folders that are not models.

    A repository that does not answer is asked again for `retry_s`. Raises ConchError.
    """
    found = retried(mirror.scan, retry_s)
    others = {name for name, files in found.items() if not _is_model([path for path, *_ in files])}
    names = _chosen(found.keys() - others.difference(models), models, str(mirror))
    return names, sorted(others.difference(models))


def say_skipped(console: Console, names: Iterable[str]) -> None:
    """Print the folders that are not models."""
    for name in names:
        text = f"skipped: {name}, which has neither config.pbtxt nor a version folder"
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def retried(action: Callable[[], _Result], retry_s: float) -> _Result:
    """Return the result of an action, repeated for `retry_s` while its repository does not answer.

    Raises the errors of the action.
    """
    deadline_s, delay_s, said = monotonic() + retry_s, _FIRST_DELAY_S, ""
    while True:
        try:
            return action()
        except Unreachable as error:
            # Pods that start together must not ask together.
            wait_s = delay_s * uniform(0.5, 1)  # noqa: S311
            if monotonic() + wait_s > deadline_s:
                raise
            cause = "no answer" if error.message == said else error.message
            print(f"{cause}; retrying in {wait_s:.1f} s", file=sys.stderr, flush=True)
            said = error.message
        sleep(wait_s)
        delay_s = min(2 * delay_s, _MAX_DELAY_S)


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
            if _alike(source, target):
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


def _alike(one: Path, other: Path) -> bool:
    files, others = ({path.relative_to(top) for path in top.rglob("*")} for top in (one, other))
    return files == others and all(
        filecmp.cmp(one / path, other / path, shallow=False) for path in files if (one / path).is_file()
    )


def _with_progress(layer: ModelLayer, progress: Progress, task: TaskID) -> Iterator[bytes]:
    for chunk in layer.content():
        yield chunk
        progress.advance(task, len(chunk))
