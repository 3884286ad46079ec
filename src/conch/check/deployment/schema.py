"""Validate objects against the schemas of Kubernetes, if the package kubernetes-validate is installed."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from conch.check.deployment.objects import CheckedObject
from conch.check.finding import Finding, Place

# Groups of the API server itself; objects of other groups have schemas that only a cluster has.
_GROUP = re.compile(r"^(?:v1|(?:apps|autoscaling|batch|policy|(?:networking|rbac\.authorization)\.k8s\.io)/v\d\w*)$")
_KIND = re.compile(r"^[A-Za-z]+$")
_DROPPED = re.compile(r"Additional properties are not allowed \((.*?) (?:was|were) unexpected\)")
_MAX_MESSAGE_CHARACTERS = 300


@cache
def _schemas() -> Any:
    """Return the folder of the newest version's strict schemas. Raises ModuleNotFoundError."""
    import kubernetes_validate

    version = kubernetes_validate.latest_version()
    return files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}-local-strict"


@cache
def _definitions() -> Any:
    from referencing import Registry, Resource

    contents = json.loads((_schemas() / "_definitions.json").read_bytes())
    return Resource.from_contents(contents) @ Registry()


@cache
def _validator(kind: str, api_version: str) -> Any:
    """Return the validator of a kind, None if Kubernetes has none. The package itself would read it for each object."""
    from jsonschema import Draft202012Validator

    group, _, version = api_version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], version) if part)
    path = _schemas() / f"{name}.json"
    return Draft202012Validator(json.loads(path.read_bytes()), registry=_definitions()) if path.is_file() else None


def check_schemas(objects: Sequence[CheckedObject]) -> Iterator[Finding]:
    """Check the objects of Kubernetes' own groups."""
    for document in objects:
        api_version = str(document.value.get("apiVersion", ""))
        if not _KIND.match(document.kind) or not _GROUP.match(api_version):
            continue
        try:
            validator = _validator(document.kind, api_version)
        except ModuleNotFoundError as missing:
            message = (
                f"manifests were not checked against the schemas of Kubernetes: the package {missing.name} is not "
                "installed"
            )
            yield Finding("schema-unchecked", Place(document.source.path), message)
            return
        error = next(iter(sorted(validator.iter_errors(document.value), key=_depth)), None) if validator else None
        if error is not None:
            path = tuple(part for part in error.absolute_path if isinstance(part, str | int))
            dropped = _DROPPED.search(error.message)
            said = f"unknown field {dropped[1]}" if dropped else error.message
            where = ".".join(map(str, path)) or "the object"
            message = f"{document.kind} '{document.name}': {said} in {where}"
            yield Finding("manifest-invalid", document.place(*path), message[:_MAX_MESSAGE_CHARACTERS])


def _depth(error: Any) -> tuple[int, str]:
    return -len(error.absolute_path), str(error.message)
