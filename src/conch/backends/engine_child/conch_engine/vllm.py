"""vLLM's AsyncLLM: PagedAttention and continuous batching on GPUs, and on CPUs with its build for them.

`model.json` holds the engine's arguments as Triton's vLLM backend has them, passed on as they are, `multi_lora.json`
the LoRA adapters. Text, stop strings and detokenization are vLLM's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from conch_child.wire import FrameDecoder, Message

from . import async_loop
from .async_loop import AsyncEngine, News
from .driver import Prompt, Refused
from .model_json import read_json

# What the environment says and nobody set: an engine's statistics at its end, and its telemetry, are not asked for.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_SAME_NAME = (
    *("n", "min_tokens", "temperature", "top_p", "min_p", "seed", "stop", "stop_token_ids", "max_tokens"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logprobs"),
)
_HONOURED = (*_SAME_NAME, "top_k", "logit_bias", "structured")


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until the server ends the connection or says STOP."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    async_loop.serve(connection, decoder, backlog, lambda writer: VllmEngine(writer, options))


class VllmEngine(AsyncEngine):
    """An AsyncLLM."""

    def __init__(self, writer: asyncio.StreamWriter, options: dict[str, Any]) -> None:
        super().__init__(writer)
        from vllm import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.async_llm import AsyncLLM

        directory = Path(options["directory"])
        arguments = read_json(directory / "model.json")
        adapters = read_json(directory / "multi_lora.json")
        arguments.setdefault("disable_log_stats", True)
        model = Path(directory, str(arguments.get("model", "")))
        if "model" in arguments and model.exists():  # beside model.json, or an absolute path
            arguments["model"] = str(model)
        try:
            parsed = AsyncEngineArgs(**arguments)
        except TypeError as error:
            raise Refused(f"{directory / 'model.json'}: {error}") from error
        self._engine = AsyncLLM.from_engine_args(parsed)
        self._adapters = {
            name: LoRARequest(name, number, str(Path(directory, path)))
            for number, (name, path) in enumerate(adapters.items(), 1)
        }
        self._priorities = parsed.scheduling_policy == "priority"
        self.info = self._describe()

    async def generate(
        self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int
    ) -> AsyncIterator[News]:
        """Run a request; vLLM aborts it when the task is cancelled."""
        if adapter and adapter not in self._adapters:
            raise Refused(f"LoRA adapter '{adapter}' is unknown; this model has: {', '.join(self._adapters) or 'none'}")
        completion = 0
        outputs = self._engine.generate(
            prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)},
            self._sampling(params),
            str(key),
            lora_request=self._adapters[adapter] if adapter else None,
            priority=priority,
            tokenization_kwargs=None if params.get("add_special_tokens", True) else {"add_special_tokens": False},
        )
        async for output in outputs:
            completion += sum(len(each.token_ids) for each in output.outputs)
            deltas = tuple(self._delta(each, params) for each in output.outputs)
            if output.finished:
                yield deltas, (len(output.prompt_token_ids or ()), completion, output.num_cached_tokens or 0)
            else:
                yield deltas, None

    def is_broken(self, error: Exception) -> bool:  # noqa: ARG002 - it knows by itself
        """Return whether vLLM has given up."""
        return bool(self._engine.errored)

    def shut_down(self) -> None:
        """End vLLM's own processes."""
        self._engine.shutdown()

    def _sampling(self, params: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        given = {name: params[name] for name in _SAME_NAME if name in params}
        given.setdefault("max_tokens", None)
        if params.get("top_k"):
            given["top_k"] = params["top_k"]
        if "logit_bias" in params:
            given["logit_bias"] = params["logit_bias"]
        if "structured" in params:
            given["structured_outputs"] = _structured(*params["structured"])
        return SamplingParams(**given, output_kind=RequestOutputKind.DELTA)

    def _delta(self, output: Any, params: dict[str, Any]) -> tuple[Any, ...]:
        logprobs: tuple[Any, ...] = ()
        if params.get("logprobs") is not None and output.logprobs:
            logprobs = tuple(
                _alternatives(token, alternatives) for token, alternatives in zip(output.token_ids, output.logprobs)
            )
        finish = output.finish_reason if output.finish_reason in ("stop", "length", "abort", None) else "stop"
        return output.index, output.text, tuple(output.token_ids), finish, output.stop_reason, logprobs

    def _describe(self) -> dict[str, Any]:
        config = self._engine.vllm_config
        tokenizer = self._engine.get_tokenizer() if hasattr(self._engine, "get_tokenizer") else None
        if asyncio.iscoroutine(tokenizer):
            tokenizer.close()
            tokenizer = None
        cache = config.cache_config
        return {
            "context_length": config.model_config.max_model_len,
            "max_running": config.scheduler_config.max_num_seqs,
            "kv_cache_tokens": (cache.num_gpu_blocks or 0) * (cache.block_size or 0),
            "chat_template": getattr(tokenizer, "chat_template", None) or "",
            "special_tokens": {
                name: str(value)
                for name in ("bos_token", "eos_token", "pad_token", "unk_token")
                if (value := getattr(tokenizer, name, None))
            },
            "adapters": tuple(self._adapters),
            "honours": _HONOURED,
            "max_logprobs": config.model_config.max_logprobs,
            "priorities": self._priorities,
        }


def _alternatives(token: int, alternatives: dict[int, Any]) -> tuple[Any, ...]:
    """Return the chosen token first, then the likeliest."""
    chosen = alternatives[token]
    others = sorted((each for each in alternatives.items() if each[0] != token), key=lambda each: -each[1].logprob)
    listed = [(token, chosen), *others]
    return tuple((number, each.decoded_token or "", each.logprob) for number, each in listed)


def _structured(kind: str, value: str) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "choice":
        return StructuredOutputsParams(choice=json.loads(value))
    return StructuredOutputsParams(**{kind: value})
