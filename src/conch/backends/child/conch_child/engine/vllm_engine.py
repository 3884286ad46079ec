"""vLLM's AsyncLLM: PagedAttention and continuous batching on GPUs, and on CPUs with its build for them.

Text, stop strings and detokenization are vLLM's own. Its API gives every request a task that is woken for every token;
here what a step has brought is taken where vLLM puts it down, without waking anybody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.envs import enable_envs_cache
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger

from . import cache_size, messages
from .async_loop import LoopEngine
from .driver import Prompt, Refused, completion_room, kept_tokens, prompt_alone, prompt_of
from .shared_memory import shared_memory
from .vllm_arguments import read_adapters, read_arguments

_SAME_NAME = (
    *("n", "min_tokens", "temperature", "top_p", "min_p", "seed", "stop", "stop_token_ids", "max_tokens"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logprobs", "top_k", "logit_bias", "prompt_logprobs"),
    *("spaces_between_special_tokens", "allowed_token_ids", "bad_words"),
)
_TRUNCATION = ("truncate_prompt_tokens", "truncation_side")
_SUPPORTED_PARAMS = (*_SAME_NAME, *_TRUNCATION, "cache_salt", "structured")
# What vLLM takes of a GPU's memory if it is not told, and the arguments that say how large the cache is.
_GPU_SHARE = AsyncEngineArgs.gpu_memory_utilization
_SIZES = {"kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override"}
_LEAST_CACHE = 1 << 26
_DELTA = 6  # items of a delta without a prompt
_FAILED = "error"  # a finish reason of vLLM's


class VllmEngine(LoopEngine):
    """An AsyncLLM."""

    def __init__(self, writer: asyncio.StreamWriter, options: dict[str, Any]) -> None:
        super().__init__(writer)
        directory = Path(options["directory"])
        defaults = {field.name: field.default for field in fields(AsyncEngineArgs)}
        arguments = read_arguments(directory, defaults)
        self._adapters = self._lora(directory) if arguments.get("enable_lora") else {}
        self._size_cache(arguments, options["memory"])
        loggers: list[Any] = [] if arguments.get("disable_log_stats") else [_Steps]
        try:
            parsed = AsyncEngineArgs(**{**arguments, "disable_log_stats": True})
            self._engine = AsyncLLM.from_engine_args(parsed, stat_loggers=loggers)
        except RuntimeError as error:  # of its core, or a worker: they have printed the cause
            raise Refused(f"{directory / 'model.json'}: {error}. The last that was printed:") from error
        except (ValueError, OSError) as error:
            raise Refused(f"{directory / 'model.json'}: {error}") from error
        self._requests: dict[int, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._steps: _Steps | None = self._engine.logger_manager.stat_loggers[0] if loggers else None
        config = self._engine.vllm_config
        self._context = config.model_config.max_model_len
        # As a chat template leaves a prompt, it has its special tokens already.
        self._plain = self._engine.renderer.default_cmpl_tok_params
        self._templated = self._plain.with_kwargs(add_special_tokens=False)
        self.info = self._describe(config)
        enable_envs_cache()  # for every token vLLM asks the environment something
        self._engine.output_handler.add_done_callback(self._died)

    def begin(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        """Have a task bring the request to vLLM's scheduler; it ends before the first token comes."""
        self._requests[key] = request = _Request(self, key, params)
        self._do(self._add(request, prompt, params, adapter, priority))

    def abort(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            self.over(request)
            if request.vllm_id:
                self._do(self._abort(request.vllm_id))

    def over(self, request: _Request) -> None:
        """Forget a request that has ended."""
        request.over = True
        self._requests.pop(request.key, None)

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return what vLLM's scheduler says of its steps, or what is known without it."""
        steps = self._steps
        if steps is None:
            running = sum(request.completion_tokens > 0 for request in self._requests.values())
            return running, len(self._requests) - running, 0.0, 0, 0, 0
        counters = (steps.prefix_queries, steps.prefix_hits, steps.preemptions)
        if not self._requests:  # no step has told of what was aborted last
            return 0, 0, 0.0, *counters
        return steps.running, steps.waiting, steps.kv_cache_usage, *counters

    def close(self) -> None:
        logging.getLogger("vllm").setLevel(logging.ERROR)  # that it has to hurry is no news
        if not self._engine.output_handler.remove_done_callback(self._died):
            return
        self._engine.shutdown()

    def _size_cache(self, arguments: dict[str, Any], offer: Mapping[str, Any]) -> None:
        """Give the cache its share of memory if nobody has said how large it is. Raises Refused if there is too little.

        On a GPU it is vLLM that measures; what several are told to take must not be more than there is.
        """
        if not current_platform.is_cpu():
            warning = cache_size.overbooked(offer, arguments.get("gpu_memory_utilization", _GPU_SHARE))
            if warning:
                self.log(messages.WARNING, warning)
        elif not os.environ.get("VLLM_CPU_KVCACHE_SPACE") and not _SIZES & arguments.keys():
            files = Path(arguments["model"]).glob("*.safetensors") if Path(arguments["model"]).is_dir() else ()
            weights = sum(path.stat().st_size for path in files)
            size, why = cache_size.share(offer, weights, _LEAST_CACHE)
            arguments["kv_cache_memory_bytes"] = size
            self.log(
                messages.INFO,
                f"KV cache of {cache_size.in_gib(size)}: {why}; kv_cache_memory_bytes in model.json chooses another",
            )

    def _lora(self, directory: Path) -> dict[str, Any]:
        adapters = enumerate(read_adapters(directory).items(), 1)
        return {name: LoRARequest(name, number, str(path)) for number, (name, path) in adapters}

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(
        self, request: _Request, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int
    ) -> None:
        try:
            rendered = await self._rendered(request, prompt, params)
            if params.get("prompt_only") and "prompt_logprobs" not in params:
                self.over(request)
                self.tell(prompt_alone(request.key, request.prompt or ((), "", (), ())))
                return
            collector = await self._added(request, rendered, params, adapter, priority)
            request.vllm_id = collector.request_id
            if request.over:  # aborted meanwhile
                await self._abort(request.vllm_id)
                return
            collector.put = request.put
            first = collector.get_nowait()
            if first is not None:
                request.put(first)
        except Exception as error:  # what becomes of one request must not end the others
            request.put(error)

    async def _rendered(self, request: _Request, prompt: Prompt, params: dict[str, Any]) -> Any:
        """Return the prompt as vLLM takes it: tokenized, and truncated. Raises what vLLM raises."""
        given: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}
        if "cache_salt" in params:
            given["cache_salt"] = params["cache_salt"]
        form = self._plain if params.get("add_special_tokens", True) else self._templated
        if "truncate_prompt_tokens" in params:
            kept, side = kept_tokens(params, self._context), params.get("truncation_side", "left")
            form = form.with_kwargs(truncate_prompt_tokens=kept, truncation_side=side)
        (rendered,) = await self._engine.renderer.render_cmpl_async([given], form)
        request.prompt_tokens = len(rendered["prompt_token_ids"])
        if "return_prompt" in params:
            request.prompt = prompt_of(rendered["prompt_token_ids"], params, self._engine.tokenizer.batch_decode)
        return rendered

    async def _added(
        self, request: _Request, rendered: Any, params: dict[str, Any], adapter: str, priority: int
    ) -> Any:
        """Give the request to vLLM and return its collector of outputs. Raises Refused, and what vLLM raises."""
        if adapter and adapter not in self._adapters:
            raise Refused(f"LoRA adapter '{adapter}' is unknown; this model has: {', '.join(self._adapters) or 'none'}")
        room = completion_room(self._context, request.prompt_tokens, params.get("max_tokens"))
        return await self._engine.add_request(
            str(request.key),
            rendered,
            _sampling(params, room),
            lora_request=self._adapters[adapter] if adapter else None,
            priority=priority,
        )

    async def _abort(self, vllm_id: str) -> None:
        await self._engine.abort(vllm_id, internal=True)
        self.tell_figures()

    def _died(self, _: Any) -> None:
        """End this process, as vLLM's core has ended: the server tells the requests, and starts another."""
        print("vLLM's engine core has ended; its own lines say why", file=sys.stderr, flush=True)
        os._exit(1)

    def _describe(self, config: Any) -> dict[str, Any]:
        tokenizer = self._engine.tokenizer
        cache = config.cache_config
        template = getattr(tokenizer, "chat_template", None) or ""
        return {
            "context_length": self._context,
            "max_running": config.scheduler_config.max_num_seqs,
            "kv_cache_bytes": cache.kv_cache_memory_bytes or 0,
            "kv_cache_taken": True,
            "kv_cache_tokens": cache.kv_cache_size_tokens or 0,
            "kv_block_size": cache.block_size or 0,
            "prefix_caching": bool(cache.enable_prefix_caching),
            "gpu_memory_share": 0.0 if current_platform.is_cpu() else cache.gpu_memory_utilization,
            "chat_template": template.get("default", "") if isinstance(template, dict) else template,
            "special_tokens": {
                name: str(value)
                for name in ("bos_token", "eos_token", "pad_token", "unk_token")
                if (value := getattr(tokenizer, name, None))
            },
            "adapters": tuple(self._adapters),
            "supported_params": _SUPPORTED_PARAMS,
            "max_logprobs": config.model_config.max_logprobs,
            "priorities": config.scheduler_config.policy == "priority",
            "shared_memory": shared_memory(),
        }


