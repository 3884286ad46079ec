"""The objects for KServe: containers that Kubernetes accepts, and KServe's own rules for runtimes and services."""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tools.deploy_files import ROOT
from tools.kserve_runtimes import ONNX, RUNTIMES, ModelFormat, ServingRuntime

from conch.server.options.parser import parse
from conch.server.options.server_options import ServerOptions
from tests.docs.blocks import blocks_of

VERSIONS = ("1.27", "1.30", "1.33", "1.37")
SERVICES: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deploy/kserve/services").glob("*.yaml"))
}
OBJECTS = [runtime_object for runtime in RUNTIMES for runtime_object in runtime.objects("1.2.3")]
# Where KServe's runtimes choose themselves, with their priorities, by protocol; of release 0.21.
BUILT_IN = {"sklearn", "xgboost", "lightgbm", "onnx", "pytorch", "triton", "tensorrt", "huggingface"}
# What KServe's storage initializer and modelcars fetch.
SCHEMES = ("s3", "gs", "pvc", "hf", "oci", "https")


def container(runtime: dict[str, Any]) -> dict[str, Any]:
    (only,) = runtime["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def options(words: list[str], **flags: str) -> ServerOptions:
    """The server's options from the arguments of a container."""
    assert words[0] == "serve"
    return parse([word.replace("{{.Name}}", "m") for word in words[1:]], flags)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("runtime", OBJECTS, ids=lambda document: document["metadata"]["name"])
def test_kubernetes_accepts_the_pods(runtime: dict[str, Any], version: str) -> None:
    spec = {"containers": runtime["spec"]["containers"], "volumes": runtime["spec"]["volumes"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"}, "spec": spec}
    kubernetes_validate.validate(pod, version, strict=True)
    assert {volume["name"] for volume in spec["volumes"]} == {
        volume["name"] for volume in container(runtime)["volumeMounts"]
    }


@pytest.mark.parametrize("runtime", OBJECTS, ids=lambda document: document["metadata"]["name"])
def test_the_server_accepts_the_arguments_and_listens_where_it_is_probed(runtime: dict[str, Any]) -> None:
    only = container(runtime)
    chosen = options(only["args"], **{variable["name"]: variable["value"] for variable in only["env"]})
    assert (chosen.model_dir, chosen.model_name, chosen.model_repository) == ("/mnt/models", "m", ())
    (port,) = only["ports"]  # Knative allows one
    over_grpc = runtime["spec"]["protocolVersions"] == ["grpc-v2"]
    assert (port["name"], port["containerPort"]) == (
        ("h2c", chosen.grpc_port) if over_grpc else ("http1", chosen.http_port)
    )
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        (probed,) = (action["port"] for action in only[name].values() if isinstance(action, dict))
        assert probed == port["containerPort"], name
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(chosen.metrics_port)
    assert chosen.exit_timeout_secs < 30


def automatic(runtime: dict[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    for format_ in runtime["spec"]["supportedModelFormats"]:
        if format_["autoSelect"]:
            for protocol in runtime["spec"]["protocolVersions"]:
                yield format_["name"], format_["version"], protocol, format_["priority"]


def test_a_cluster_runtime_takes_no_services_from_those_of_kserve() -> None:
    chosen = [format_ for runtime in OBJECTS for format_ in automatic(runtime)]
    assert {name for name, *_ in chosen} == {"openvino", "treelite", "gguf", "openvino-genai"}
    assert not {name for name, *_ in chosen} & BUILT_IN
    # KServe's webhook refuses two runtimes of one priority for a format and a protocol.
    assert len({(name, version, protocol) for name, version, protocol, _ in chosen}) == len(chosen)


def test_a_namespace_opts_in_to_all_formats() -> None:
    runtime = RUNTIMES[0].runtime("1", namespaced=True)
    assert runtime["kind"] == "ServingRuntime"
    assert [name for name, *_ in automatic(runtime)] == [format_.name for format_ in RUNTIMES[0].formats]


def shown_services() -> dict[str, dict[str, Any]]:
    """The services of deploy/kserve, and of the pages."""
    services = dict(SERVICES)
    for page in ("oci-models.md", "kserve.md"):
        for block in blocks_of(ROOT / "docs" / page):
            text = "\n".join(block.lines)
            document = yaml.safe_load(text) if block.language == "yaml" else None
            if isinstance(document, dict) and document.get("kind") == "InferenceService":
                services[block.name] = document
    assert any(name.startswith("docs/oci-models.md") for name in services), services.keys()
    return services


@pytest.mark.parametrize("service", shown_services().values(), ids=shown_services())
def test_services_name_a_runtime_that_serves_their_format_and_protocol(service: dict[str, Any]) -> None:
    model = service["spec"]["predictor"]["model"]
    (runtime,) = (document for document in OBJECTS if document["metadata"]["name"] == model["runtime"])
    assert model["modelFormat"]["name"] in {format_["name"] for format_ in runtime["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["storageUri"].partition("://")[0] in SCHEMES
    options([*container(runtime)["args"], *model.get("args", ())], CONCH_MODEL_REPOSITORY="")


def test_knative_and_deployments_are_not_mixed() -> None:
    for name, service in SERVICES.items():
        annotations = service["metadata"].get("annotations", {})
        is_deployment = annotations.get("serving.kserve.io/deploymentMode") == "Standard"
        predictor = service["spec"]["predictor"]
        assert ("lifecycle" in predictor["model"]) == is_deployment, f"{name}: Knative allows no hooks"
        if not is_deployment:
            assert "autoScaling" not in predictor
            assert predictor.get("scaleMetric", "concurrency") in ("concurrency", "rps")
        elif predictor.get("minReplicas") == 0:
            pytest.fail(f"{name}: a Deployment does not scale to zero")


def test_resources_and_rows_are_those_of_the_table() -> None:
    made = ServingRuntime("x", "-gpu", "", (ONNX, ModelFormat("y", ("1", "2"), built_in=False)), limits=(("a/b", "1"),))
    only = container(made.runtime("7"))
    assert only["image"].endswith(":7-gpu")
    assert only["resources"]["limits"] == {"cpu": "1", "memory": "2Gi", "a/b": "1"}
    assert "--backend-config=default-max-batch-size=64" in only["args"]
    assert len(made.runtime("7")["spec"]["supportedModelFormats"]) == 3


def test_the_page_lists_runtimes_and_services() -> None:
    page = (ROOT / "docs" / "kserve.md").read_text(encoding="utf-8")
    for runtime in RUNTIMES:
        formats = ", ".join(format_.name for format_ in runtime.formats)
        built = f"`{runtime.build}`" if runtime.build else "published"
        assert f"\n| `{runtime.name}` | {formats} | `VERSION{runtime.suffix}` | {built} |\n" in page
    rows = page.partition("| File in `deploy/kserve/services`")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([\w-]+)\.yaml`", rows)) == sorted(SERVICES)
