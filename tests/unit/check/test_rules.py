"""Every rule: a repository that breaks only this rule."""

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import helper
from tools.check_page import reference

from conch.check.finding import families, rules
from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.support.packages import require
from tests.unit.check.deployment.test_files import WRONG as WRONG_FILES
from tests.unit.check.deployment.test_manifests import WRONG as WRONG_MANIFESTS
from tests.unit.check.repository import ECHO, TENSORS, ids, write, write_python
from tests.unit.check.test_articles import BESIDE, MISTAKES

PAGE = Path(__file__).parents[3] / "docs" / "check.md"
LARGE = """
import cv2
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(cv2.imdecode(request.inputs()[0].as_numpy(), 1)) for request in requests]

    def respond(self, image):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", image)])
"""
ROWS = TENSORS.replace("[ 4 ]", "[ 9, 85 ]", 1)
LAST = TENSORS.replace("output [", 'output [ { name: "LAST" data_type: TYPE_BOOL dims: 1 },')
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/e" } }'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
LABELLESS_SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: gpu, namespace: monitoring}
spec: {clusterIP: None, ports: [{port: 9400}]}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: gpu, namespace: monitoring}
spec:
  selector: {matchLabels: {app: gpu}}
  endpoints: [{port: metrics}]
"""
AUTOSCALER = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: triton-hpa}
spec:
  scaleTargetRef: {kind: Deployment, name: triton}
  maxReplicas: 4
  metrics:
    - type: Pods
      pods:
        metric: {name: nv_inference_request_success}
        target: {type: AverageValue, averageValue: 1000}
"""
SENDS = "for request in requests:\n    request.get_response_sender().send(requests[0])"
EIGHT = "max_batch_size: 8" + TENSORS


def python(config: str = TENSORS, code: str = ECHO) -> Callable[[Path], object]:
    return lambda root: write_python(root, "m", config, code)


def executes(body: str, config: str = TENSORS) -> Callable[[Path], object]:
    """A model with this body of `execute`, under eight blanks."""
    head = (
        "import time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"
    )
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    return python(config, f"{head}    def execute(self, requests):\n{lines}")


def per_request(expression: str) -> str:
    """The body of an `execute` that gives this array as OUT."""
    return (
        "responses = []\nfor request in requests:\n"
        '    array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()\n'
        f'    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {expression})]))\n'
        "return responses"
    )


def onnx(config: str, *, dims: tuple[str | int, ...] = ("n", 4)) -> Callable[[Path], object]:
    def build(root: Path) -> None:
        nodes = [helper.make_node("Identity", ["IN"], ["OUT"])]
        config_text = f'backend: "onnxruntime"\n{config}'
        write_model(root / "m", nodes, {"IN": (FP32, dims)}, {"OUT": (FP32, dims)}, config=config_text)

    return build


def ensemble(steps: str, tensors: str = TENSORS) -> Callable[[Path], object]:
    def build(root: Path) -> None:
        write_python(root, "m")
        (root / "e" / "1").mkdir(parents=True)
        write(root / "e" / "config.pbtxt", f'platform: "ensemble"\n{tensors}\nensemble_scheduling {{ {steps} }}')

    return build


def model_file(name: str, contents: bytes | None, backend: str = "onnxruntime") -> Callable[[Path], object]:
    def build(root: Path) -> None:
        write(root / "m" / "config.pbtxt", f'backend: "{backend}"\n{TENSORS}')
        (root / "m" / "1").mkdir()
        if contents is not None:
            write(root / "m" / "1" / name, contents)

    return build


def unreadable(root: Path) -> None:
    write_python(root, "m")
    path = root / "m" / "1" / "model.onnx"
    (path / "model.onnx").mkdir(parents=True)
    write(root / "m" / "config.pbtxt", f'backend: "onnxruntime"\n{TENSORS}')


def language_model(backend: str, **files: str) -> Callable[[Path], object]:
    """A model whose version has these files, "_" being the dot in their names."""

    def build(root: Path) -> None:
        write(root / "m" / "config.pbtxt", f'backend: "{backend}"')
        for name, contents in files.items():
            write(root / "m" / "1" / ".".join(name.rsplit("_", 1)), contents)

    return build