class _Request:
    """One request. Takes the place of vLLM's collector, into which each step puts what it has brought."""

    __slots__ = (
        *("_engine", "_logprobs", "_prompt_only", "completion_tokens", "key", "over", "prompt", "prompt_tokens"),
        "vllm_id",
    )

    def __init__(self, engine: VllmEngine, key: int, params: Mapping[str, Any]) -> None:
        self.key = key
        self.vllm_id = ""  # until vLLM has it
        self.prompt_tokens = 0
        self.prompt: tuple[Any, ...] | None = None  # until it has been told, if it is to be
        self.completion_tokens = 0
        self.over = False
        self._engine = engine
        self._logprobs = params.get("logprobs") is not None
        self._prompt_only = params.get("prompt_only", False)

    def put(self, output: Any) -> None:
        """Tell the server of it, unless the request is over, or all of them are: that is seen by the process's end."""
        if self.over or isinstance(output, EngineDeadError):
            return
        end: tuple[Any, ...] | None = None
        deltas: list[tuple[Any, ...]] = []
        if isinstance(output, Exception):
            end = _refusal(output)
        else:
            for each in output.outputs:
                self.completion_tokens += len(each.token_ids)
                deltas.append(self._delta(each))
            if self.prompt is not None and deltas:
                deltas[0] = (*deltas[0], self._with_logprobs(self.prompt, output.prompt_logprobs))
                self.prompt = None
            if output.finished:
                scheduled = int(output.metrics.scheduled_ts * 1e9) if output.metrics is not None else 0
                end = (self.prompt_tokens, self.completion_tokens, output.num_cached_tokens or 0, scheduled)
            if any(each.finish_reason == _FAILED for each in output.outputs):
                deltas, end = [], (messages.INTERNAL, "vLLM has given this request up")
        if self._prompt_only and deltas:
            if len(deltas[0]) == _DELTA:
                return  # what was generated beside the prompt's probabilities
            self._engine.tell(prompt_alone(self.key, deltas[0][_DELTA]))
            self._engine.abort(self.key)
            return
        if end is not None:
            self._engine.over(self)
        self._engine.tell((self.key, tuple(deltas), end))

    def _with_logprobs(self, prompt: tuple[Any, ...], found: Any) -> tuple[Any, ...]:
        if not found:
            return prompt
        ids, text, pieces, _ = prompt
        told = [_alternatives(token, each) if each else () for token, each in zip(ids, found)]
        return ids, text, pieces, tuple(told)

    def _delta(self, each: Any) -> tuple[Any, ...]:
        logprobs: tuple[Any, ...] = ()
        if self._logprobs and each.logprobs:
            logprobs = tuple(map(_alternatives, each.token_ids, each.logprobs))
        return each.index, each.text, tuple(each.token_ids), each.finish_reason, each.stop_reason, logprobs


