"""Texts in, numbers of word pieces out, as the sentence encoder takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from wordpiece import PADDING, WordPieces

# Lengths are rounded up to one of these and its doubles, so that requests of nearly the same length share a batch.
_MIN_TOKENS = 8


class TritonPythonModel:
    """TEXT [batch, 1] → input_ids [batch, tokens], num_input_tokens [batch, 1]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the pieces beside this file, and the limit from the parameters of config.pbtxt."""
        self.pieces = WordPieces(Path(__file__).with_name("pieces.txt").read_text(encoding="utf-8").split())
        self.limit = int(json.loads(args["model_config"])["parameters"]["MAX_TOKENS"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; a text that is not valid UTF-8 fails its own request only."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        given = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        try:
            texts = [self.pieces.encode(bytes(text).decode(), self.limit) for text in given]
        except UnicodeDecodeError as error:
            refusal = pb_utils.TritonError(f"TEXT is not valid UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=refusal)
        lengths = [len(text) for text in texts]
        input_ids = np.full((len(texts), _rounded(max(lengths), self.limit)), PADDING, np.int64)
        for row, text in zip(input_ids, texts, strict=True):
            row[: len(text)] = text
        counts = np.array(lengths, np.int32)[:, None]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("num_input_tokens", counts)]
        )


def _rounded(length: int, limit: int) -> int:
    rounded = _MIN_TOKENS
    while rounded < length:
        rounded *= 2
    return min(rounded, limit)
