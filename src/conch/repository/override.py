"""What a load request may bring along: a configuration, and files that take the place of the model's directory."""

import errno
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from conch.errors import ConfigError, Unavailable

# What is wrong with the machine; all else is wrong with the path.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Override:
    """The parameters of a load: `config` is a ModelConfig as JSON text; `files` are "<version>/<path>" → contents."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


def write_files(name: str, files: Mapping[str, bytes]) -> Path:
    """Write the files below a new temporary directory and return it; the caller removes it.

    Raises ConfigError if a path would lead out of the directory or is not a file's, Unavailable if there is no room.
    Nothing is left behind then.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="conch-model-"))
    except OSError as error:
        raise Unavailable(f"load of '{name}': there is no place for its files: {error}") from error
    try:
        for path, contents in files.items():
            target = directory / _inside(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise Unavailable(
                f"load of '{name}': 'file:{path}' cannot be written to '{directory.parent}': {error.strerror}; "
                "the environment variable TMPDIR can name another place"
            ) from error
        if isinstance(error, OSError):
            raise ConfigError(f"load of '{name}': 'file:{path}' cannot be written: {error.strerror}") from error
        raise
    return directory


def _inside(name: str, path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts or "\0" in path or not relative.parts:
        raise ConfigError(
            f"load of '{name}': 'file:{path}' must be a path inside the model's directory, such as 'file:1/model.onnx'"
        )
    return relative
