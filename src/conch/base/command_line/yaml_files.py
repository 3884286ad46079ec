"""The YAML files that commands read, with the file and the line in errors. A key that a mapping has twice is one."""

from pathlib import Path
from typing import Any

from conch.base.command_line.text_files import read_text
from conch.base.errors import InvalidRequest
from conch.base.yaml_documents import YamlError, load_documents


def read_yaml(path: Path) -> list[Any]:
    """Return the documents of a file. Raises InvalidRequest."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, source: object) -> list[Any]:
    """Return the documents of a text that was read from `source`. Raises InvalidRequest."""
    try:
        return [each.value for each in load_documents(text, unique_keys=True)]
    except YamlError as error:
        raise InvalidRequest(f"{source}:{error.line}: {error}") from None
