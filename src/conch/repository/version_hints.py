"""What is probably wrong with a model's folder that has no version folder, and what would be right."""

import os
import re
from pathlib import Path

_MAX_NAMES = 10
_VERSION_LIKE = re.compile(r"(?:v|ver|version)?[-_. ]?0*([1-9]\d*)$", re.IGNORECASE)


def missing_version(directory: Path) -> str:
    """Return a sentence about what was found in place of a version folder. Looks at the folder."""
    try:
        with os.scandir(directory) as entries:
            found = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    except OSError:
        found = {}
    for name, is_folder in sorted(found.items()):
        if is_folder and (number := _VERSION_LIKE.match(name)):
            return f"the folder '{name}' is not named by its number alone: rename it to '{number[1]}'"
    for name, is_folder in sorted(found.items()):
        if name.startswith("model.") or (not is_folder and name.endswith((".onnx", ".py", ".pt", ".plan", ".xml"))):
            return f"'{name}' must be in a version folder: move it to '1/{name}'"
    names = ", ".join(f"'{name}'" for name in sorted(found)[:_MAX_NAMES]) or "nothing"
    more = ", …" if len(found) > _MAX_NAMES else ""
    return f"the model's files must be in a folder named by its version, such as '1'; found {names}{more}"
