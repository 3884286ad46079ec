"""TensorRT-LLM through its LLM API: checkpoints on NVIDIA GPUs, by its PyTorch backend.

`model.json` holds the arguments of `tensorrt_llm.LLM`, passed on as they are; `model.yaml` of Triton's LLM API models
is read in its place. `multi_lora.json` holds the LoRA adapters.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from ..ipc.wire import FrameDecoder, Message
from . import async_loop
from .async_loop import AsyncEngine, News
from .driver import Prompt, Refused, prompt_alone, prompt_of, truncated
from .tensorrtllm_arguments import read_adapters, read_arguments, require_gpus
from .tensorrtllm_mapping import guide, room, sampling, supported_params, usage
from .tensorrtllm_strands import FINISH, Strand, follow, merged

_ENVIRONMENT = {"TLLM_LOG_LEVEL": "WARNING", "DO_NOT_TRACK": "1"}
_MAX_LOGPROBS = 20
_USUAL_BATCH = 2048
_STATISTICS_INTERVAL_S = 1.0


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until the server ends the connection or says STOP."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    async_loop.serve(connection, decoder, backlog, lambda writer: TensorRtLlmEngine(writer, options))


class TensorRtLlmEngine(AsyncEngine):
    """An `LLM`."""

    def __init__(self, writer: asyncio.StreamWriter, options: dict[str, Any]) -> None:
        super().__init__(writer)
        directory = Path(options["directory"])
        arguments = read_arguments(directory)
        adapters = read_adapters(directory, arguments)
        require_gpus(arguments, directory)
        try:
            import tensorrt_llm
            from tensorrt_llm.executor import CppExecutorError, RequestError
            from tensorrt_llm.executor.request import LoRARequest
        except ImportError as error:
            raise Refused(f"tensorrt_llm of '{sys.prefix}' cannot be imported: {error}") from error
        self._api = tensorrt_llm
        self._broken: type[Exception] = CppExecutorError
        self._refusal: type[Exception] = RequestError
        self._statistics = (0.0, 0, 0)
        try:
            self._llm = tensorrt_llm.LLM(**arguments)
        except (TypeError, ValueError) as error:
            raise Refused(f"{directory}: {error}") from error
        self._tokenizer = getattr(self._llm.tokenizer, "tokenizer", self._llm.tokenizer)  # Hugging Face's own
        self._adapters = {
            name: LoRARequest(name, number, str(folder)) for number, (name, folder) in enumerate(adapters.items(), 1)
        }
        self.info = self._describe(arguments)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def generate(
        self,
        key: int,
        prompt: Prompt,
        params: dict[str, Any],
        adapter: str,
        priority: int,  # noqa: ARG002 - its own ids
    ) -> AsyncIterator[News]:
        """Run a request as so many of the API's as it wants sequences: those tell of each step."""
        if adapter and adapter not in self._adapters:
            raise Refused(f"LoRA adapter '{adapter}' is unknown; this model has: {', '.join(self._adapters) or 'none'}")
        token_ids = self._tokens(prompt, params)
        told = self._prompt(token_ids, params)
        if params.get("prompt_only"):
            _, deltas, end = prompt_alone(key, *told)
            yield deltas, end
            return
        left = room(len(token_ids), params, self.info["context_length"])
        skips = params.get("skip_special_tokens", True)

        def decode(many: list[list[int]]) -> list[str]:
            return list(self._tokenizer.batch_decode(many, skip_special_tokens=skips))

        strands = [Strand(index, params, decode) for index in range(params.get("n", 1))]
        results: list[Any] = []
        try:
            for index in range(len(strands)):
                own = self._api.SamplingParams(**self._sampling(params, left, index))  # into which the API writes
                lora = self._adapters.get(adapter)
                results.append(self._llm.generate_async(token_ids, own, lora_request=lora, streaming=True))
            streams = [follow(*each) for each in zip(strands, results)]
            unfinished = len(streams)
            async for delta in streams[0] if unfinished == 1 else merged(streams):
                unfinished -= delta[FINISH] is not None
                delta, told = (*delta, *told), ()
                if unfinished:
                    yield (delta,), None
                else:
                    cached = max(getattr(each, "cached_tokens", 0) for each in results)
                    yield (delta,), (len(token_ids), sum(strand.tokens for strand in strands), cached)
        except self._refusal as error:
            raise Refused(str(error)) from error
        finally:
            for result in results:
                if not result.finished:
                    result.abort()

    def is_broken(self, error: Exception) -> bool:
        """Return whether the executor has ended."""
        return isinstance(error, self._broken)

    def shut_down(self) -> None:
        self._watching.cancel()
        self._llm.shutdown()

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return how busy the engine is, its cache as of the last time it was asked."""
        running, waiting, *_ = super().stats()
        return (running, waiting, *self._statistics, 0)

    def _tokens(self, prompt: Prompt, params: dict[str, Any]) -> list[int]:
        ids: Sequence[int] = prompt if not isinstance(prompt, str) else ()
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, add_special_tokens=params.get("add_special_tokens", True))
        return list(truncated(ids, params, self.info["context_length"]))

    def _prompt(self, token_ids: list[int], params: dict[str, Any]) -> tuple[Any, ...]:
        """Return the prompt as it is to be told, in a tuple; an empty one if it is not to be."""
        return (prompt_of(token_ids, params, self._tokenizer.batch_decode),) if "return_prompt" in params else ()

    def _sampling(self, params: dict[str, Any], left: int, index: int) -> dict[str, Any]:
        given = sampling(params, left, index)
        if "structured" in params:
            from tensorrt_llm.llmapi import GuidedDecodingParams

            given["guided_decoding"] = GuidedDecodingParams(**guide(*params["structured"]))
        if "logit_bias" in params:
            import torch

            bias = torch.zeros(self._vocabulary)
            for token, value in params["logit_bias"].items():
                if not 0 <= int(token) < self._vocabulary:
                    raise Refused(f"logit_bias names token {token}, the model has {self._vocabulary}")
                bias[int(token)] = value
            given["embedding_bias"] = bias
        return given

    async def _watch(self) -> None:
        """Ask for statistics from time to time; they are told with the next step."""
        while True:
            await asyncio.sleep(_STATISTICS_INTERVAL_S)
            if self._tasks:
                async for stats in self._llm.get_stats_async(timeout=_STATISTICS_INTERVAL_S):
                    self._statistics = usage(stats)

    def _describe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(
            arguments["model"], trust_remote_code=arguments.get("trust_remote_code", False)
        )
        config = getattr(config, "text_config", config)
        self._vocabulary: int = config.vocab_size
        return {
            "context_length": arguments.get("max_seq_len") or config.max_position_embeddings,
            "max_running": arguments.get("max_batch_size") or _USUAL_BATCH,
            "chat_template": self._tokenizer.chat_template or "",
            "special_tokens": {
                name: str(value)
                for name in ("bos_token", "eos_token", "pad_token", "unk_token")
                if (value := getattr(self._tokenizer, name, None))
            },
            "adapters": tuple(self._adapters),
            "supported_params": supported_params(self._api.__version__, arguments),
            "max_logprobs": _MAX_LOGPROBS,
        }
