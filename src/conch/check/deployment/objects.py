"""Objects in YAML and JSON files: of Kubernetes, with the containers of workloads, rule files, compose, dashboards."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.kubernetes.objects import items, labels_of, mapping
from conch.base.yaml_documents import YamlDocument, YamlError, YamlPath, load_documents
from conch.check.finding import Finding, Place
from conch.check.source import SourceFile
from conch.operate.scaling.kubernetes_facts import POD_TEMPLATES, pod_labels

_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{|@[A-Z_]+@")
_TAG = "could not determine a constructor"
_SERVER_IMAGE = re.compile(r"(?:^|/)(?:tritonserver|conch(?:-server)?|vllm-openai)(?:[:@]|$)")
_SERVER_COMMAND = re.compile(r"(?:^|[\s/])(?:tritonserver|conch serve|vllm serve)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class CheckedObject:
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


def read_objects(sources: Sequence[SourceFile]) -> tuple[list[CheckedObject], list[Finding]]:
    """Return the objects of files, and the errors of syntax. Templates, such as those of charts, may have them."""
    objects: list[CheckedObject] = []
    faults: list[Finding] = []
    for source in sources:
        try:
            for document in _documents(source):
                objects += _objects(source, document, (), document.value)
        except YamlError as error:
            if source.path.suffix != ".tf" and not _TEMPLATE.search(source.text):
                # A tag, such as `!reset` of compose files, has a meaning only for its reader.
                rule = "file-unchecked" if _TAG in str(error) else "file-syntax"
                faults.append(Finding(rule, Place(source.path, error.line, 1), f"{source.path.name}: {error}"))
    return objects, faults


def _documents(source: SourceFile) -> list[YamlDocument]:
    if source.path.suffix != ".json":
        return load_documents(source.text)
    try:
        return [YamlDocument(json.loads(source.text))]
    except json.JSONDecodeError as error:
        raise YamlError(f"invalid JSON: {error.msg}", error.lineno) from None
    except (ValueError, RecursionError) as error:  # such as a number of too many digits
        raise YamlError(f"invalid JSON: {error}", 1) from None


def _objects(source: SourceFile, document: YamlDocument, path: YamlPath, value: Any) -> Iterator[CheckedObject]:
    if isinstance(value, list):
        value = {"rules": value}  # a list of rules
        yield CheckedObject(source, document, path, value)
    elif isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            if isinstance(item, dict):
                yield CheckedObject(source, document, (*path, "items", index), item)
    elif isinstance(value, dict):
        yield CheckedObject(source, document, path, value)


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a workload, and where it stands."""

    source: CheckedObject
    path: tuple[str | int, ...]
    value: dict[str, Any]

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.value.get("name", ""))

    @property
    def image(self) -> str:
        """The image, or ""."""
        return str(self.value.get("image") or "")

    @property
    def words(self) -> list[str]:
        """The words of the command and its arguments."""
        parts = [self.value.get("command"), self.value.get("args")]
        return [
            word for part in parts if isinstance(part, list) for word_group in part for word in str(word_group).split()
        ]

    @property
    def is_server(self) -> bool:
        """Whether an inference server runs in it; `conch health` and others of its sub-commands run none."""
        if self.words[:1] == ["conch"] and self.words[1:2] != ["serve"]:
            return False
        return bool(_SERVER_COMMAND.search(" ".join(self.words))) or bool(_SERVER_IMAGE.search(self.image))

    @property
    def environment(self) -> list[dict[str, Any]]:
        """The variables of its environment."""
        return items(self.value, "env")

    @property
    def ports(self) -> list[dict[str, Any]]:
        """The ports that it names."""
        return items(self.value, "ports")

    def flag(self, name: str) -> str | None:
        """Return the last value of a flag of its command, "" without a value, None if it is absent."""
        value = None
        words = self.words
        for index, word in enumerate(words):
            if word == f"--{name}":
                following = words[index + 1] if index + 1 < len(words) else ""
                value = "" if following.startswith("--") else following
            elif word.startswith(f"--{name}="):
                value = word.partition("=")[2]
        return value

    def place(self, *path: str | int) -> Place:
        """Return the place of a part."""
        return self.source.place(*self.path, *path)


@dataclass(frozen=True, slots=True)
class PodOwner:
    """An object that creates pods."""

    source: CheckedObject
    template: tuple[str, ...]

    @property
    def what(self) -> str:
        """Kind and name for messages."""
        return f"{self.source.kind} '{self.source.name}'"

    @property
    def pod(self) -> dict[str, Any]:
        """The specification of its pods."""
        return mapping(self.source.value, *self.template, "spec")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return pod_labels(self.source.value)

    @property
    def replicas(self) -> int | None:
        """The number of pods, None if it is not given."""
        number = mapping(self.source.value, "spec").get("replicas")
        return number if isinstance(number, int) else None

    def containers(self, key: str = "containers") -> Iterator[Container]:
        """Yield its containers, or its `initContainers`."""
        values = self.pod.get(key)
        for index, value in enumerate(values if isinstance(values, list) else ()):
            if isinstance(value, dict):
                yield Container(self.source, (*self.template, "spec", key, index), value)

    @property
    def servers(self) -> list[Container]:
        """The containers that run an inference server."""
        return [container for container in self.containers() if container.is_server]

    def place(self, *path: str | int) -> Place:
        """Return the place of a part of the pod's specification."""
        return self.source.place(*self.template, "spec", *path)


def pod_owners(objects: Sequence[CheckedObject]) -> list[PodOwner]:
    """Return the workloads among objects."""
    return [PodOwner(document, POD_TEMPLATES[document.kind]) for document in objects if document.kind in POD_TEMPLATES]
