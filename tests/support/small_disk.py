"""File systems of a few megabytes, to fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a tmpfs on a new folder and yield the folder. Skips the test where this user may not mount."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def used_bytes(folder: Path) -> int:
    """Return the bytes in use on the file system of a folder."""
    system = os.statvfs(folder)
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        size = 1 << 16
        while size:
            try:
                stream.write(bytes(size))
            except OSError:
                size //= 2
    return filler
