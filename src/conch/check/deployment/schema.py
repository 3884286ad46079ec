"""Validate objects against the schemas of Kubernetes, if the package kubernetes-validate is installed."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from conch.check.finding import Finding
from conch.check.monitoring.objects import MonitoringObject
from conch.check.rules import kubernetes as rules

# Groups of the API server itself; objects of other groups have schemas that only a cluster has.
_GROUP = re.compile(
    r"^(?:v1|(?:apps|autoscaling|batch|policy|networking\.k8s\.io|rbac\.authorization\.k8s\.io)/v\d\w*)$"
)
_DROPPED = re.compile(r"Additional properties are not allowed \((.*?) (?:was|were) unexpected\)")


@cache
def _library() -> Any:
    """Return the package, None if it is not installed."""
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        return None
    return kubernetes_validate


def check_schemas(objects: Sequence[MonitoringObject]) -> Iterator[Finding]:
    """Check the objects of Kubernetes' own groups."""
    library = _library()
    if library is None:
        return
    version = library.latest_version()
    for each in objects:
        if not each.kind or not _GROUP.match(str(each.value.get("apiVersion", ""))):
            continue
        try:
            library.validate(each.value, version, strict=True)
        except library.ValidationError as error:
            path = tuple(part for part in error.path if isinstance(part, str | int))
            dropped = _DROPPED.search(error.message)
            said = f"unknown field {dropped[1]}" if dropped else error.message
            where = ".".join(map(str, path)) or "the object"
            message = f"{each.kind} '{each.name}': {said} in {where}"
            yield Finding(rules.MANIFEST_INVALID, each.place(*path), _shortened(message))
        except (library.SchemaNotFoundError, library.VersionNotSupportedError):
            continue


def _shortened(message: str) -> str:
    return message if len(message) < 300 else f"{message[:297]}..."
