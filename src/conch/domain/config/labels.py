"""Class labels: the lines of the files that a configuration names as `label_filename` of its outputs."""

from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.base.files.confined import read_confined
from conch.domain.model_config import ModelConfig

# Of all label files of a model together; the names of 20,000 classes take half a megabyte.
MAX_LABEL_BYTES = 16 << 20


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels by output and class index, for outputs that have any. `directory` is the model's folder.

    Raises ModelLoadError if a file is missing, unreadable, too large or outside the model's directory.
    """
    by_file: dict[str, tuple[str, ...]] = {}
    remaining_bytes = MAX_LABEL_BYTES
    for output in config.outputs:
        filename = output.label_filename
        if filename and filename not in by_file:
            text = _read(directory, filename, f"output '{output.name}' of model '{config.name}'", remaining_bytes)
            remaining_bytes -= len(text)
            by_file[filename] = tuple(text.split("\n")[: -1 if text.endswith("\n") else None]) if text else ()
    return {output.name: by_file[output.label_filename] for output in config.outputs if output.label_filename}


def _read(directory: Path, filename: str, owner: str, max_bytes: int) -> str:
    try:
        data = read_confined(directory, filename, "label_filename", owner, at_most=max_bytes, max_bytes=max_bytes)
    except OSError as error:
        raise ModelLoadError(
            f"failed to open text file for read {directory / filename}: {error.strerror} (label_filename of {owner})"
        ) from error
    # Labels are bytes on the wire: surrogateescape keeps bytes that are not UTF-8.
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
