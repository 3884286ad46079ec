"""Class labels: the lines of the files that outputs name as `label_filename`."""

from pathlib import Path

from conch.errors import ModelLoadError
from conch.model_config import ModelConfig


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels of each output that has some, by class index. `directory` is the model's.

    Raises ModelLoadError if a file is missing, unreadable or outside the model's directory.
    """
    return {
        output.name: _read(directory, output.label_filename, f"output '{output.name}' of model '{config.name}'")
        for output in config.outputs
        if output.label_filename
    }


def _read(directory: Path, filename: str, whose: str) -> tuple[str, ...]:
    path = directory / filename
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ModelLoadError(f"label_filename '{filename}' of {whose} leads out of the model's directory")
    try:
        # Labels are bytes on the wire: what is no UTF-8 comes back as it was.
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ModelLoadError(
            f"failed to open text file for read {path}: {error.strerror} (label_filename of {whose})"
        ) from error
    return tuple(text.split("\n")[: -1 if text.endswith("\n") else None]) if text else ()
