"""The files that commands read and write, with the message and the exit status of a failure."""

import sys
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest

_FAILURE = 1


def read_text(path: Path) -> str:
    """Return the text of a file. Raises InvalidRequest if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read '{path}': {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"cannot read '{path}': not UTF-8 text") from None


def write_text(command: str, path: Path | None, text: str) -> int:
    """Write a text to a file, or to stdout without one; return the exit status: 0, or 1 after a message."""
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{command}: cannot write {path}: {error.strerror or error}", file=sys.stderr)
        return _FAILURE
    return 0


def read_yaml(path: Path) -> list[Any]:
    """Return the documents of a file. Raises InvalidRequest."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, source: object) -> list[Any]:
    """Return the documents of a text that was read from `source`. Raises InvalidRequest."""
    from conch.base.yaml_documents import YamlError, load_documents  # PyYAML is an extra

    try:
        return [document.value for document in load_documents(text, unique_keys=True)]
    except YamlError as error:
        raise InvalidRequest(f"{source}:{error.line}: {error}") from None
