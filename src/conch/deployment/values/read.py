"""Read values from files and `--set`, and explain what is wrong with them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from conch.deployment.values.deployment import DeploymentValues
from conch.errors import ConfigError


def merge(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mappings of values as Helm does: later ones win, mappings are merged, null removes a key."""
    merged: dict[str, Any] = {}
    for each in documents:
        _merge_into(merged, each)
    return merged


def _merge_into(merged: dict[str, Any], later: Mapping[str, Any]) -> None:
    for key, value in later.items():
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(before, dict):
            _merge_into(before, value)
        elif isinstance(value, Mapping):
            merged[key] = {}
            _merge_into(merged[key], value)
        else:
            merged[key] = value


def read_values(document: Mapping[str, Any]) -> DeploymentValues:
    """Return the typed values of a mapping. Raises ConfigError with the place and what is allowed there."""
    try:
        return msgspec.convert(document, DeploymentValues)
    except msgspec.ValidationError as error:
        raise ConfigError(f"values: {error}") from None
