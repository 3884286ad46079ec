"""Requests to language models with the tensors of Triton's vLLM and TensorRT-LLM backends."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.measure.bench.input_settings import DEFAULT_OUTPUT_TOKENS, InputError, InputSettings
from conch.measure.bench.inputs.tensor_request import TensorRequestEncoder, fixed_parameters, tensor_encoder
from conch.measure.bench.inputs.tensors import to_wire
from conch.measure.bench.prepared_request import ResponseKind
from conch.measure.bench.targets.target import BenchTarget, TargetModel, TensorMetadata

PROMPT_INPUT = "text_input"
_SAMPLING = "sampling_parameters"
# TensorRT-LLM's inputs for the number of tokens, at most and at least.
_MAX_INPUTS, _MIN_INPUTS = ("max_tokens", "request_output_len"), ("min_tokens", "min_length")


class TextTensorEncoder:
    """Encodes a prompt as `text_input`, and the rest as inputs that the model has, or else as parameters."""

    def __init__(self, target: BenchTarget, settings: InputSettings) -> None:
        self._encoder: TensorRequestEncoder = tensor_encoder(target, settings)
        self._model: TargetModel = target.model
        self._forms = {form.name: form for form in target.model.inputs}
        self._parameters = fixed_parameters(settings)
        self._settings = settings
        self.response: ResponseKind = self._encoder.response
        self._streams = self.response in (ResponseKind.GENERATE_STREAM, ResponseKind.GRPC_STREAM)
        self._streams = self._streams and settings.streaming

    def encode(self, prompt: str, output_tokens: int | None) -> tuple[bytes, bytes]:
        """Return head and body of a request. `output_tokens` of None are the default maximum. Raises InputError."""
        limit = DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens
        exact = self._settings.output_tokens is not None
        values: dict[str, Any] = {PROMPT_INPUT: prompt, "stream": self._streams, "exclude_input_in_output": True}
        sampling = {"max_tokens": limit} | ({"min_tokens": limit, "ignore_eos": True} if exact else {})
        parameters = dict(self._parameters)
        if _SAMPLING in self._forms:
            values[_SAMPLING] = orjson.dumps(sampling).decode()
        else:
            values |= dict.fromkeys(_MAX_INPUTS, limit) | (dict.fromkeys(_MIN_INPUTS, limit) if exact else {})
            if not any(name in self._forms for name in _MAX_INPUTS):
                parameters.update(sampling)
        return self._encoder.encode(self._tensors(values), parameters)

    def _tensors(self, values: Mapping[str, Any]) -> list[Tensor]:
        missing = [form.name for form in self._forms.values() if not form.optional and form.name not in values]
        if missing:
            names = ", ".join(missing)
            raise InputError(f"model '{self._model.name}' also needs the inputs {names}; give them with --input-data")
        return [self._tensor(form, values[form.name]) for form in self._forms.values() if form.name in values]

    def _tensor(self, form: TensorMetadata, value: str | bool | int) -> Tensor:
        shape = (1,) * len(form.shape)
        if form.datatype == BYTES:
            return Tensor(form.name, BYTES, shape, pack_bytes([str(value)]))
        return Tensor(form.name, form.datatype, shape, to_wire(np.array([value], _dtype(form)), form.datatype))


def _dtype(form: TensorMetadata) -> Any:
    return NUMPY_DTYPES.get(form.datatype, np.float32)
