"""Helm in a separate process, as its library is a Go program: it loads a chart once and renders it many times."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.support.packages import require

_RENDER = """
import json, sys
import helm_python
with helm_python.Chart.load(sys.argv[1]) as chart:
    for line in sys.stdin:
        values, options = json.loads(line)
        try:
            print(json.dumps({"rendered": chart.render(values, **options)}), flush=True)
        except helm_python.HelmError as error:
            print(json.dumps({"error": str(error)}), flush=True)
"""


def require_helm() -> None:
    """Skip the test where Helm is missing. Does not import it: Go's runtime replaces signal handlers."""
    require("helm_python")


class HelmError(Exception):
    """What Helm prints instead of objects."""


class HelmChart:
    """A chart that Helm has loaded. A context manager."""

    def __init__(self, folder: Path) -> None:
        require_helm()
        self.folder = folder
        self._objects: dict[str, list[dict[str, Any]]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RENDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def templates(self, values: dict[str, Any], name: str = "gpt2", namespace: str = "default") -> dict[str, str]:
        """Return the rendered text of each template. Raises HelmError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([values, {"name": name, "namespace": namespace}]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise HelmError(answer["error"])
        rendered: dict[str, str] = answer["rendered"]
        return rendered

    def objects(self, values: dict[str, Any], name: str = "gpt2", namespace: str = "default") -> list[dict[str, Any]]:
        """Return the objects that `helm install` creates; hooks are not among them. Raises HelmError."""
        return [document for document in self.all_objects(values, name, namespace) if not is_hook(document)]

    def all_objects(self, values: dict[str, Any], name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return all objects, with those that Helm creates at other times; they are shared. Raises HelmError."""
        job = json.dumps([values, name, namespace])
        if job not in self._objects:
            texts = [text for path, text in self.templates(values, name, namespace).items() if path.endswith(".yaml")]
            parsed = [document for text in texts for document in yaml.load_all(text, Loader=yaml.CSafeLoader)]
            self._objects[job] = [document for document in parsed if document is not None]
        return self._objects[job]


def is_hook(document: dict[str, Any]) -> bool:
    """Return whether Helm creates an object at another time than installation, such as `helm test`."""
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects by kind and name, each of which only one has."""
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in objects}
    assert len(by_name) == len(objects), sorted(by_name)
    return by_name
