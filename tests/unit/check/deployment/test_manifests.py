"""Manifests of Kubernetes: probes, GPUs, volumes, Services, disruption budgets, autoscalers."""

from pathlib import Path

import pytest
import yaml

from conch.base.extras import install_command
from conch.check.deployment import schema
from tests.docs.blocks import ROOT, blocks_of
from tests.unit.check.repository import findings_of, ids, write

SERVER = {
    "name": "triton",
    "image": "nvcr.io/nvidia/tritonserver:25.01-py3",
    "args": ["tritonserver", "--model-repository=/models"],
    "ports": [{"containerPort": 8000, "name": "http"}, {"containerPort": 8002, "name": "metrics"}],
    "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": "http"}},
    "resources": {"limits": {"nvidia.com/gpu": 1}},
}


def deployment(container: dict[str, object] | None = None, pod: object = None, **spec: object) -> dict[str, object]:
    """A Deployment of a server, with changes of its container, its pod and its specification."""
    merged = {name: value for name, value in (SERVER | (container or {})).items() if value is not None}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "triton"},
        "spec": {
            "selector": {"matchLabels": {"app": "triton"}},
            "template": {
                "metadata": {"labels": {"app": "triton"}},
                "spec": {"containers": [merged], **(pod if isinstance(pod, dict) else {})},
            },
            **spec,
        },
    }


def conch(image: str = "ghcr.io/conch-server/conch:0.1.0", **container: object) -> dict[str, object]:
    """A Deployment of Conch's image with this command and these arguments."""
    return deployment({"image": image, "args": None, **container})


def service(**spec: object) -> dict[str, object]:
    ports = [{"port": 8000, "targetPort": "http", "name": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "triton"},
        "spec": {"selector": {"app": "triton"}, "ports": ports, **spec},
    }


def scaler(kind: str = "HorizontalPodAutoscaler", **spec: object) -> dict[str, object]:
    groups = {"HorizontalPodAutoscaler": "autoscaling/v2", "ScaledObject": "keda.sh/v1alpha1"}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "triton"}
    return {
        "apiVersion": groups[kind],
        "kind": kind,
        "metadata": {"name": "scaler"},
        "spec": {"scaleTargetRef": target, **({"maxReplicas": 4} if kind != "ScaledObject" else {}), **spec},
    }


def budget(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "triton"},
        "spec": {"selector": {"matchLabels": {"app": "triton"}}, **spec},
    }


CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
LIVENESS = {"httpGet": {"path": "/v2/health/live", "port": "http"}}
PUBLIC = {"type": "LoadBalancer"}
EXPLICIT = {"args": ["tritonserver", "--model-repository=/models", "--model-control-mode=explicit"]}
WRONG = {
    "manifest-invalid": [deployment(replica=2)],
    "selector-mismatch": [deployment(selector={"matchLabels": {"app": "other"}})],
    "service-selects-nothing": [deployment(), service(selector={"app": "tritom"})],
    "port-unknown": [deployment({"readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": "web"}}})],
    "volume-unknown": [deployment({"volumeMounts": [{"name": "models", "mountPath": "/models"}]})],
    "probe-kills-loading": [deployment({"livenessProbe": LIVENESS})],
    "probe-missing": [deployment({"readinessProbe": None})],
    "shm-small": [deployment({"env": [{"name": "NCCL_P2P_DISABLE", "value": "1"}]})],
    "gpu-unlimited": [deployment({"resources": None, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})],
    "command-missing": [conch(args=["--model-repository=/models"])],
    "gpu-request": [deployment({"resources": {"requests": {"nvidia.com/gpu": 1}}})],
    "image-latest": [deployment({"image": "example.org/a/tritonserver"})],
    "secret-text": [deployment({"env": [{"name": "HF_TOKEN", "value": "a-real-one"}]})],
    "pdb-blocks-drain": [deployment(replicas=2), budget(minAvailable=2)],
    "autoscaler-no-request": [deployment(), scaler(metrics=[CPU])],
    "autoscaler-range": [scaler(minReplicas=5)],
    "autoscaler-twice": [scaler(), scaler("ScaledObject", triggers=[])],
    "control-public": [deployment(EXPLICIT), service(**PUBLIC)],
    "metrics-public": [deployment(), service(**PUBLIC, ports=[{"port": 8002, "targetPort": "metrics"}])],
    "grace-period": [deployment({"args": ["tritonserver", "--model-repository=/m", "--exit-timeout-secs=90"]})],
}


