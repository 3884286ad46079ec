"""Valid repositories without findings: the examples, and forms similar to mistakes."""

from pathlib import Path

import pytest

from tests.support.packages import require
from tests.unit.check.repository import ECHO, TENSORS, findings_of, write, write_python

ROOT = Path(__file__).parents[3]
EIGHT = "max_batch_size: 8" + TENSORS
FORMS = {
    "a response assigned by index": """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = [None] * len(requests)
        for index, request in enumerate(requests):
            if request.is_cancelled():
                responses[index] = pb_utils.InferenceResponse(error=pb_utils.TritonError("gone"))
                continue
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
        return responses
""",
    "a sleep that no request waits for": ECHO.replace(
        "    def execute", "    def __init__(self):\n        import time\n        time.sleep(0.1)\n\n    def execute"
    ),
    "a model of another module": "from mine import Model as TritonPythonModel\n",
    "imports that may fail": "try:\n    import no_such_module\nexcept ImportError:\n    no_such_module = None\n" + ECHO,
    "a limit before the decoder": """
import io
from PIL import Image
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        arrays = []
        for file in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
            image = Image.open(io.BytesIO(file))
            if image.width * image.height > 4_000_000:
                raise pb_utils.TritonModelException("too large")
            arrays.append(np.asarray(image, dtype=np.float32))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.stack(arrays))])
""",
    "suppression for each item": """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        batch = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        kept = [nms(rows) for rows in batch]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(kept, dtype=np.float32).reshape(-1, 4))])

def nms(rows):
    return rows
""",
}


def test_the_examples_are_clean() -> None:
    require("cv2")
    findings = findings_of(ROOT / "examples")
    # One needs the package beside it, which brings its backend, to be installed first; one is a template without the
    # weights, which its README tells how to add.
    unfinished = ("third_party_backend", "new/llm")
    assert [finding for finding in findings if not any(folder in str(finding.place) for folder in unfinished)] == []
    assert {finding.rule.id for finding in findings} <= {"backend-unknown", "engine-arguments", "model-unread"}


def test_the_files_of_this_project_are_clean() -> None:
    require("helm_python")
    assert [finding for folder in ("deploy", "docs") for finding in findings_of(ROOT / folder)] == []


@pytest.mark.parametrize("form", FORMS)
def test_valid_forms(form: str, tmp_path: Path) -> None:
    write_python(tmp_path, "m", EIGHT, FORMS[form])
    write(tmp_path / "m" / "1" / "mine.py", "class Model:\n    pass\n")
    assert findings_of(tmp_path) == []


def test_control_and_state_tensors_are_inputs_and_outputs(tmp_path: Path) -> None:
    config = """
    max_batch_size: 8
    input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
    output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
    sequence_batching {
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
      state { input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 4 ] }
    }
    """
    code = ECHO.replace(
        "            responses",
        '            pb_utils.get_input_tensor_by_name(request, "START")\n'
        '            pb_utils.get_input_tensor_by_name(request, "SUM")\n'
        '            pb_utils.Tensor("NEXT", array)\n'
        "            responses",
        1,
    )
    write_python(tmp_path, "m", config, code)
    assert findings_of(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", "FROM nvcr.io/nvidia/tritonserver:23.08-py3\nCOPY --chown=0 a /opt/tritonserver/bin/\n"),
        ("run.sh", 'tritonserver --model-repository="$MODELS" --http-port ${PORT} --id {{ name }} >log 2>&1 --x\n'),
        ("run.sh", "# tritonserver --cpu-only\necho done --cpu-only\n"),
        ("run.sh", "tritonserver --help\nconch serve --model-repository=/m; curl --cpu-only\n"),
        ("note.md", "`tritonserver` takes no `--cpu-only`.\n"),
        ("pod.yaml", "command: [tritonserver]\nenv:\n- name: A\n  value: --cpu-only\n"),
        ("pod.yaml", 'args: ["tritonserver", "--metrics-config=counter_latencies=true", "--http-port", "8000"]\n'),
    ],
)
def test_valid_files_beside_a_repository(name: str, text: str, tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m")
    write(tmp_path / name, text)
    assert findings_of(tmp_path) == []
