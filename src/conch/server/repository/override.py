"""Overrides of a load request: a configuration, and uploaded files that replace the model's directory."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conch.base.errors import ConfigError, Unavailable
from conch.server.repository.disk_space import FULL, NoSpace, require_space
from conch.server.repository.remote.listing import inside
from conch.server.repository.temporary_folders import MACHINE_ERRORS, TemporaryFolders

MAX_FILES = 10_000
MAX_FILES_BYTES = 2 << 30
_REMEDY = "set the environment variable TMPDIR to another folder"


@dataclass(frozen=True, slots=True)
class Override:
    """The parameters of a load: `config` is a ModelConfig as JSON text; `files` are "<version>/<path>" → contents."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


class UploadFolders:
    """Temporary folders for uploaded files."""

    def __init__(self) -> None:
        self._folders = TemporaryFolders()

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files below a new directory and return it; the caller removes it.

        Raises ConfigError if a path leads out of the directory or is not a file name, or if there are too many files;
        NoSpace, Unavailable. Nothing remains on disk after an error.
        """
        if len(files) > MAX_FILES:
            raise ConfigError(f"load of '{name}': has {len(files)} 'file:' parameters; the limit is {MAX_FILES}")
        size = sum(map(len, files.values()))
        if size > MAX_FILES_BYTES:
            raise ConfigError(f"load of '{name}': its files have {size} bytes; the limit is {MAX_FILES_BYTES}")
        require_space(Path(tempfile.gettempdir()), size, f"load of '{name}'", _REMEDY)
        paths = {path: inside(path, f"load of '{name}': 'file:<version>/<name>'") for path in files}

        def fill(directory: Path) -> None:
            for path, contents in files.items():
                _write(name, path, directory / paths[path], contents)

        return self._folders.write(name, fill)


def _write(name: str, path: str, target: Path, contents: bytes) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            kind = NoSpace if error.errno in FULL else Unavailable
            raise kind(
                f"load of '{name}': 'file:{path}' cannot be written to '{tempfile.gettempdir()}': {error.strerror}; "
                + _REMEDY
            ) from error
        raise ConfigError(f"load of '{name}': 'file:{path}' cannot be written: {error.strerror}") from error