def write_objects(path: Path, objects: list[dict[str, object]]) -> Path:
    return write(path, yaml.safe_dump_all(objects, sort_keys=False))


@pytest.mark.parametrize("rule", WRONG)
def test_a_mistake_in_a_manifest(rule: str, tmp_path: Path) -> None:
    if rule == "manifest-invalid":
        pytest.importorskip("kubernetes_validate")
    write_objects(tmp_path / "all.yaml", WRONG[rule])
    assert set(ids(tmp_path)) == {rule}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"args": ["--model-repository=/models"]}, "runs `conch --model-repository=/models`, without a command"),
        ({"args": ["server", "--model-repository=/models"]}, "runs `conch server`, which is not a command"),
        ({"command": ["conch"], "args": ["--http-port=8000"]}, "runs `conch --http-port=8000`, without a command"),
        ({"args": ["serve", "--model-repositry=/models"]}, "unknown flag '--model-repositry'"),  # codespell:ignore
        ({"command": ["conch", "serve"], "args": ["--http-port=80000"]}, "--http-port"),
        ({"command": ["/opt/conch/bin/conch"], "args": ["serve", "--http-prt", "8000"]}, "unknown flag '--http-prt'"),
    ],
)
def test_arguments_of_the_image_are_read(container: dict[str, object], message: str, tmp_path: Path) -> None:
    write_objects(tmp_path / "all.yaml", [conch(**container)])
    (finding,) = findings_of(tmp_path)
    assert message in finding.message


@pytest.mark.parametrize(
    "container",
    [
        {},  # the image's own: serve
        {"args": []},
        {"args": ["serve", "--model-repository=/models", "--http-port", "8000"]},
        {"args": ["$(COMMAND)", "--model-repository=/models"]},
        {"args": ["repo", "pull", "oci://registry.example.com/models:1", "/models"]},
        {"command": ["/bin/sh", "-c"], "args": ["--model-repository=/models"]},
        {"image": "registry.example.com/conch-proxy:1", "args": ["--model-repository=/models"]},
    ],
)
def test_valid_arguments_of_the_image(container: dict[str, object], tmp_path: Path) -> None:
    write_objects(tmp_path / "all.yaml", [conch(**container)])
    assert [finding.message for finding in findings_of(tmp_path)] == []


@pytest.mark.parametrize("command", ["--model-repository=/models", ["--model-repository=/models"]])
def test_commands_of_compose_files_are_read(command: object, tmp_path: Path) -> None:
    service = {"image": "${IMAGE:-ghcr.io/conch-server/conch:0.1.0}", "command": command}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"services": {"conch": service}}))
    (finding,) = findings_of(tmp_path)
    assert "runs `conch --model-repository=/models`, without a command" in finding.message


def test_the_autoscaler_that_keda_created_is_not_a_second_one(tmp_path: Path) -> None:
    metric = {"metadata": {"query": "up", "serverAddress": "http://p", "threshold": "1"}, "type": "prometheus"}
    scaled = scaler("ScaledObject", triggers=[metric])
    own = scaler(metrics=[])
    own["metadata"] = {"name": "a", "ownerReferences": [{"kind": "ScaledObject", "name": "scaler", "uid": "1"}]}
    write_objects(tmp_path / "all.yaml", [deployment(), scaled, own])
    assert "autoscaler-twice" not in ids(tmp_path)
    own["metadata"] = {"name": "a"}
    write_objects(tmp_path / "all.yaml", [deployment(), scaled, own])
    assert "autoscaler-twice" in ids(tmp_path)


def test_manifests_of_the_documentation_name_a_command(tmp_path: Path) -> None:
    blocks = [block for page in sorted((ROOT / "docs").glob("**/*.md")) for block in blocks_of(page)]
    manifests = [
        block for block in blocks if block.language == "yaml" and "conch-server/conch" in "\n".join(block.lines)
    ]
    assert len(manifests) >= 2
    for block in manifests:
        path = tmp_path / f"{Path(block.page).stem}-{block.line}.yaml"
        path.write_text("\n".join(block.lines))
    assert [finding.message for finding in findings_of(tmp_path) if finding.rule == "command-missing"] == []


