"""The JSON files of a language model's version: `model.json`, the engine's arguments, and `multi_lora.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .driver import Refused


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, an empty one for a missing file. Raises Refused for anything but a JSON object."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise Refused(f"{path}: must hold a JSON object")
    return document
