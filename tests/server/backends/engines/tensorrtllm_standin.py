"""A stand-in for TensorRT-LLM's LLM API where there is no GPU: its names and its ways, and tokens that are bytes.

It has what the driver touches, with the fields of `SamplingParams` and the behaviour of `RequestOutput` as NVIDIA
documents them: an output is one object that changes with every step, and unknown parameters are errors.
`environment` makes a folder that serves as the environment of an engine.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_STEP_S = 0.001
_NAMES = {
    "tensorrt_llm/__init__.py": "LLM, SamplingParams\n__version__ = '1.3.0'",
    "tensorrt_llm/executor/__init__.py": "CppExecutorError, RequestError",
    "tensorrt_llm/executor/request.py": "LoRARequest",
    "tensorrt_llm/llmapi/__init__.py": "GuidedDecodingParams",
    "torch.py": "cuda",
    "transformers.py": "AutoConfig",
}


def environment(folder: Path) -> Path:
    """Write an environment whose interpreter finds the stand-in under the names of the packages that it stands for."""
    for name, exported in _NAMES.items():
        path = folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from tensorrtllm_standin import {exported}\n")
    program = folder / "bin" / "python"
    program.parent.mkdir()
    path_variable = f"{folder / 'packages'}:{Path(__file__).parent}"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{path_variable}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return folder


cuda = SimpleNamespace(device_count=lambda: 1)


class AutoConfig:
    """What `transformers` reads of a checkpoint."""

    @staticmethod
    def from_pretrained(model: str, *, trust_remote_code: bool) -> Any:
        return SimpleNamespace(vocab_size=256, max_position_embeddings=4096)


class CppExecutorError(RuntimeError):
    """The executor has ended."""


class RequestError(RuntimeError):
    """A request cannot be."""


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: str | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False


@dataclass(kw_only=True)
class SamplingParams:
    """The fields that a server may want."""

    max_tokens: int = 32
    stop: Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    n: int = 1
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_p: float | None = None
    logprobs: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    skip_special_tokens: bool = True


@dataclass
class _Output:
    token_ids: list[int] = field(default_factory=list)
    token_ids_diff: list[int] = field(default_factory=list)
    logprobs_diff: list[dict[int, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


class _Tokenizer:
    """Bytes for tokens."""

    chat_template = "{{ messages }}"
    eos_token = "</s>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def batch_decode(self, many: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        return [bytes(tokens).decode("utf-8", "replace") for tokens in many]


class _Result:
    """A request under way."""

    cached_tokens = 0

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if prompt[:1] == [0]:
            raise RequestError("a prompt must not begin with 0")
        self.outputs = [_Output()]
        self.finished = False
        self._params = params
        self._breaks = prompt[:1] == [1]
        self._last = sum(prompt)

    def abort(self) -> None:
        self.finished = True
        self.outputs[0].finish_reason = "cancelled"

    async def __aiter__(self) -> AsyncIterator["_Result"]:
        (output,) = self.outputs
        while not self.finished:
            await asyncio.sleep(_STEP_S)
            if self._breaks:
                raise CppExecutorError("the executor has ended")
            token = 97 + self._last % 26
            self._last = (self._last * 7 + token) % 1009
            output.token_ids.append(token)
            output.token_ids_diff = [token]
            if self._params.logprobs is not None:
                output.logprobs_diff = [{token: SimpleNamespace(logprob=-0.5), 32: SimpleNamespace(logprob=-1.5)}]
            if len(output.token_ids) >= self._params.max_tokens:
                output.finish_reason = "length"
                self.finished = True
            yield self


class LLM:
    """The model."""

    def __init__(self, *, model: str, max_seq_len: int, **arguments: Any) -> None:
        self.tokenizer = SimpleNamespace(tokenizer=_Tokenizer())

    def generate_async(
        self, inputs: Sequence[int], sampling_params: SamplingParams, *, lora_request: Any, streaming: bool
    ) -> _Result:
        assert streaming
        assert lora_request is None
        return _Result(inputs, sampling_params)

    async def get_stats_async(self, timeout: float) -> AsyncIterator[dict[str, Any]]:  # noqa: ASYNC109 - its name
        yield {"kvCacheStats": {"usedNumBlocks": 1, "maxNumBlocks": 4, "tokensPerBlock": 32}}

    def shutdown(self) -> None:
        """End, which it has done."""
