"""Workloads of Kubernetes and their containers, as the rules need them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.kubernetes_parts import items, labels_of, mapping
from conch.check.finding import Place
from conch.check.monitoring.objects import MonitoringObject

# Kind → path of the pod's template; () for a pod itself.
_TEMPLATES: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_SERVER_IMAGE = re.compile(r"(?:^|/)(?:tritonserver|conch(?:-server)?|vllm-openai)(?:[:@]|$)")
_SERVER_COMMAND = re.compile(r"(?:^|[\s/])(?:tritonserver|conch serve|vllm serve)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a workload, and where it stands."""

    source: MonitoringObject
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
        return [word for part in parts if isinstance(part, list) for each in part for word in str(each).split()]

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
        found = None
        words = self.words
        for index, word in enumerate(words):
            if word == f"--{name}":
                following = words[index + 1] if index + 1 < len(words) else ""
                found = "" if following.startswith("--") else following
            elif word.startswith(f"--{name}="):
                found = word.partition("=")[2]
        return found

    def place(self, *path: str | int) -> Place:
        """Return the place of a part."""
        return self.source.place(*self.path, *path)


@dataclass(frozen=True, slots=True)
class PodOwner:
    """An object that creates pods."""

    source: MonitoringObject
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
        return labels_of(mapping(self.source.value, *self.template, "metadata"))

    @property
    def replicas(self) -> int | None:
        """The number of pods, None if it is not given."""
        number = mapping(self.source.value, "spec").get("replicas")
        return number if isinstance(number, int) else None

    def containers(self, key: str = "containers") -> Iterator[Container]:
        """Yield its containers, or its `initContainers`."""
        found = self.pod.get(key)
        for index, value in enumerate(found if isinstance(found, list) else ()):
            if isinstance(value, dict):
                yield Container(self.source, (*self.template, "spec", key, index), value)

    @property
    def servers(self) -> list[Container]:
        """The containers that run an inference server."""
        return [each for each in self.containers() if each.is_server]

    def place(self, *path: str | int) -> Place:
        """Return the place of a part of the pod's specification."""
        return self.source.place(*self.template, "spec", *path)


def pod_owners(objects: Sequence[MonitoringObject]) -> list[PodOwner]:
    """Return the workloads among objects."""
    return [PodOwner(each, _TEMPLATES[each.kind]) for each in objects if each.kind in _TEMPLATES]
