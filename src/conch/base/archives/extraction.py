"""Extract a tar archive into a folder without writing anything outside it."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from conch.base.archives.bounded_tar import opened_tar
from conch.base.archives.expansion_limits import ArchiveBudget, ArchiveLimits
from conch.base.control_characters import has_control_characters
from conch.base.errors import ConfigError

MAX_PATH_BYTES = 2048
MAX_PATH_DEPTH = 64


def extract_tar(archive: Path, target: Path, limits: ArchiveLimits | None = None) -> None:
    """Extract a tar archive, compressed or not, into an empty folder.

    Symbolic links may lead out of the folder, as those of Python environments to the system's interpreter do; nothing
    is written through them. Raises ConfigError for an unsafe archive, OSError, EOFError, TarError, LZMAError and zlib's
    errors for a damaged one.
    """
    budget = ArchiveBudget(limits or ArchiveLimits(), archive.stat().st_size, f"'{archive}'")
    with opened_tar(archive, f"'{archive}'") as tar:
        tar.extractall(target, members=_checked(tar, target, budget), filter="tar")


def _checked(tar: tarfile.TarFile, target: Path, budget: ArchiveBudget) -> Iterator[tarfile.TarInfo]:
    """Yield each member that may be extracted now, before the next header is read."""
    folders = {target}
    while (member := tar.next()) is not None:
        # tarfile keeps all members for look-ups by name, which are not used here.
        vars(tar)["members"].clear()
        budget.count()
        budget.spend(member.size)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise ConfigError(f"{_shown(member)} is a device or pipe")
        path = _place(member, member.name, target, folders)
        if path.is_symlink():
            raise ConfigError(f"{_shown(member)} would replace a link")
        if member.islnk():
            source = _place(member, member.linkname, target, folders)
            if source.is_symlink() or not source.is_file():
                raise ConfigError(f"{_shown(member)} is a hard link to a file that does not precede it in the archive")
        elif member.issym() and len(os.fsencode(member.linkname)) > MAX_PATH_BYTES:
            raise ConfigError(f"{_shown(member)} links to a path of more than {MAX_PATH_BYTES} bytes")
        yield member


def _place(member: tarfile.TarInfo, name: str, target: Path, folders: set[Path]) -> Path:
    """Return the path of a name, after a check that no folder above it is a link; `folders` are already checked."""
    if has_control_characters(name):
        raise ConfigError(f"{_shown(member)} contains control characters")
    relative = Path(name.lstrip("/"))
    if ".." in relative.parts or len(os.fsencode(name)) > MAX_PATH_BYTES or len(relative.parts) > MAX_PATH_DEPTH:
        raise ConfigError(f"{_shown(member)} leads out of the archive, or is too long or deep a path")
    path = target / relative
    above = path.parent
    missing = []
    while above not in folders and above != target.parent:
        missing.append(above)
        above = above.parent
    for folder in missing:
        if folder.is_symlink():
            raise ConfigError(f"{_shown(member)} is below a link")
        if folder.is_dir():
            folders.add(folder)
    return path


def _shown(member: tarfile.TarInfo) -> str:
    return ascii(member.name[:200])
