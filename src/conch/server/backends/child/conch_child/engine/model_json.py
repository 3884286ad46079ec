"""The JSON files of a language model's version: `model.json`, the engine's arguments, and `multi_lora.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .driver import Refused


def adapter_paths(directory: Path, problem: Callable[[Path], str]) -> dict[str, Path]:
    """Return the paths of the LoRA adapters in `multi_lora.json` by name, none without it.

    `problem` returns what is wrong with a path, "" for nothing. Raises Refused with that.
    """
    listed = directory / "multi_lora.json"
    adapters = {name: Path(directory, str(path)) for name, path in read_json(listed).items()}
    for name, path in adapters.items():
        wrong = problem(path)
        if wrong:
            raise Refused(f"{listed}: adapter '{name}': '{path}' {wrong}")
    return adapters


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
