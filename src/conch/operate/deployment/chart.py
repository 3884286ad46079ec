"""The Helm chart, which the wheel carries: the objects of a release, and what autoscalers are made of.

What commands need of the chart without Helm is in the folder `rendered`, which `make deploy-files` renders.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError
from conch.base.helm import HelmError, render_chart
from conch.base.suggestion import did_you_mean
from conch.base.yaml_documents import load_document, load_documents

# The order in which objects are applied; those of other kinds come last.
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "StatefulSet")
# Without a cluster, the values alone say which version it has. No release of Kubernetes is newer.
_NEWEST_KUBERNETES = "1.99.0"
# The name and the namespace of the release in the folder `rendered`.
RENDERED_NAME, RENDERED_NAMESPACE = "rendered-name", "rendered-namespace"
_RENDERED = Path(__file__).parent / "rendered"
_CONFLICT = re.compile(r"execution error at \(.*?\): (values: .*)", re.DOTALL)
_INVALID = re.compile(r"^\s*- at '(.*?)': (.*)$", re.MULTILINE)
_SUMMARY = re.compile(r"validation failed|'\w+' failed|invalid propertyName .*")  # what follows says more
_UNKNOWN = "additional properties "


def chart_folder() -> Path:
    """Return the folder of the chart: in the wheel, or in the source tree."""
    packaged = Path(__file__).parent / "helm_chart"
    return packaged if packaged.is_dir() else Path(__file__).parents[4] / "deploy" / "helm" / "conch"


def release_objects(
    values: Mapping[str, Any],
    name: str,
    namespace: str = "default",
    *,
    assignments: Sequence[str] = (),
    text_assignments: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the objects that `helm install` creates, without hooks. The assignments are `--set` and `--set-string`.

    Raises ConfigError, which names the value and what is allowed there, and Unavailable if Helm is missing.
    """
    try:
        templates = render_chart(
            chart_folder(),
            values,
            name=name,
            namespace=namespace,
            assignments=assignments,
            text_assignments=text_assignments,
            kubernetes_version=_NEWEST_KUBERNETES,
        )
    except HelmError as error:
        raise ConfigError(explain(error.message)) from None
    texts = [text for path, text in templates.items() if path.endswith(".yaml")]
    objects: list[dict[str, Any]] = [document.value for text in texts for document in load_documents(text)]
    installed = [document for document in objects if "helm.sh/hook" not in document["metadata"].get("annotations", {})]
    return sorted(installed, key=_order)


def _order(document: Mapping[str, Any]) -> tuple[int, str, str]:
    kind = str(document["kind"])
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS), kind, str(document["metadata"]["name"])


def shipped_autoscaler(kind: str, name: str, namespace: str) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler or the ScaledObject that the chart creates by default.

    The triggers of the ScaledObject are those of all metrics of pods, in the order of the adapter's rules, and a
    prediction.
    """
    text = (_RENDERED / f"{kind}.yaml").read_text(encoding="utf-8")
    text = text.replace(RENDERED_NAMESPACE, namespace).replace(RENDERED_NAME, name)
    document: dict[str, Any] = load_document(text).value
    return document


def adapter_rules() -> list[dict[str, Any]]:
    """Return the rules of prometheus-adapter that serve metrics of pods in the custom.metrics.k8s.io API."""
    text = (chart_folder() / "files" / "adapter-rules.yaml").read_text(encoding="utf-8")
    rules: list[dict[str, Any]] = load_document(text).value["rules"]["custom"]
    return rules


def shipped_metrics() -> list[str]:
    """Return the names of the metrics of pods, in the order of the shipped ScaledObject's triggers."""
    return [str(rule["name"]["as"]) for rule in adapter_rules()]


def explain(message: str) -> str:
    """Return Helm's refusal of values with places as YAML has them, and with what the schema says is allowed there."""
    if conflict := _CONFLICT.search(message):
        return conflict[1]
    # Of several alternatives the last one says most.
    problems = {place: problem for place, problem in _INVALID.findall(message) if not _SUMMARY.fullmatch(problem)}
    if not problems:
        return message
    schema = json.loads((chart_folder() / "values.schema.json").read_bytes())
    return "\n".join(f"values: {_problem(schema, place, problem)}" for place, problem in problems.items())


def _problem(schema: Mapping[str, Any], pointer: str, problem: str) -> str:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/") if part]
    place = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts).removeprefix(".")
    allowed = _schema_at(schema, parts)
    if problem.startswith(_UNKNOWN):
        known = list(allowed.get("properties", ()))
        unknown = re.findall("'(.*?)'", problem)
        keys = (f"unknown key '{place and place + '.'}{key}'{did_you_mean(key, known, ';')}" for key in unknown)
        return f"{' '.join(keys)} Known: {', '.join(known)}"
    if problem.startswith(("minimum", "maximum")) and allowed.get("type") == "integer":
        problem = f"expected an integer from {allowed['minimum']} to {allowed['maximum']}"
    elif problem in ("got number, want string", "got boolean, want string"):
        problem += "; quote it"
    examples = f"; such as {' or '.join(allowed['examples'])}" if "examples" in allowed else ""
    description = f" ({allowed['description']})" if "description" in allowed else ""
    return f"{place and place + ': '}{problem}{examples}{description}"


def _schema_at(schema: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a place, with the definition that it refers to; empty where Kubernetes defines the part."""
    current = dict(schema)
    for part in [*parts, None]:
        if "$ref" in current:
            current = {**schema["$defs"][current["$ref"].rpartition("/")[2]], **current}
        if part is not None:
            below = (
                current.get("properties", {}).get(part) or current.get("items") or current.get("additionalProperties")
            )
            current = dict(below) if isinstance(below, dict) else {}
    return current
