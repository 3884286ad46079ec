"""Parts that objects share."""

from collections.abc import Mapping
from typing import Any


def without_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without its keys of empty values, as a template with `with` omits them."""
    return {key: value for key, value in mapping.items() if value not in (None, "", {}, [])}
