"""Read the documents of YAML and JSON files: Kubernetes objects, rule files, dashboards."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.kubernetes_parts import labels_of, mapping
from conch.base.yaml_documents import YamlDocument, YamlError, YamlPath, load_documents
from conch.check.finding import Finding, Place
from conch.check.source import SourceFile

_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{|@[A-Z_]+@")
_TAG = "could not determine a constructor"


@dataclass(frozen=True, slots=True)
class MonitoringObject:
    """A document, or an item of a list, in a file."""

    source: SourceFile
    document: YamlDocument
    path: YamlPath
    value: dict[str, Any]

    @property
    def kind(self) -> str:
        """The kind of a Kubernetes object, or ""."""
        return str(self.value.get("kind", ""))

    @property
    def name(self) -> str:
        """The name of a Kubernetes object, or ""."""
        return str(mapping(self.value, "metadata").get("name", ""))

    @property
    def namespace(self) -> str:
        """The namespace of a Kubernetes object, or "" if it is that of the command that creates it."""
        return str(mapping(self.value, "metadata").get("namespace") or "")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of a Kubernetes object."""
        return labels_of(mapping(self.value, "metadata"))

    def place(self, *path: str | int) -> Place:
        """Return the place of a part."""
        return Place(self.source.path, self.document.line((*self.path, *path)), 1)


def read_objects(sources: Sequence[SourceFile]) -> tuple[list[MonitoringObject], list[Finding]]:
    """Return the objects of files, and the errors of syntax. Templates, such as those of charts, may have them."""
    found: list[MonitoringObject] = []
    faults: list[Finding] = []
    for source in sources:
        try:
            for document in _documents(source):
                found += _objects(source, document, (), document.value)
        except YamlError as error:
            if source.path.suffix != ".tf" and not _TEMPLATE.search(source.text):
                # A tag, such as `!reset` of compose files, has a meaning only for its reader.
                rule = "file-unchecked" if _TAG in str(error) else "file-syntax"
                faults.append(Finding(rule, Place(source.path, error.line, 1), f"{source.path.name}: {error}"))
    return found, faults


def _documents(source: SourceFile) -> list[YamlDocument]:
    if source.path.suffix != ".json":
        return load_documents(source.text)
    try:
        return [YamlDocument(json.loads(source.text))]
    except json.JSONDecodeError as error:
        raise YamlError(f"invalid JSON: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError) as error:  # such as a number of too many digits
        raise YamlError(f"invalid JSON: {error}", 1) from None


def _objects(source: SourceFile, document: YamlDocument, path: YamlPath, value: Any) -> Iterator[MonitoringObject]:
    if isinstance(value, list):
        value = {"rules": value}  # a list of rules
        yield MonitoringObject(source, document, path, value)
    elif isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            if isinstance(item, dict):
                yield MonitoringObject(source, document, (*path, "items", index), item)
    elif isinstance(value, dict):
        yield MonitoringObject(source, document, path, value)
