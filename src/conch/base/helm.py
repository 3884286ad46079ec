"""Helm, which renders charts: the program `helm` on PATH, or the package helm-python-sdk in a process of its module.

The package is a Go program with signal handlers, and a template may loop forever, so both run in a child process.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError, Unavailable
from conch.base.extras import install_command
from conch.base.kubernetes.objects import part

_LIBRARY = "helm_python"
_TIMEOUT_S = 60
_SOURCE = re.compile(r"^---\n# Source: (.+)\n", re.MULTILINE)
_PART_OF_LIST = re.compile(r"(?:^|,)([^,=\[\]]+)\[\d")
_ADVICE = "\n\nUse --debug flag to render out invalid YAML"


class HelmError(ConchError):
    """Helm does not render a chart with these values; the message is Helm's."""


def helm_is_installed() -> bool:
    """Return whether charts can be rendered here."""
    return shutil.which("helm") is not None or find_spec(_LIBRARY) is not None


def merge_values(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge files of values as Helm does: later ones win, mappings are merged; a null stays, to remove a default."""
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            before = merged.get(key)
            merge = isinstance(value, Mapping)
            merged[key] = merge_values([before if isinstance(before, dict) else {}, value]) if merge else value
    return merged


def render_chart(
    chart: Path,
    values: Mapping[str, Any],
    *,
    name: str = "release",
    namespace: str = "default",
    assignments: Sequence[str] = (),
    text_assignments: Sequence[str] = (),
    kubernetes_version: str = "",
) -> dict[str, str]:
    """Return the rendered text of each template by its path, such as `chart/templates/service.yaml`.

    The assignments are those of `--set` and `--set-string`. `kubernetes_version` is what the chart takes for the
    cluster's, by default the one that Helm was built for; the package knows only that one.

    Raises HelmError if Helm refuses the chart or the values, Unavailable if Helm is missing.
    """
    if program := shutil.which("helm"):
        command = [program, "template", name, str(chart), f"--namespace={namespace}", "--values=-"]
        command += [f"--set={assignment}" for assignment in assignments]
        command += [f"--set-string={assignment}" for assignment in text_assignments]
        command += [f"--kube-version={kubernetes_version}"] if kubernetes_version else []
        done = _run(command, json.dumps(values, default=str))
        if done.returncode:
            raise HelmError(done.stderr.strip().removeprefix("Error: ").removesuffix(_ADVICE))
        return _by_template(done.stdout)
    if find_spec(_LIBRARY) is None:
        raise Unavailable(
            "Helm is missing, which renders the chart: install the program helm "
            f"(https://helm.sh/docs/intro/install), or {install_command('charts')}"
        )
    job = [str(chart), values, name, namespace, list(assignments), list(text_assignments)]
    done = _run([sys.executable, "-m", "conch.base.helm"], json.dumps(job, default=str))
    if done.returncode:
        raise HelmError((done.stderr.strip().splitlines() or ["the renderer failed"])[-1])
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise HelmError(answer["error"])
    templates: dict[str, str] = answer["templates"]
    return templates


def _run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise HelmError(f"Helm did not finish within {_TIMEOUT_S} s") from None
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error}") from None


def _by_template(output: str) -> dict[str, str]:
    """Return the documents that `helm template` prints, by the template that the comment before each names."""
    templates: dict[str, str] = {}
    _, *parts = _SOURCE.split(output)
    for path, text in zip(parts[::2], parts[1::2], strict=True):
        templates[path] = f"{templates[path]}---\n{text}" if path in templates else text
    return templates


def _render_with_library(job: str) -> dict[str, Any]:
    """Render a chart in this process, which the library's signal handlers then belong to."""
    import helm_python

    chart, values, name, namespace, assignments, text_assignments = json.loads(job)
    for key in _PART_OF_LIST.findall(",".join([*assignments, *text_assignments])):
        if isinstance(part(values, *key.split(".")), list):
            # The library merges the results of --set, so that the rest of the list would be lost.
            return {"error": f"--set {key}[…]: a file of values has the list; change it there, or install helm"}
    try:
        # One expression, so that the parts of a list may be set one by one.
        given = [helm_python.parse_set_string(",".join(assignments))] if assignments else []
        given += [helm_python.parse_set_string_values(",".join(text_assignments))] if text_assignments else []
        with helm_python.Chart.load(chart) as loaded:
            return {"templates": loaded.render(merge_values([values, *given]), name=name, namespace=namespace)}
    except helm_python.HelmError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(_render_with_library(sys.stdin.read())))
