"""The tensor form of a generation, with the names and rules of Triton's vLLM backend.

Sampling parameters are JSON in the input `sampling_parameters`, or without it the request's parameters. They have
vLLM's names, and their values may be strings, as in a prompts file.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from conch.base.errors import ConchError, InvalidRequest
from conch.domain.generation import (
    Delta,
    GenerationRequest,
    SamplingParams,
    StructuredOutput,
    Usage,
)
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import BYTES, Tensor, pack_bytes

_RETURNS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "truncate_prompt_tokens")
_BOOLEANS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens")
_ADAPTER = "lora_name"
_STRUCTURES = ("json", "regex", "grammar", "choice")
# Of an integer of 64 bits.
_MAX_DIGITS = 20
# Parameters of the server.
_IGNORED = ("priority", "timeout", "sequence_id", "triton_enable_empty_final_response")


class TensorForm:
    """One request in tensor form: its generation request for the engine, and its responses from deltas."""

    def __init__(
        self, request: GenerationRequest, version: int, *, stream: bool, echo: bool, outputs: set[str]
    ) -> None:
        self.request = request
        self._version = version
        self._stream = stream
        self._echo = echo  # whether the text begins with the prompt
        self._outputs = outputs  # the optional ones that are requested
        self._count = request.params.n
        self._unsent: list[Delta] = []

    @classmethod
    def of(cls, request: InferRequest, version: int) -> "TensorForm":
        """Decode a request. Raises InvalidRequest, naming the tensor or parameter."""
        prompt = _text(request, "text_input")
        if prompt is None:
            raise InvalidRequest(f"model '{request.model_name}' needs the input 'text_input'")
        stream = _flag(request, "stream", False)
        excluded = _flag(request, "exclude_input_in_output", stream)
        if stream and not excluded:
            raise InvalidRequest("When streaming, `exclude_input_in_output` = False is not allowed.")
        outputs = {name for name in _RETURNS if _flag(request, f"return_{name}", False)}
        text = _text(request, "sampling_parameters")
        parameters = _object(text) if text is not None else dict(request.parameters)
        adapter = str(parameters.pop(_ADAPTER, ""))
        params = sampling_params(parameters)
        if {"logprobs", "cumulative_logprob"} & outputs and params.logprobs is None:
            params = sampling_params({**parameters, "logprobs": 0})
        generation = GenerationRequest(
            id=request.id,
            model_name=request.model_name,
            prompt=prompt,
            params=params,
            version=version,
            adapter=adapter,
            priority=request.priority,
            timeline=request.timeline,
            span=request.span,
        )
        return cls(generation, version, stream=stream, echo=not excluded, outputs=outputs)

    def responses(self, deltas: Sequence[Delta], end: Usage | ConchError | None) -> list[InferResponse]:
        """Return the responses to send now, except the last one, which `last` returns."""
        if not self._stream or end is not None:
            self._unsent += deltas
            return []
        responses: list[InferResponse] = []
        for delta in deltas:
            if not delta.text and delta.finish_reason is None:
                # Tokens of an incomplete character are sent with the rest of it.
                self._unsent.append(delta)
                continue
            earlier = [unsent for unsent in self._unsent if unsent.index == delta.index]
            self._unsent = [unsent for unsent in self._unsent if unsent.index != delta.index]
            responses.append(self._response([*earlier, delta], None))
        return responses

    def last(self, end: Usage | ConchError) -> InferResponse | ConchError | None:
        """Return the last response."""
        if isinstance(end, ConchError):
            return end
        response = self._response(self._unsent, end)
        response.degraded = "prompt_truncated" if end.cut_tokens else ""
        return response

    def _response(self, deltas: Sequence[Delta], usage: Usage | None) -> InferResponse:
        sequences = [_Joined([delta for delta in deltas if delta.index == index]) for index in range(self._count)]
        if self._stream and usage is None:
            sequences = [sequence for sequence in sequences if sequence.deltas]
        prompt = self.request.prompt if self._echo and isinstance(self.request.prompt, str) else ""
        outputs = [_strings("text_output", [prompt + sequence.text for sequence in sequences])]
        if "finish_reason" in self._outputs:
            outputs.append(_strings("finish_reason", [sequence.finish_reason for sequence in sequences]))
        if "cumulative_logprob" in self._outputs:
            values = np.array([sequence.cumulative_logprob for sequence in sequences], np.float32)
            outputs.append(Tensor.from_numpy("cumulative_logprob", values))
        if "logprobs" in self._outputs:
            outputs.append(_strings("logprobs", [sequence.logprobs for sequence in sequences]))
        if "num_input_tokens" in self._outputs and usage is not None:
            outputs.append(_counts("num_input_tokens", [usage.prompt_tokens]))
        if "num_output_tokens" in self._outputs:
            outputs.append(_counts("num_output_tokens", [sequence.tokens for sequence in sequences]))
        return InferResponse(self.request.model_name, self._version, outputs, id=self.request.id)


class _Joined:
    """Joined deltas of one sequence."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        self.deltas = deltas

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def finish_reason(self) -> str:
        reasons = [delta.finish_reason.value for delta in self.deltas if delta.finish_reason is not None]
        return reasons[-1] if reasons else "null"

    @property
    def tokens(self) -> int:
        return sum(len(delta.token_ids) for delta in self.deltas)

    @property
    def cumulative_logprob(self) -> float:
        return sum(token[0].logprob for delta in self.deltas for token in delta.logprobs)

    @property
    def logprobs(self) -> str:
        """JSON of an object for each token: token id → logprob, rank and text, as in the vLLM backend."""
        return json.dumps(
            [
                {
                    str(candidate.token_id): {
                        "logprob": candidate.logprob,
                        "rank": candidate.rank or position,
                        "decoded_token": candidate.text,
                    }
                    for position, candidate in enumerate(token, 1)
                }
                for delta in self.deltas
                for token in delta.logprobs
            ]
        )