def test_without_schemas_one_notice_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def validator(kind: str, api_version: str) -> None:
        raise ModuleNotFoundError(f"of {kind} {api_version}", name="kubernetes_validate")

    monkeypatch.setattr(schema, "_validator", validator)
    write_objects(tmp_path / "all.yaml", [deployment(replica=2), service()])
    (finding,) = findings_of(tmp_path)
    assert finding.rule.id == "schema-unchecked"
    assert install_command("check") in finding.what_to_do


def test_a_liveness_probe_on_readiness(tmp_path: Path) -> None:
    ready = {"httpGet": {"path": "/v2/health/ready", "port": "http"}}
    write_objects(tmp_path / "a.yaml", [deployment({"livenessProbe": ready, "startupProbe": ready})])
    assert ids(tmp_path) == ["probe-liveness-ready"]


def test_a_sound_deployment(tmp_path: Path) -> None:
    container = {
        "livenessProbe": LIVENESS,
        "startupProbe": {"httpGet": {"path": "/v2/health/ready", "port": "http"}, "failureThreshold": 30},
        "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 4}, "requests": {"nvidia.com/gpu": 2}},
        "args": ["tritonserver", "--model-repository=/models", "--model-control-mode=explicit"],
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
            {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/token"},
        ],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}], "terminationGracePeriodSeconds": 60}
    objects = [deployment(container, pod, replicas=3), service(), budget(minAvailable=2)]
    objects.append(scaler(minReplicas=3, metrics=[CPU]))
    write_objects(tmp_path / "a.yaml", objects)
    assert [finding.message for finding in findings_of(tmp_path)] == []


def test_other_commands_of_the_servers_image_need_no_probes(tmp_path: Path) -> None:
    image = "ghcr.io/conch-server/conch:0.1.0"
    container = {"name": "test", "image": image, "command": ["conch", "health", "--metadata"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "test"}, "spec": {"containers": [container]}}
    write_objects(tmp_path / "a.yaml", [pod])
    assert ids(tmp_path) == []
    container["command"] = ["conch", "serve", "--model-repository=/models"]
    write_objects(tmp_path / "a.yaml", [pod])
    assert ids(tmp_path) == ["probe-missing"]


def test_objects_of_another_namespace_are_not_compared(tmp_path: Path) -> None:
    other = service(selector={"app": "x"}) | {"metadata": {"name": "triton", "namespace": "other"}}
    here = deployment() | {"metadata": {"name": "triton", "namespace": "here"}}
    write_objects(tmp_path / "a.yaml", [here, other])
    assert ids(tmp_path) == []


def test_a_restricted_server_may_be_public(tmp_path: Path) -> None:
    arguments = [*EXPLICIT["args"], "--http-restricted-api=model-repository:key=value"]
    write_objects(tmp_path / "a.yaml", [deployment({"args": arguments}), service(**PUBLIC)])
    assert ids(tmp_path) == []


BUDGETS = {
    "a minimum of an autoscaler above the budget": ([deployment(), scaler(minReplicas=2)], 1, []),
    "an autoscaler instead of the replicas": ([deployment(replicas=1), scaler(minReplicas=3)], 2, []),
    "a low minimum of an autoscaler": ([deployment(replicas=3), scaler(minReplicas=2)], 2, ["pdb-blocks-drain"]),
    "an autoscaler without a minimum": ([deployment(), scaler()], 1, ["pdb-blocks-drain"]),
    "KEDA": ([deployment(), scaler("ScaledObject", minReplicaCount=2, triggers=[])], 1, []),
    "KEDA to zero": ([deployment(), scaler("ScaledObject", minReplicaCount=0, triggers=[])], 1, ["pdb-blocks-drain"]),
    "replicas that an autoscaler elsewhere may set": ([deployment()], 1, []),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_disruption_budget_and_an_autoscaler(case: str, tmp_path: Path) -> None:
    objects, least, expected = BUDGETS[case]
    write_objects(tmp_path / "a.yaml", [*objects, budget(minAvailable=least)])
    findings = findings_of(tmp_path)
    assert [finding.rule.id for finding in findings] == expected
    assert all(finding.related[0].what.endswith(f"down to {least}") for finding in findings)
