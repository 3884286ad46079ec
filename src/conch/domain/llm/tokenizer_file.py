"""tokenizer.json, the tokenizer of a checkpoint."""

from pathlib import Path
from typing import Any

from conch.base.errors import Unsupported


def read_tokenizer(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a file. Raises Unsupported for an invalid file or without the package."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise Unsupported(f"{path.name} needs the package tokenizers: pip install 'conch-server[text]'") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library's only type
        raise Unsupported(f"{path} is not a valid {path.name}: {error}") from None
