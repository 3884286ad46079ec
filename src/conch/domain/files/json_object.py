"""Read a JSON file that the engine of its model checks."""

import json
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty for any other content, which loading the model reports."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:  # opening a pipe would block
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
