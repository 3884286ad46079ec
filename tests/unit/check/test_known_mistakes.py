"""Mistakes from articles about serving, each reduced to its cause."""

from pathlib import Path

from conch.check.command import check
from tests.support.packages import require
from tests.unit.check.repository import findings_of, ids, only_finding, write, write_python

PIPELINE = """
import json
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.mean = np.array([0.5, 0.5, 0.5], dtype=np.float32)

    def execute(self, requests):
        responses = []
        for request in requests:
            file = pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE").as_numpy()[0]
            image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
            if image is None:
                raise pb_utils.TritonModelException("not an image")
            height, width = image.shape[:2]
            planes = np.transpose(image.astype(np.float32), (2, 0, 1))
            pixels = pb_utils.Tensor("IMAGE", (planes / 255 - self.mean[:, None, None]).astype(np.float32))
            shape = pb_utils.Tensor("ORIGINAL_SHAPE", np.array([height, width], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[pixels, shape]))
        return responses
"""

POSTPROCESS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


def non_max_suppression(rows):
    return rows


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            detections = pb_utils.get_input_tensor_by_name(request, "DETECTIONS").as_numpy()
            found = []
            for row in non_max_suppression(detections):
                found.append({"class": ["defect", "normal"][int(row[5])]})
            text = json.dumps(found)
            out = pb_utils.Tensor("RESULTS", np.array([text.encode("utf-8")], dtype=object))
            responses.append(pb_utils.InferenceResponse(output_tensors=[out]))
        return responses
"""


def preprocess(root: Path, batching: str) -> Path:
    return write_python(
        root,
        "preprocess",
        f"""
        max_batch_size: 8
        input [ {{ name: "RAW_IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
        output [
          {{ name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 640, 640 ] }},
          {{ name: "ORIGINAL_SHAPE" data_type: TYPE_INT32 dims: [ 2 ] }}
        ]
        {batching}
        """,
        PIPELINE,
    )


def test_a_scheduler_written_as_a_list(tmp_path: Path) -> None:
    path = write_python(tmp_path, "m") / "config.pbtxt"
    write(path, path.read_text() + "max_batch_size: 8\ndynamic_batching [ { max_queue_delay_microseconds: 100 } ]\n")
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line, finding.place.column) == ("config-syntax", 5, 18)
    assert "write `dynamic_batching { … }`" in finding.message
    assert check(["--fix", str(tmp_path)]) == 0
    assert "\ndynamic_batching { max_queue_delay_microseconds: 100 }\n" in path.read_text()
    assert findings_of(tmp_path) == []


def test_the_list_is_fixed_over_several_lines(tmp_path: Path) -> None:
    path = write_python(tmp_path, "m") / "config.pbtxt"
    write(
        path, path.read_text() + "max_batch_size: 8\ndynamic_batching [\n  {\n    preferred_batch_size: [ 4 ]\n  }\n]\n"
    )
    assert check(["--fix", str(tmp_path)]) == 0
    assert findings_of(tmp_path) == []


def test_a_model_that_drops_the_batch_axis(tmp_path: Path) -> None:
    require("cv2")
    preprocess(tmp_path, "dynamic_batching { }")
    by_rule = {finding.rule.id: finding for finding in findings_of(tmp_path)}
    assert by_rule.keys() == {"python-batch-axis", "python-first-item", "python-image-limit"}
    assert [finding.message for finding in findings_of(tmp_path) if finding.rule.id == "python-batch-axis"] == [
        "output 'IMAGE' has 3 dimensions, but 4 are declared: [batch, 3, 640, 640]; max_batch_size is 8",
        "output 'ORIGINAL_SHAPE' has 1 dimension, but 2 are declared: [batch, 2]; max_batch_size is 8",
    ]
    assert "only item 0 of input 'RAW_IMAGE' is read" in by_rule["python-first-item"].message


def test_errors_after_a_mistake_in_the_configuration_are_found_too(tmp_path: Path) -> None:
    preprocess(tmp_path, "dynamic_batching [ { } ]")
    assert {"config-syntax", "python-batch-axis", "python-first-item"} <= set(ids(tmp_path))


def test_boxes_of_a_batch_together_and_two_names_for_eighty_classes(tmp_path: Path) -> None:
    write_python(
        tmp_path,
        "postprocess",
        """
        max_batch_size: 8
        input [ { name: "DETECTIONS" data_type: TYPE_FP32 dims: [ 25200, 85 ] } ]
        output [ { name: "RESULTS" data_type: TYPE_STRING dims: [ 1 ] } ]
        """,
        POSTPROCESS,
    )
    by_rule = {finding.rule.id: finding.message for finding in findings_of(tmp_path)}
    assert by_rule.keys() == {"python-batch-axis", "python-batch-nms", "python-class-count"}
    assert by_rule["python-batch-nms"] == "non_max_suppression receives input 'DETECTIONS' of a whole request"
    assert by_rule["python-class-count"].startswith("2 class names for 80 classes")


def test_an_image_tag_that_the_text_does_not_know(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m")
    write(tmp_path / "chart" / "values.yaml", 'image:\n  repository: example.org/server\n  tag: "24.06-py3"\n')
    readme = write(tmp_path / "README.md", "The image is `example.org/server:24.02-py3`.\n")
    finding = only_finding(tmp_path)
    assert finding.rule.id == "image-tag"
    assert finding.message == (
        "example.org/server:24.06-py3 is deployed, but the text names example.org/server:24.02-py3"
    )
    assert (finding.place.path.name, finding.place.line, finding.place.column) == ("values.yaml", 3, 9)
    assert finding.related[0].place.path == readme
    write(readme, "The image is `example.org/server:24.06-py3`.\n")
    assert findings_of(tmp_path) == []


def test_the_size_of_shared_memory_as_a_variable(tmp_path: Path) -> None:
    write(tmp_path / "values.yaml", 'environment:\n  - name: "shm-size"\n    value: "5g"\n')
    assert ids(tmp_path) == ["shm-variable"]
    write(tmp_path / "values.yaml", "services:\n  server:\n    shm_size: 5g\n    environment:\n      A: b\n")
    assert ids(tmp_path) == []


def test_a_metric_as_a_class_and_a_plug_in_of_metrics(tmp_path: Path) -> None:
    write(
        tmp_path / "custom_metrics.py",
        """
        from triton_python_backend_utils import Metric, MetricFamily


        class Threshold(MetricFamily):
            name = "threshold"
            kind = "gauge"
        """,
    )
    write(tmp_path / "serve.sh", "tritonserver --model-repository=/m --metrics-config custom_metrics=/m/metrics.so\n")
    assert [(finding.rule.id, finding.place.line) for finding in findings_of(tmp_path)] == [
        ("python-metric-class", 4),
        ("flag-value", 1),
    ]


def test_a_flag_that_triton_never_had(tmp_path: Path) -> None:
    write(tmp_path / "serve.sh", "#!/bin/sh\ntritonserver \\\n  --model-repository=/models \\\n  --cpu-only\n")
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line, finding.place.column) == ("flag-unknown", 4, 3)
    assert finding.message.startswith("unknown flag '--cpu-only'")
