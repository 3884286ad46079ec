"""TensorRT-LLM through its LLM API: checkpoints on NVIDIA GPUs, by its PyTorch backend.

`model.json` holds the arguments of `tensorrt_llm.LLM`, passed on unchanged; without it, `model.yaml` of Triton's LLM
API models is read. `multi_lora.json` lists the LoRA adapters.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from ...ipc.wire import FrameDecoder, Message
from .. import async_loop
from ..async_loop import AsyncEngine, Chunk
from ..driver import (
    Prompt,
    Refused,
    check_adapter,
    completion_room,
    cut_tokens,
    describe_prompt,
    prompt_only_event,
    truncated,
    visible_gpus,
)
from .arguments import gpus_here, read_adapters, read_arguments, require_gpus
from .mapping import guide, sampling, supported_params, usage
from .sequences import FINISH, OutputSequence, merge_streams, stream_deltas

_DEFAULT_ENVIRONMENT = {"TLLM_LOG_LEVEL": "WARNING", "DO_NOT_TRACK": "1"}
_MAX_LOGPROBS = 20
_DEFAULT_MAX_BATCH = 2048
_STATS_INTERVAL_S = 1.0


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until STOP or the end of the connection."""
    for name, value in _DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    async_loop.serve(connection, decoder, backlog, lambda writer: TensorRtLlmEngine(writer, options))


class TensorRtLlmEngine(AsyncEngine):
    """Runs requests on a `tensorrt_llm.LLM`."""

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
        self._fatal_error: type[Exception] = CppExecutorError
        self._request_error: type[Exception] = RequestError
        self._statistics = (0.0, 0, 0)
        try:
            self._llm = tensorrt_llm.LLM(**arguments)
        except (TypeError, ValueError) as error:
            raise Refused(f"{directory}: {error}") from error
        self._tokenizer = getattr(self._llm.tokenizer, "tokenizer", self._llm.tokenizer)  # Hugging Face's
        self._adapters = {
            name: LoRARequest(name, number, str(folder)) for number, (name, folder) in enumerate(adapters.items(), 1)
        }
        self.info = self._describe(arguments)
        self._stats_task = asyncio.get_running_loop().create_task(self._poll_stats())

    async def generate(
        self,
        key: int,
        prompt: Prompt,
        params: dict[str, Any],
        adapter: str,
        priority: int,  # noqa: ARG002 - its own ids
    ) -> AsyncIterator[Chunk]:
        """Run a request: one of the API's for each of its `n` sequences, since only those return every step."""
        check_adapter(adapter, self._adapters)
        token_ids = self._tokens(prompt, params)
        described = self._described_prompt(token_ids, params)
        if params.get("prompt_only"):
            _, deltas, end = prompt_only_event(key, *described)
            yield deltas, end
            return
        room = completion_room(self.info["context_length"], len(token_ids), params)
        skips = params.get("skip_special_tokens", True)

        def decode(many: list[list[int]]) -> list[str]:
            return list(self._tokenizer.batch_decode(many, skip_special_tokens=skips))

        sequences = [OutputSequence(index, params, decode) for index in range(params.get("n", 1))]
        results: list[Any] = []
        try:
            for index in range(len(sequences)):
                # One for each sequence, as the API writes into them.
                sampling_params = self._api.SamplingParams(**self._sampling(params, room, index))
                lora = self._adapters.get(adapter)
                results.append(self._llm.generate_async(token_ids, sampling_params, lora_request=lora, streaming=True))
            streams = [stream_deltas(*pair) for pair in zip(sequences, results)]
            unfinished = len(streams)
            async for delta in streams[0] if unfinished == 1 else merge_streams(streams):
                unfinished -= delta[FINISH] is not None
                delta, described = (*delta, *described), ()
                if unfinished:
                    yield (delta,), None
                else:
                    cached = max(getattr(result, "cached_tokens", 0) for result in results)
                    tokens = sum(sequence.tokens for sequence in sequences)
                    yield (delta,), (len(token_ids), tokens, cached, 0, *cut_tokens(params))
        except self._request_error as error:
            raise Refused(str(error)) from error
        finally:
            for result in results:
                if not result.finished:
                    result.abort()

    def is_fatal(self, error: Exception) -> bool:
        """Return whether the executor has failed."""
        return isinstance(error, self._fatal_error)

    def shutdown_engine(self) -> None:
        self._stats_task.cancel()
        self._llm.shutdown()

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return the engine's load; the cache's values are from the last poll."""
        running, waiting, *_ = super().stats()
        return (running, waiting, *self._statistics, 0)

    def _tokens(self, prompt: Prompt, params: dict[str, Any]) -> list[int]:
        ids: Sequence[int] = prompt if not isinstance(prompt, str) else ()
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, add_special_tokens=params.get("add_special_tokens", True))
        return list(truncated(ids, params, self.info["context_length"]))

    def _described_prompt(self, token_ids: list[int], params: dict[str, Any]) -> tuple[Any, ...]:
        """Return a tuple with the *prompt* of `messages`, an empty one if the request does not ask for it."""
        return (describe_prompt(token_ids, params, self._tokenizer.batch_decode),) if "return_prompt" in params else ()

    def _sampling(self, params: dict[str, Any], room: int, index: int) -> dict[str, Any]:
        given = sampling(params, room, index)
        if "structured" in params:
            from tensorrt_llm.llmapi import GuidedDecodingParams

            given["guided_decoding"] = GuidedDecodingParams(**guide(*params["structured"]))
        if "logit_bias" in params:
            import torch

            bias = torch.zeros(self._vocabulary)
            for token, value in params["logit_bias"].items():
                if not 0 <= int(token) < self._vocabulary:
                    raise Refused(f"logit_bias: token {token} is out of the vocabulary of {self._vocabulary} tokens")
                bias[int(token)] = value
            given["embedding_bias"] = bias
        return given

    async def _poll_stats(self) -> None:
        """Poll the statistics; the next STEP message sends them."""
        while True:
            await asyncio.sleep(_STATS_INTERVAL_S)
            if self._tasks:
                async for stats in self._llm.get_stats_async(timeout=_STATS_INTERVAL_S):
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
            "max_running": arguments.get("max_batch_size") or _DEFAULT_MAX_BATCH,
            "device": visible_gpus(gpus_here(arguments)),
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
