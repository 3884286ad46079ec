"""`conch repo pack` and `conch repo pull`: push models to a registry and pull them from it."""

import filecmp
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from conch.errors import ConfigError, NotFound, Unavailable
from conch.repository.atomic_folder import atomic_replace
from conch.repository.remote.location import parse_image
from conch.repository.remote.mirror import open_mirror
from conch.repository.remote.oci.packing import ModelLayer, image_of
from conch.repository.remote.oci.registry import Registry
from conch.repository.roots import LocalRoot


def pack(path: str, reference: str, models: Sequence[str]) -> int:
    """Push models of a directory as an image; return 0. Raises ConchError."""
    console = Console()
    image = parse_image(reference)
    if not image.tag:
        raise ConfigError(f"'{reference}' has a digest; a push needs a tag, such as {image.name}:1")
    registry = Registry(image, writes=True)
    names = _chosen(LocalRoot(Path(path)).names(), models, path)
    layers = [ModelLayer(Path(path) / name) for name in names]
    with _progress(console) as progress:
        for layer in layers:
            task = progress.add_task(f"reading {layer.name}", total=None)
            size, digest = layer.size_and_digest
            if registry.has_blob(digest):
                progress.update(task, description=f"{layer.name}: unchanged", total=size, completed=size)
                continue
            progress.update(task, description=layer.name, total=size)
            registry.write_blob(digest, size, partial(_with_progress, layer, progress, task))
    config, manifest = image_of(layers)
    if not registry.has_blob(config.digest):
        registry.write_blob(config.digest, len(config.content), lambda: [config.content])
    digest = registry.write_manifest(image.tag, manifest.content)
    console.print(f"{image}@{digest}", highlight=False, soft_wrap=True)
    return 0


def pull(repository: str, path: str, models: Sequence[str], *, cache: str, replace: bool) -> int:
    """Write models of an image, or of a repository by its URL, to a directory; return 0. Raises ConchError."""
    console = Console()
    with _progress(console) as progress:
        # Invisible until the first bytes, so that a failure prints no empty bar.
        task = progress.add_task(repository.rpartition("@")[2].partition("?")[0], total=None, visible=False)
        url = repository if "://" in repository else f"oci://{repository}"
        mirror = open_mirror(url, cache, progress=lambda count: progress.update(task, advance=count, visible=True))
        found = mirror.scan()
        others = {name for name, files in found.items() if not _is_model([path for path, *_ in files])}
        names = _chosen(found.keys() - others.difference(models), models, str(mirror))
        target = Path(path)
        written = []
        for name in names:
            place = mirror.find(name)
            if place is None:
                raise NotFound(f"model '{name}' was removed from {mirror} in the meantime")
            written.append(_write(place.directory, target / name, replace=replace))
            shutil.rmtree(place.directory, ignore_errors=True)
        fetched = progress.tasks[0].completed
        progress.update(task, total=fetched, visible=fetched > 0)
    if not fetched:
        console.print(f"all files of {mirror} are in the cache", highlight=False, soft_wrap=True, markup=False)
    for name, new in zip(names, written, strict=True):
        state = "" if new else "  (unchanged)"
        console.print(f"{target / name}{state}", highlight=False, soft_wrap=True, markup=False)
    for name in sorted(others.difference(models)):
        text = f"skipped: {name}, which has neither config.pbtxt nor a version folder"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    return 0


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


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console)


def _with_progress(layer: ModelLayer, progress: Progress, task: TaskID) -> Iterator[bytes]:
    for chunk in layer.content():
        yield chunk
        progress.advance(task, len(chunk))
