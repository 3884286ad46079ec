"""Image files in, the detector's input out; with each also what maps its boxes back onto the original."""

from __future__ import annotations

import json
from typing import Any

import cv2
import triton_python_backend_utils as pb_utils
from image_file import ImageRefused
from prepare import prepare


class TritonPythonModel:
    """RAW_IMAGE [batch, 1] → IMAGE [batch, 3, side, side], LETTERBOX [batch, 4], ORIGINAL_SHAPE [batch, 2]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the canvas from the output IMAGE and the size limit from the parameters of config.pbtxt."""
        config = json.loads(args["model_config"])
        image = next(output for output in config["output"] if output["name"] == "IMAGE")
        self.canvas = int(image["dims"][-1])
        self.max_side = int(config["parameters"]["MAX_IMAGE_SIDE"]["string_value"])
        # The instances are the parallelism; OpenCV's own threads would only compete with them for the cores.
        cv2.setNumThreads(1)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; an image that is refused costs its own request only."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        files = pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE").as_numpy()
        try:
            tensors = prepare([bytes(file) for file in files.reshape(-1)], self.canvas, self.max_side)
        except ImageRefused as refusal:
            error = pb_utils.TritonError(str(refusal), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in tensors.items()])