def sampling_params(parameters: Mapping[str, Any]) -> SamplingParams:
    """Parse a client's sampling parameters, whose values may be strings.

    Raises InvalidRequest, naming the parameter that is unknown or invalid.
    """
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _NUMBERS:
            values[name] = _number(name, value, float)
        elif name in _INTEGERS:
            values[name] = _number(name, value, int)
        elif name in _BOOLEANS:
            values[name] = _boolean(name, value)
        elif name in ("stop", "bad_words"):
            values[name] = tuple(map(str, _list(name, value)))
        elif name in ("stop_token_ids", "allowed_token_ids"):
            values[name] = tuple(_number(name, number, int) for number in _list(name, value))
        elif name == "logit_bias" and isinstance(value, Mapping):
            values[name] = {_number(name, key, int): _number(name, bias, float) for key, bias in value.items()}
        elif name == "guided_decoding" and isinstance(value, Mapping):
            values["structured"] = _structured(value)
        elif name not in _IGNORED:
            raise InvalidRequest(f"unknown sampling parameter '{name}'")
    return SamplingParams(**values)


def _structured(parameters: Mapping[str, Any]) -> StructuredOutput:
    for kind in _STRUCTURES:
        value = parameters.get(kind)
        if value is not None:
            return StructuredOutput(kind, value if isinstance(value, str) else json.dumps(value))  # type: ignore[arg-type]
    raise InvalidRequest(f"guided_decoding must hold one of {', '.join(_STRUCTURES)}")


def _number(name: str, value: Any, kind: type[int] | type[float]) -> Any:
    try:
        if not isinstance(value, bool):
            return kind(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidRequest(f"sampling parameter '{name}' must be a number, got {_shown(value)}")


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise InvalidRequest(f"sampling parameter '{name}' must be true or false, got {_shown(value)}")


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"sampling parameter '{name}' must be a JSON list, got {value[:80]}") from None
    return list(value) if isinstance(value, list | tuple) else [value]


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:80]


def _parsed(digits: str) -> int | float:
    """Parse an integer; more than 64 bits are a float, whatever their number."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}", parse_int=_parsed)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"input 'sampling_parameters' is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("input 'sampling_parameters' must hold a JSON object")
    return value


def _text(request: InferRequest, name: str) -> str | None:
    tensor = request.input(name)
    if tensor is None:
        return None
    count = prod(tensor.shape)
    if count != 1:
        return _not_one(name, count)
    data = memoryview(tensor.data)
    if len(data) < 4 or int.from_bytes(data[:4], "little") != len(data) - 4:
        raise InvalidRequest(f"input '{name}' does not hold one element of its {len(data)} bytes")
    try:
        return str(data[4:], "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"input '{name}' is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _flag(request: InferRequest, name: str, default: bool) -> bool:
    tensor = request.input(name)
    if tensor is None:
        return default
    count = prod(tensor.shape)
    return bool(tensor.to_numpy().reshape(-1)[0]) if count == 1 else bool(_not_one(name, count))


def _not_one(name: str, count: int) -> str:
    raise InvalidRequest(f"input '{name}' must hold one element, got {count}")


def _strings(name: str, texts: Sequence[str]) -> Tensor:
    return Tensor(name, BYTES, (len(texts),), pack_bytes(texts))


def _counts(name: str, counts: Sequence[int]) -> Tensor:
    return Tensor.from_numpy(name, np.array(counts, np.uint32))
