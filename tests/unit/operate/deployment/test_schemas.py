"""All objects of all values are valid, without unknown fields, for every version of Kubernetes from 1.30."""

import json
from collections.abc import Iterator
from copy import deepcopy
from importlib.resources import files
from typing import Any

import pytest

from tests.support.custom_resources import KINDS, custom_resource_errors
from tests.support.helm_process import HelmChart
from tests.unit.operate.deployment.value_sets import value_sets

INFERENCE_POOL = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "required": ["matchLabels"],
            "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "targetPorts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["number"],
                "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}},
            },
        },
        "endpointPickerRef": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "port"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 253},
                "port": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["number"],
                    "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}},
                },
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}
"""The spec of the extension's CRD, version v1; no package of a registry has it."""
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]


Shapes = dict[str, tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def shapes(chart: HelmChart) -> Shapes:
    """Objects of all values, each shape once, with the oldest minor version of Kubernetes that the values are for."""
    shapes: Shapes = {}
    for values in value_sets().values():
        oldest = int(values.get("kubernetesVersion", "1.30").partition(".")[2])
        for document in chart.objects(values, "gpt2", "models"):
            key = json.dumps(shape(document), sort_keys=True)
            shapes[key] = (min(oldest, shapes.get(key, (oldest,))[0]), document)
    return shapes


@pytest.fixture(scope="module")
def all_objects(shapes: Shapes) -> list[dict[str, Any]]:
    """Each shape of object once: names and numbers differ, fields do not."""
    return [document for _, document in shapes.values()]


def shape(value: Any) -> Any:
    """A value's fields and the types of what they contain."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items() if key != "labels"} | {
            "kind": value.get("kind"),
            "type": value.get("type"),
        }
    if isinstance(value, list):
        return sorted({json.dumps(shape(item), sort_keys=True) for item in value})
    return type(value).__name__


class Schemas:
    """The strict schemas of one version of Kubernetes."""

    def __init__(self, version: str) -> None:
        kubernetes_validate = pytest.importorskip("kubernetes_validate")
        from referencing import Registry, Resource

        self._folder = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
        definitions = json.loads((self._folder / "_definitions.json").read_bytes())
        self._registry = Resource.from_contents(definitions) @ Registry()
        self._validators: dict[str, Any] = {}

    def errors(self, value: dict[str, Any]) -> Iterator[str]:
        """Yield what is invalid in an object."""
        group, _, version = str(value["apiVersion"]).rpartition("/")
        name = "-".join(part for part in (value["kind"].lower(), group.partition(".")[0], version) if part)
        if name not in self._validators:
            from jsonschema import Draft202012Validator

            if value["kind"] == "InferencePool":
                schema = {"properties": {"spec": INFERENCE_POOL}}
            else:
                schema = json.loads((self._folder / f"{name}.json").read_bytes())
            self._validators[name] = Draft202012Validator(schema, registry=self._registry)
        for error in self._validators[name].iter_errors(value):
            yield f"{value['kind']} {list(error.absolute_path)}: {error.message[:200]}"


def test_shapes_are_of_all_kinds(all_objects: list[dict[str, Any]]) -> None:
    kinds = {document["kind"] for document in all_objects}
    expected = {
        "Deployment",
        "StatefulSet",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }
    assert kinds >= {*expected, "ConfigMap", "ServiceAccount", "Role", "RoleBinding", *KINDS}


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_kubernetes_are_valid(shapes: Shapes, version: str) -> None:
    schemas, minor = Schemas(version), int(version.partition(".")[2])
    checked = [document for oldest, document in shapes.values() if document["kind"] not in KINDS and oldest <= minor]
    assert [error for document in checked for error in schemas.errors(document)] == []


def test_inference_pools_are_valid_and_select_the_pods(chart: HelmChart) -> None:
    from jsonschema import validate

    for metrics, name, port in (("vllm", "gpt2-epp", 9002), ("triton", "picker", 9003)):
        more = {} if metrics == "vllm" else {"endpointPicker": name, "endpointPickerPort": port}
        values = {"inferencePool": {"enabled": True, "metrics": metrics, **more}}
        objects = {document["kind"]: document for document in chart.objects(values, "gpt2", "models")}
        pool = objects["InferencePool"]
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
        validate(pool["spec"], INFERENCE_POOL)
        assert pool["spec"]["endpointPickerRef"] == {"name": name, "port": {"number": port}, "failureMode": "FailClose"}
        pod = objects["Deployment"]["spec"]["template"]
        assert pool["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (server,) = pod["spec"]["containers"]
        assert pool["spec"]["targetPorts"][0]["number"] in {port["containerPort"] for port in server["ports"]}
        for prefix in ("inference.networking.k8s.io", "llm-d.ai"):
            assert pod["metadata"]["labels"][f"{prefix}/engine-type"] == metrics


def test_the_schemas_refuse_what_is_wrong(all_objects: list[dict[str, Any]]) -> None:
    schemas = Schemas(VERSIONS[0])
    budget = next(document for document in all_objects if document["kind"] == "PodDisruptionBudget")
    wrong = deepcopy(budget)
    wrong["spec"]["minAvailble"] = 1  # codespell:ignore
    assert "minAvailble" in next(schemas.errors(wrong))  # codespell:ignore
    hpa = deepcopy(next(document for document in all_objects if document["kind"] == "HorizontalPodAutoscaler"))
    hpa["spec"]["maxReplicas"] = "4"
    assert "maxReplicas" in next(schemas.errors(hpa))


@pytest.mark.slow
def test_custom_resources_are_valid(all_objects: list[dict[str, Any]]) -> None:
    resources = [document for document in all_objects if document["kind"] in KINDS]
    assert {resource["kind"] for resource in resources} == set(KINDS)
    wrong = [
        changed(resources, "ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 1),
        changed(resources, "ScaledObject", ("spec", "coolDown"), 300),
        changed(resources, "ScaledObject", ("spec", "fallback", "behavior"), "zero"),
        changed(resources, "PodMonitor", ("spec", "selector"), None),
        changed(resources, "ServiceMonitor", ("spec", "endpoints"), None),
        changed(resources, "PrometheusRule", ("spec", "groups", 0, "rules", 0, "expr"), None),
        changed(resources, "PrometheusRule", ("spec", "groups", 0, "interval"), 6),
        changed(resources, "TriggerAuthentication", ("spec", "secretTargetRef", 0, "key"), None),
    ]
    errors = custom_resource_errors([*resources, *wrong])
    assert [error for error in errors[: len(resources)] if error] == []
    expected = ["threshold", "coolDown", "behavior", "selector", "endpoints", "expr", "interval", "key"]
    assert [name for name, error in zip(expected, errors[len(resources) :], strict=True) if name not in error] == []


def changed(resources: list[dict[str, Any]], kind: str, path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """An object with another value at a path; None removes the field."""
    document = deepcopy(next(resource for resource in resources if resource["kind"] == kind))
    part: Any = document
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return document
