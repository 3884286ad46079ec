"""Parts of Kubernetes objects as they were read, whatever they contain: what is absent or of another type is empty."""

from collections.abc import Iterable, Mapping
from typing import Any

# Of metadata, what the API server or controllers set; the rest was given.
_GIVEN = ("name", "namespace", "labels", "annotations")


def part(value: Any, *keys: str) -> Any:
    """Return the value below keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """Return the mapping below keys; empty if there is none."""
    value_below = part(value, *keys)
    return value_below if isinstance(value_below, dict) else {}


def items(value: Any, *keys: str) -> list[dict[str, Any]]:
    """Return the mappings in the list below keys."""
    values_below = part(value, *keys)
    return [entry for entry in values_below if isinstance(entry, dict)] if isinstance(values_below, list) else []


def listed(documents: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the mappings of documents, and those of each List, as `kubectl get --output=yaml` prints."""
    objects: list[dict[str, Any]] = []
    for document in documents:
        if isinstance(document, dict):
            objects += items(document, "items") if document.get("kind") == "List" else [document]
    return objects


def as_given(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what a cluster has added: status, managed fields, version, identity."""
    metadata = {key: value for key, value in mapping(live, "metadata").items() if key in _GIVEN}
    given = {key: value for key, value in live.items() if key != "status"}
    return {**given, "metadata": metadata} if "metadata" in live else given


def labels_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object's metadata."""
    return {str(name): str(value) for name, value in mapping(metadata, "labels").items()}


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether labels fulfil a LabelSelector: all of `matchLabels` and `matchExpressions`. An empty one takes all."""
    for name, value in mapping(selector, "matchLabels").items():
        if labels.get(str(name)) != str(value):
            return False
    for expression in items(selector, "matchExpressions"):
        name, values = str(expression.get("key")), [str(value) for value in expression.get("values") or []]
        fulfilled = {
            "In": labels.get(name) in values,
            "NotIn": labels.get(name) not in values,
            "Exists": name in labels,
            "DoesNotExist": name not in labels,
        }
        if not fulfilled.get(str(expression.get("operator")), True):
            return False
    return True


def selects(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether labels have all that a selector wants. An empty selector selects nothing."""
    return bool(selector) and all(
        name in labels and str(labels[name]) == str(value) for name, value in selector.items()
    )
