"""Write a model's folder into a repository atomically: it is there completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from conch.base.errors import ConfigError, Unavailable


@contextmanager
def atomic_replace(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder, hidden from servers, that is renamed to `target` when the block ends.

    If the block raises, nothing is written and an existing target stays as it was.
    Raises ConfigError if the target exists and `replace` is False, Unavailable if it cannot be written.
    """
    if os.path.lexists(target) and not replace:
        raise ConfigError(f"'{target}' exists already")
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, because a rename needs the same file system; servers ignore names with a dot.
        with TemporaryDirectory(dir=target.parent, prefix=".conch-") as beside:
            new = Path(beside, "new", target.name)
            new.mkdir(parents=True)
            yield new
            _exchange(new, target, Path(beside, "old"))
    except OSError as error:
        _remove_empty(missing)
        raise Unavailable(f"'{target}' cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove_empty(missing)
        raise


def _exchange(new: Path, target: Path, old: Path) -> None:
    if not os.path.lexists(target):
        new.rename(target)
        return
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
