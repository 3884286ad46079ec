"""The pipeline of the ensemble `detect` as business logic scripting: the same three models, called from Python."""

from __future__ import annotations

import asyncio
from typing import Any

import triton_python_backend_utils as pb_utils


class CallFailedError(Exception):
    """A model that was called has answered with an error."""

    def __init__(self, model: str, error: Any) -> None:
        super().__init__(f"in detect_bls, call of '{model}': {error.message()}")
        self.code = error.code()


class TritonPythonModel:
    """RAW_IMAGE [batch, 1] → DETECTION_RESULTS [batch, 1]."""

    async def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; while one waits for a model, the others continue."""
        return await asyncio.gather(*map(self._respond, requests))

    async def _respond(self, request: Any) -> Any:
        try:
            return pb_utils.InferenceResponse([await self._detect(request.inputs()[0])])
        except CallFailedError as failure:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(failure), failure.code))

    async def _detect(self, file: Any) -> Any:
        image, letterbox, shape = await call("preprocess", [file], ["IMAGE", "LETTERBOX", "ORIGINAL_SHAPE"])
        (detections,) = await call("detector", [named(image, "images")], ["output"])
        inputs = [named(detections, "DETECTIONS"), letterbox, shape]
        (results,) = await call("postprocess", inputs, ["DETECTION_RESULTS"])
        return results


async def call(model: str, inputs: list[Any], outputs: list[str]) -> list[Any]:
    """The outputs of another model, in this order. Raises CallFailedError."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs)
    response = await request.async_exec()
    if response.has_error():
        raise CallFailedError(model, response.error())
    return [pb_utils.get_output_tensor_by_name(response, name) for name in outputs]


def named(tensor: Any, name: str) -> Any:
    """The same tensor under another name, without a copy."""
    return pb_utils.Tensor.from_dlpack(name, tensor)
