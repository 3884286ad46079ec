"""Class labels: the lines of the files that outputs name as `label_filename`."""

from pathlib import Path

from conch.errors import ModelLoadError
from conch.model_config import ModelConfig
from conch.repository.model_folder import read_inside

# Of all label files of a model together; the names of 20,000 classes have half a megabyte.
MAX_LABEL_BYTES = 16 << 20


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels of each output that has some, by class index. `directory` is the model's.

    Raises ModelLoadError if a file is missing, unreadable, too large or outside the model's directory.
    """
    by_file: dict[str, tuple[str, ...]] = {}
    left = MAX_LABEL_BYTES
    for output in config.outputs:
        filename = output.label_filename
        if filename and filename not in by_file:
            text = _read(directory, filename, f"output '{output.name}' of model '{config.name}'", left)
            left -= len(text)
            by_file[filename] = tuple(text.split("\n")[: -1 if text.endswith("\n") else None]) if text else ()
    return {output.name: by_file[output.label_filename] for output in config.outputs if output.label_filename}


def _read(directory: Path, filename: str, whose: str, left: int) -> str:
    try:
        data = read_inside(directory, filename, "label_filename", whose, at_most=left, max_bytes=left)
    except OSError as error:
        raise ModelLoadError(
            f"failed to open text file for read {directory / filename}: {error.strerror} (label_filename of {whose})"
        ) from error
    # Labels are bytes on the wire: what is no UTF-8 comes back as it was.
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
