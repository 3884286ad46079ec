"""Parts of Kubernetes objects as they were read, whatever they contain: what is absent or of another type is empty."""

from collections.abc import Mapping
from typing import Any


def part(value: Any, *keys: str) -> Any:
    """Return the value below keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """Return the mapping below keys; empty if there is none."""
    found = part(value, *keys)
    return found if isinstance(found, dict) else {}


def items(value: Any, *keys: str) -> list[dict[str, Any]]:
    """Return the mappings in the list below keys."""
    found = part(value, *keys)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def labels_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object's metadata."""
    return {str(name): str(value) for name, value in mapping(metadata, "labels").items()}


def selects(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether labels have all that a selector wants. An empty selector selects nothing."""
    return bool(selector) and all(
        name in labels and str(labels[name]) == str(value) for name, value in selector.items()
    )
