"""Read the documents of YAML and JSON files: Kubernetes objects, rule files, dashboards."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conch.check.finding import Place
from conch.check.source import SourceFile
from conch.monitoring.object_parts import labels_of, mapping
from conch.monitoring.yaml_documents import YamlDocument, YamlError, YamlPath, load_documents


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


def read_objects(sources: Sequence[SourceFile]) -> list[MonitoringObject]:
    """Return the objects of files. Files that cannot be parsed, such as templates of charts, are omitted."""
    found: list[MonitoringObject] = []
    for source in sources:
        if source.path.suffix == ".json":
            try:
                documents = [YamlDocument(json.loads(source.text))]
            except ValueError:
                continue
        else:
            try:
                documents = load_documents(source.text)
            except YamlError:
                continue
        for document in documents:
            found += _objects(source, document, (), document.value)
    return found


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
