"""Limits from the annotations of a Kubernetes object. Pure.

max_qps, conch.ai/max-qps              requests per second of each model
conch.ai/max-tokens-per-second         tokens per second of each model
conch.ai/limits-enforced               "true" to refuse requests over these; without it they are soft
conch.ai/limits                        YAML in the form of a limits file
conch.ai/limits-shared                 "true": all of these are for all replicas together, and each has its share
"""

from collections.abc import Mapping
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.limits.limit import EACH, UNLIMITED, LimitKey, Quantity, Subject, read_per_second
from conch.domain.limits.limits_file import read_limits_text

MAX_QPS = "max_qps"
PREFIX = "conch.ai/"
QUALIFIED_MAX_QPS = f"{PREFIX}max-qps"
MAX_TOKENS = f"{PREFIX}max-tokens-per-second"
ENFORCED = f"{PREFIX}limits-enforced"
LIMITS = f"{PREFIX}limits"
SHARED = f"{PREFIX}limits-shared"
KNOWN = (MAX_QPS, QUALIFIED_MAX_QPS, MAX_TOKENS, ENFORCED, LIMITS, SHARED)
# Unknown annotations that begin so are mistakes; others may be for something else.
_OURS = (f"{PREFIX}max", f"{PREFIX}limit")


def read_annotations(document: Mapping[str, Any]) -> dict[LimitKey, int]:
    """Read the limits of an object of the API server. Raises ConfigError that names the annotation."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if not isinstance(annotations, Mapping):
        return {}
    for name in annotations:
        if str(name).startswith(_OURS) and name not in KNOWN:
            raise ConfigError(f"unknown annotation '{name}', expected one of {', '.join(KNOWN)}")
    enforced = _flag(annotations, ENFORCED)
    found: dict[LimitKey, int] = {}
    for name, quantity in (
        (MAX_QPS, Quantity.REQUESTS),
        (QUALIFIED_MAX_QPS, Quantity.REQUESTS),
        (MAX_TOKENS, Quantity.TOKENS),
    ):
        if name in annotations:
            value = read_per_second(annotations[name], f"annotation {name}")
            found[LimitKey(Subject(EACH), quantity, enforced)] = value
    if LIMITS in annotations:
        found |= read_limits_text(str(annotations[LIMITS]), f"annotation {LIMITS}")
    if _flag(annotations, SHARED):
        replicas = _replicas(document)
        found = {key: _share(value, replicas) for key, value in found.items()}
    return found


def _flag(annotations: Mapping[str, Any], name: str) -> bool:
    value = annotations.get(name, "false")
    if value not in ("true", "false"):
        raise ConfigError(f'annotation {name}: {str(value)[:40]!r} must be "true" or "false"')
    return bool(value == "true")


def _replicas(document: Mapping[str, Any]) -> int:
    spec = document.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, Mapping) else None
    return replicas if type(replicas) is int and replicas > 0 else 1


def _share(value: int, replicas: int) -> int:
    return value if value in (0, UNLIMITED) else max(value // replicas, 1)