def labelled(text: bytes | None) -> Callable[[Path], object]:
    def build(root: Path) -> None:
        write_python(root, "m", TENSORS.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"'))
        if text is not None:
            write(root / "m" / "labels.txt", text)

    return build


def text(name: str, contents: str) -> Callable[[Path], object]:
    return lambda root: write(root / name, contents)


def limits_beside_a_model(root: Path) -> None:
    write_python(root / "models", "m")
    write(
        root / "limits.yaml",
        'limits:\n  - {model: n, requests_per_second: 8}\n  - {model: "*", requests_per_second: 9}\n',
    )


STEP = (
    'step { model_name: "m" model_version: -1 '
    'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'
)
BROKEN: list[tuple[str, Callable[[Path], object]]] = [
    ("repository-empty", lambda root: None),
    ("model-name", python('name: "other"' + TENSORS)),
    ("config-syntax", python(TENSORS + 'version_policy "1"')),
    ("config-unknown", python(TENSORS + "max_batchsize: 0")),
    ("config-invalid", python(TENSORS + "max_batch_size: -1")),
    (
        "config-unsupported",
        text(
            "m/config.pbtxt",
            'backend: "tensorrt" input { name: "a" data_type: TYPE_INT32 dims: 1 is_shape_tensor: true }\n',
        ),
    ),
    ("config-namespace", ensemble(STEP.replace("model_version: -1", 'model_namespace: "n"'))),
    ("config-no-effect", python(TENSORS + "instance_group { kind: KIND_CPU secondary_devices { } }")),
    ("backend-unknown", lambda root: write(write_python(root, "m") / "config.pbtxt", 'backend: "pythn"')),
    ("version-none", lambda root: write(root / "m" / "config.pbtxt", f'backend: "identity" {TENSORS}')),
    ("version-absent", python(TENSORS + "version_policy { specific { versions: [ 1, 2 ] } }")),
    ("version-name", lambda root: (write_python(root, "m"), (root / "m" / "v2").mkdir())),
    ("native-extension", onnx(TENSORS + 'max_batch_size: 2 model_operations { op_library_filename: "ops.so" }')),
    ("file-missing", model_file("network.onnx", b"x")),
    ("file-missing", python(TENSORS + ENVIRONMENT)),
    ("file-empty", model_file("model.onnx", b"")),
    ("file-lfs-pointer", model_file("model.onnx", POINTER)),
    ("file-damaged", model_file("model.onnx", b"no model at all")),
    ("file-damaged", model_file("model.onnx", b"\x3a\xff\xff\x03cut short")),
    ("model-signature", onnx(TENSORS.replace("FP32", "INT64", 1) + "max_batch_size: 2")),
    ("model-signature", onnx("max_batch_size: 2", dims=(1, 4))),
    ("file-damaged", model_file("model.xml", b"<net/>", "openvino")),
    ("model-unread", model_file("m.tflite", b"TFL3", 'openvino" default_model_filename: "m.tflite')),
    ("label-file", labelled(None)),
    ("label-count", labelled(b"a\nb\nc\n")),
    ("label-line-ends", labelled(b"a\r\nb\r\nc\r\nd\r\n")),
    ("ensemble-missing-model", ensemble(STEP.replace('"m"', '"n"'))),
    ("ensemble-missing-model", ensemble(STEP.replace("-1", "7"))),
    ("ensemble-optional", ensemble(STEP, TENSORS.replace("[ 4 ]", "[ 4 ] optional: true", 1))),
    ("ensemble-contract", ensemble(STEP, TENSORS.replace("[ 4 ]", "[ 5 ]", 1))),
    ("python-syntax", python(TENSORS, "class TritonPythonModel\n")),
    ("python-class", python(TENSORS, "class Model:\n    pass\n")),
    ("python-execute", python(TENSORS, "class TritonPythonModel:\n    pass\n")),
    ("python-execute", python(TENSORS, "class TritonPythonModel:\n    def execute(requests):\n        return []\n")),
    ("python-return", executes("for request in requests:\n    request.inputs()")),
    ("python-return", executes("return pb_utils.InferenceResponse([])")),
    ("python-return", executes("return []", TENSORS + "model_transaction_policy { decoupled: true }")),
    (
        "python-response-count",
        executes(per_request("array").replace("    array", "    if not request:\n        continue\n    array", 1)),
    ),
    ("python-response-count", executes(per_request("array").replace("\nreturn", "\n    return"))),
    ("python-sender", executes(SENDS)),
    ("python-api", executes("return [pb_utils.InferResponse([]) for request in requests]")),
    ("python-input", python(TENSORS, ECHO.replace('"IN"', '"INPUT"'))),
    ("python-output-missing", python(LAST)),
    ("python-datatype", executes(per_request("array.astype(np.float64)"))),
    ("python-datatype", executes(per_request("np.zeros((4,))"))),
    ("python-batch-axis", executes(per_request("np.zeros((4,), dtype=np.float32)"), EIGHT)),
    ("python-rank", executes(per_request("array.reshape(2, 2)"))),
    ("python-first-item", executes(per_request("np.stack([array[0]])"), EIGHT)),
    ("python-batch-nms", executes(per_request("batched_nms(array)"), EIGHT)),
    ("python-class-count", executes('names = ["a", "b"]\nreturn [names[int(r.flags())] for r in requests]', ROWS)),
    ("python-image-limit", python(TENSORS, LARGE)),
    ("python-print", executes("print(requests)\nreturn [pb_utils.InferenceResponse([]) for request in requests]")),
    ("python-sleep", executes("time.sleep(1)\nreturn [pb_utils.InferenceResponse([]) for request in requests]")),
    ("python-import", python(TENSORS, "import no_such_module_anywhere\n" + ECHO)),
    (
        "python-metric-class",
        text("m.py", "import triton_python_backend_utils as u\n\n\nclass A(u.Metric):\n    pass\n"),
    ),
    ("engine-arguments", language_model("scripted", model_json='{"unknown": 1}')),
    ("engine-arguments", language_model("openvino_genai", model_json="{")),
    ("path-elsewhere", language_model("vllm", model_json='{"model": "/nowhere/llama"}')),
    ("chat-template", language_model("vllm", model_json='{"model": "."}', chat_template_jinja="{% for %}")),
    ("flag-unknown", text("Dockerfile", 'CMD ["tritonserver", "--model-repository=/m", "--cpu-only"]\n')),
    (
        "flag-unknown",
        text("compose.yaml", "services:\n  a:\n    command: >\n      tritonserver --model-store=/m\n      --gpu=1\n"),
    ),
    ("flag-unknown", text("pod.yaml", "args:\n- tritonserver\n- --http-port\n- '8000'\n- --cpu-only\n")),
    ("flag-unknown", text("README.md", "Run `conch serve --model-repo=/m`.\n")),
    ("flag-unknown", text("README.md", "Run\n\n```\nconch serve --model-repository /m \\\n  --cpu\n```\n")),
    ("flag-value", text("serve.sh", "exec tritonserver --model-repository=$1 --http-port=http\n")),
    ("flag-no-effect", text("serve.sh", "tritonserver --model-repository=/m --http-thread-count=4 && echo --none\n")),
    ("image-tag", lambda root: (write(root / "a.yaml", "image: r.io/a/b:2\n"), write(root / "a.md", "`r.io/a/b:1`\n"))),
    (
        "alert-never-fires",
        text("rules.yaml", "groups:\n- name: g\n  rules:\n  - {alert: A, expr: conch_nothing > 1}\n"),
    ),
    ("alert-wrong", text("rules.yml", "- {alert: A, expr: nv_inference_request_success > 9}\n")),
    ("rule-invalid", text("rules.yml", "- {alrt: A, expr: up == 0}\n")),
    ("rule-invalid", text("rules.yml", "groups:\n- {name: g, intervals: 1m, rules: [{alert: A, expr: up == 0}]}\n")),
    ("rule-invalid", text("rules.yml", "groups:\n- {name: g, rulez: [{alert: A, expr: up == 0}]}\n")),
    ("rule-invalid", text("rules.yml", "groups:\n- {rules: [{alert: A, expr: up == 0}]}\n")),
    ("rule-invalid", text("rules.yml", "groups:\n- {name: g, interval: often, rules: [{alert: A, expr: up == 0}]}\n")),
    ("query-no-data", text("rules.yml", "- {record: 'a:b', expr: sum(conch_nothing)}\n")),
    ("query-no-data", text("board.json", '{"panels": [{"targets": [{"expr": "nv_inference_cuont"}]}]}')),
    ("query-wrong", text("board.json", '{"panels": [{"targets": [{"expr": "rate(conch_queue_depth[$__range])"}]}]}')),
    ("monitor-selects-nothing", text("gpu.yaml", LABELLESS_SERVICE)),
    ("limits-invalid", text("limits.yaml", "limits:\n  - {model: m, requests_per_second: 80qps}\n")),
    ("limits-unknown-model", limits_beside_a_model),
    ("limits-invalid", text("app.yaml", 'kind: Deployment\nmetadata: {name: a, annotations: {max_qps: "-1"}}\n')),
    ("monitor-port", text("gpu.yaml", LABELLESS_SERVICE.replace("{name: gpu,", "{name: gpu, labels: {app: gpu},"))),
    ("autoscaler-counter", text("hpa.yaml", AUTOSCALER)),
    ("autoscaler-metric", text("hpa.yaml", AUTOSCALER.replace("request_success", "request_succes"))),
    ("shm-variable", text("values.yaml", "env:\n  shm-size: 5g\n")),
]


@pytest.mark.parametrize(("rule", "build"), BROKEN, ids=[rule for rule, _ in BROKEN])
def test_a_broken_rule(rule: str, build: Callable[[Path], object], tmp_path: Path) -> None:
    build(tmp_path)
    if rule == "python-image-limit":
        require("cv2")
    if any("openvino" in path.read_text() for path in tmp_path.rglob("config.pbtxt")):
        require("openvino", "openvino_genai")
    assert set(ids(tmp_path)) == {rule}


def test_every_rule_is_tested() -> None:
    elsewhere = {"model-duplicate", "ensemble-unchecked", "python-output", "file-unreadable", "backend-not-installed"}
    elsewhere |= {
        "monitoring-unchecked",
        "schema-unchecked",
        "file-unchecked",
        "file-syntax",
        "probe-liveness-ready",
        "chart-invalid",
        "chart-unrendered",
    }
    elsewhere |= {"model-operations", "chat-template-missing", "context-length", "quantisation"}
    elsewhere |= {row[2] for row in MISTAKES} | {row[1] for row in BESIDE}  # of articles
    elsewhere |= WRONG_MANIFESTS.keys() | {row[0] for row in WRONG_FILES}
    assert rules().keys() - elsewhere == {rule for rule, _ in BROKEN} - elsewhere


def test_ids_are_unique() -> None:
    assert len(rules()) == sum(map(len, families().values()))


def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run make docs"