class _Steps(PrometheusStatLogger):  # type: ignore[misc]
    """Notes what the scheduler says with each step. One of Prometheus', since vLLM adds its own to any other."""

    def __init__(self, **_: Any) -> None:
        self.prefix_queries = self.prefix_hits = self.preemptions = 0
        self._gauges: dict[int, tuple[int, int, float]] = {}  # of each of the cores, of which there may be several

    @property
    def running(self) -> int:
        """Sequences that are computed side by side."""
        return sum(gauges[0] for gauges in self._gauges.values())

    @property
    def waiting(self) -> int:
        """Sequences that wait for that."""
        return sum(gauges[1] for gauges in self._gauges.values())

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache that is in use, 0 to 1."""
        return sum(gauges[2] for gauges in self._gauges.values()) / max(len(self._gauges), 1)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, engine_idx: int = 0, **__: Any) -> None:
        """Take a step's figures."""
        if scheduler_stats is not None:
            waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._gauges[engine_idx] = scheduler_stats.num_running_reqs, waiting, scheduler_stats.kv_cache_usage
            self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Say nothing: the server shows what there is."""

    def log(self) -> None:
        """Say nothing."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Do nothing: engines do not sleep here."""

    def record_admission_rejection(self, reason: str) -> None:
        """Do nothing: the server sees the refusal."""


def _refusal(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refused):
        return error.code, error.text
    if isinstance(error, GracefulHTTPError):  # queues that model.json bounds
        return messages.UNAVAILABLE, str(error)
    if isinstance(error, (VLLMClientError, ValueError)):
        return messages.INVALID_ARG, str(error)
    return messages.INTERNAL, f"{type(error).__name__}: {error}"


def _sampling(params: Mapping[str, Any], room: int) -> Any:
    given = {name: params[name] for name in _SAME_NAME if name in params}
    given["max_tokens"] = room
    if "structured" in params:
        given["structured_outputs"] = _structured(*params["structured"])
    return SamplingParams(**given, output_kind=RequestOutputKind.DELTA, skip_clone=True)


def _alternatives(token: int, alternatives: Mapping[int, Any]) -> tuple[Any, ...]:
    """Return the chosen token first, then the likeliest."""
    chosen = alternatives[token]
    others = sorted((each for each in alternatives.items() if each[0] != token), key=lambda each: -each[1].logprob)
    listed = [(token, chosen), *others]
    return tuple((number, each.decoded_token or "", each.logprob, each.rank or 0) for number, each in listed)


def _structured(kind: str, value: str) -> Any:
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "choice":
        return StructuredOutputsParams(choice=json.loads(value))
    return StructuredOutputsParams(**{kind: value})
