"""Rows of the detector in, the defects of each image as JSON out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from detections import Thresholds, as_records, detect
from numpy.typing import NDArray


class TritonPythonModel:
    """DETECTIONS [batch, 25200, 85], LETTERBOX [batch, 4], ORIGINAL_SHAPE [batch, 2] → DETECTION_RESULTS [batch, 1]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the thresholds from the parameters of config.pbtxt and the class names from labels.txt."""
        parameters = json.loads(args["model_config"])["parameters"]
        value = {key: parameter["string_value"] for key, parameter in parameters.items()}
        self.thresholds = Thresholds(
            confidence=float(value["CONFIDENCE_THRESHOLD"]),
            overlap=float(value["IOU_THRESHOLD"]),
            max_candidates=int(value["MAX_CANDIDATES"]),
            max_detections=int(value["MAX_DETECTIONS"]),
        )
        self.class_names = (Path(args["model_repository"]) / "labels.txt").read_text().splitlines()
        # The instances are the parallelism; OpenCV's own threads would only compete with them for the cores.
        cv2.setNumThreads(1)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        names = ("DETECTIONS", "LETTERBOX", "ORIGINAL_SHAPE")
        inputs = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names)
        results = [self.describe(*item) for item in zip(*inputs, strict=True)]
        tensor = pb_utils.Tensor("DETECTION_RESULTS", np.array(results, dtype=np.object_).reshape(-1, 1))
        return pb_utils.InferenceResponse([tensor])

    def describe(
        self, rows: NDArray[np.float32], letterbox: NDArray[np.float32], original_shape: NDArray[np.int32]
    ) -> bytes:
        """The JSON of one image: a list of bbox, confidence, class_id and class_name."""
        detections = detect(rows, letterbox, original_shape, self.thresholds)
        return json.dumps(as_records(detections, self.class_names), separators=(",", ":")).encode()
