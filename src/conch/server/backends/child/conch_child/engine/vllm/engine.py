"""vLLM through its AsyncLLM: PagedAttention and continuous batching on GPUs, and on CPUs with its build for them.

vLLM detokenizes and handles stop strings. Its API wakes a task per request and token; here `_Request` replaces vLLM's
output collector, so that a step's outputs are sent without task switches.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.envs import enable_envs_cache
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal.image import convert_image_mode, normalize_image
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger

from .. import cache_size, messages
from ..async_loop import LoopEngine
from ..driver import (
    Prompt,
    Refused,
    check_adapter,
    completion_room,
    describe_prompt,
    max_prompt_tokens,
    prompt_only_event,
    visible_gpus,
)
from ..images import decoded
from .arguments import read_adapters, read_arguments

_SAME_NAME = (
    *("n", "min_tokens", "temperature", "top_p", "min_p", "seed", "stop", "stop_token_ids", "max_tokens"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logprobs", "top_k", "logit_bias", "prompt_logprobs"),
    *("spaces_between_special_tokens", "allowed_token_ids", "bad_words"),
)
_TRUNCATION = ("truncate_prompt_tokens", "truncation_side")
_SUPPORTED_PARAMS = (*_SAME_NAME, *_TRUNCATION, "cache_salt", "structured")
# The default share of a GPU's memory, and the arguments that set the cache's size.
_GPU_SHARE = AsyncEngineArgs.gpu_memory_utilization
_SIZES = {"kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override"}
_MIN_CACHE_BYTES = 1 << 26
_CPU_IMAGE_CACHE_GIB = 0.25  # of processed images, in this process and in the core: vLLM's default is 4
# What vLLM reads of an adapter's folder.
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.*", "new_embeddings.*")
_MAX_COPIES_BYTES = 32 << 30  # of adapters, on the disk of temporary files
_MAX_IMAGES = 16  # of a request, where `limit_mm_per_prompt` in model.json has none
_MAX_DECODING = 2  # requests whose images are decoded, and in memory, at a time: vLLM processes those of one
_DELTA_ITEMS = 6  # of a delta without a prompt
_ADDRESS = re.compile("0x[0-9a-fA-F]{6,}")  # of objects that texts of errors name: not for clients
_FAILED = "error"  # a finish reason of vLLM


class VllmEngine(LoopEngine):
    """Runs requests on a vLLM AsyncLLM."""

    def __init__(self, writer: asyncio.StreamWriter, options: dict[str, Any]) -> None:
        super().__init__(writer)
        directory = Path(options["directory"])
        defaults = {field.name: field.default for field in fields(AsyncEngineArgs)}
        arguments = read_arguments(directory, defaults)
        self._takes_adapters = bool(arguments.get("enable_lora"))
        self._adapters = self._lora(directory) if self._takes_adapters else {}
        self._adapter_numbers = count(len(self._adapters) + 1)
        self._read_adapters: set[int] = set()  # that vLLM could read
        self._retired: dict[int, LoRARequest] = {}  # unloaded ones that requests still use
        self._copies: dict[str, int] = {}  # bytes of adapters' copies by folder
        self._scratch = options["scratch"]
        self._size_cache(arguments, options["memory"])
        loggers: list[Any] = [] if arguments.get("disable_log_stats") else [_StepStats]
        if current_platform.is_cpu():
            arguments.setdefault("mm_processor_cache_gb", _CPU_IMAGE_CACHE_GIB)
        try:
            parsed = AsyncEngineArgs(**{**arguments, "disable_log_stats": True})
            self._engine = AsyncLLM.from_engine_args(parsed, stat_loggers=loggers)
        except RuntimeError as error:  # of its core or a worker, which printed the cause
            raise Refused(f"{directory / 'model.json'}: {error}. Last output:") from error
        except (ValueError, OSError) as error:
            raise Refused(f"{directory / 'model.json'}: {error}") from error
        self._requests: dict[int, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._decoding = asyncio.Semaphore(_MAX_DECODING)
        self._step_stats: _StepStats | None = self._engine.logger_manager.stat_loggers[0] if loggers else None
        config = self._engine.vllm_config
        self._context = config.model_config.max_model_len
        # Prompts made by a chat template already contain special tokens.
        self._raw_params = self._engine.renderer.default_cmpl_tok_params
        self._templated_params = self._raw_params.with_kwargs(add_special_tokens=False)
        self.info = self._describe(config)
        enable_envs_cache()  # vLLM reads environment variables for every token
        self._engine.output_handler.add_done_callback(self._on_core_exit)

    def begin(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int) -> None:
        """Start a task that adds the request to vLLM's scheduler; it ends before the first token."""
        self._requests[key] = request = _Request(self, key, params)
        self._spawn(self._start(request, prompt, params, adapter, priority))

    def abort(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            if request.vllm_id:
                self._spawn(self._abort(request.vllm_id))
            self.finish(request)

    async def set_adapter(self, name: str, path: str) -> None:
        if not self._takes_adapters:
            raise Refused('LoRA adapters need "enable_lora": true in model.json', messages.UNSUPPORTED)
        added = await self._add_adapter(name, Path(path)) if path else None
        earlier = self._adapters.pop(name, None)
        if added is not None:
            self._adapters[name] = added
        if earlier is not None:
            self._retired[earlier.lora_int_id] = earlier
            self._discard_unused(earlier)

    async def _add_adapter(self, name: str, path: Path) -> LoRARequest:
        """Load a copy of an adapter's files. Raises Refused, and what vLLM raises.

        vLLM reads an adapter again after it evicted it, which ends its core if the files are gone, and takes prefixes
        of the KV cache from adapters of the same name and path, whose weights may have been others.
        """
        files, size = _adapter_files(path)
        used = sum(self._copies.values())
        if used + size > _MAX_COPIES_BYTES:
            raise Refused(
                f"'{path}' has {size} bytes, and copies of other adapters {used}; {_MAX_COPIES_BYTES} bytes are the "
                "maximum: unload some"
            )
        copy = mkdtemp(prefix="lora-", dir=self._scratch)
        self._copies[copy] = size
        try:
            await asyncio.to_thread(_copy_files, files, copy)
            adapter = LoRARequest(name, next(self._adapter_numbers), copy)
            await self._engine.add_lora(adapter)
        except BaseException:
            shutil.rmtree(copy)
            del self._copies[copy]
            raise
        self._read_adapters.add(adapter.lora_int_id)
        return adapter

    def _discard_unused(self, adapter: LoRARequest) -> None:
        """Remove a retired adapter and its copy, unless a request uses it."""
        if not any(request.adapter is adapter for request in self._requests.values()):
            del self._retired[adapter.lora_int_id]
            self._spawn(self._discard(adapter))

    async def _discard(self, adapter: LoRARequest) -> None:
        await self._engine.remove_lora(adapter.lora_int_id)
        await asyncio.to_thread(shutil.rmtree, adapter.lora_path)
        del self._copies[adapter.lora_path]

    def finish(self, request: _Request) -> None:
        """Drop a request that has ended."""
        request.finished = True
        self._requests.pop(request.key, None)
        if request.adapter is not None and request.adapter.lora_int_id in self._retired:
            self._discard_unused(request.adapter)

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return the load that vLLM's scheduler reports, or the numbers of requests with `disable_log_stats`."""
        steps = self._step_stats
        if steps is None:
            running = sum(request.completion_tokens > 0 for request in self._requests.values())
            return running, len(self._requests) - running, 0.0, 0, 0, 0
        counters = (steps.prefix_queries, steps.prefix_hits, steps.preemptions)
        if not self._requests:  # no step reports the abortion of the last requests
            return 0, 0, 0.0, *counters
        return steps.running, steps.waiting, steps.kv_cache_usage, *counters

    def close(self) -> None:
        logging.getLogger("vllm").setLevel(logging.ERROR)  # without warnings on the early shutdown
        if not self._engine.output_handler.remove_done_callback(self._on_core_exit):
            return
        self._engine.shutdown()

    def _size_cache(self, arguments: dict[str, Any], offer: Mapping[str, Any]) -> None:
        """Set the cache's default size on CPUs, unless configured. Raises Refused if there is too little memory.

        On GPUs vLLM measures by itself; log a warning if several engines exceed a GPU's memory.
        """
        if not current_platform.is_cpu():
            warning = cache_size.overcommit_warning(offer, arguments.get("gpu_memory_utilization", _GPU_SHARE))
            if warning:
                self.log(messages.WARNING, warning)
        elif not os.environ.get("VLLM_CPU_KVCACHE_SPACE") and not _SIZES & arguments.keys():
            files = Path(arguments["model"]).glob("*.safetensors") if Path(arguments["model"]).is_dir() else ()
            weights = sum(path.stat().st_size for path in files)
            size, why = cache_size.default_size(offer, weights, _MIN_CACHE_BYTES)
            arguments["kv_cache_memory_bytes"] = size
            remedy = "set kv_cache_memory_bytes in model.json to change it"
            self.log(messages.INFO, f"KV cache of {cache_size.format_gib(size)}: {why}; {remedy}")

    def _lora(self, directory: Path) -> dict[str, Any]:
        adapters = enumerate(read_adapters(directory).items(), 1)
        return {name: LoRARequest(name, number, str(path)) for number, (name, path) in adapters}

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(
        self, request: _Request, prompt: Prompt, params: dict[str, Any], adapter: str, priority: int
    ) -> None:
        try:
            rendered = await self._render(request, prompt, params)
            if params.get("prompt_only") and "prompt_logprobs" not in params:
                self.finish(request)
                self.emit(prompt_only_event(request.key, request.prompt or ((), "", (), ())))
                return
            collector = await self._submit(request, rendered, params, adapter, priority)
            request.vllm_id = collector.request_id
            if request.finished:  # aborted meanwhile
                await self._abort(request.vllm_id)
                return
            collector.put = request.put
            first = collector.get_nowait()
            if first is not None:
                request.put(first)
        except Exception as error:  # one request's failure must not end the others
            request.put(error)

    async def _render(self, request: _Request, prompt: Prompt, params: dict[str, Any]) -> Any:
        """Return vLLM's prompt object: tokenized, truncated, with pixels. Raises Refused, and what vLLM raises."""
        raw: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}
        if "cache_salt" in params:
            raw["cache_salt"] = params["cache_salt"]
        if "images" in params:
            async with self._decoding:
                if request.finished:
                    raise Refused("the request was aborted")
                raw["multi_modal_data"] = {"image": await asyncio.to_thread(decoded, params.pop("images"), _as_rgb)}
                try:
                    rendered = await self._tokenized(raw, params)
                except (VLLMClientError, ValueError):
                    raise
                except Exception as error:  # of an odd image, or of a prompt without a placeholder for each
                    text = f"the model's processor cannot place the images in the prompt: {error}"
                    raise Refused(text) from error
        else:
            rendered = await self._tokenized(raw, params)
        request.prompt_tokens = len(rendered["prompt_token_ids"])
        if "return_prompt" in params:
            request.prompt = describe_prompt(rendered["prompt_token_ids"], params, self._engine.tokenizer.batch_decode)
        return rendered

    async def _tokenized(self, raw: dict[str, Any], params: dict[str, Any]) -> Any:
        tok_params = self._raw_params if params.get("add_special_tokens", True) else self._templated_params
        if "truncate_prompt_tokens" in params:
            size, side = max_prompt_tokens(params, self._context), params.get("truncation_side", "left")
            tok_params = tok_params.with_kwargs(truncate_prompt_tokens=size, truncation_side=side)
        # The cache that it skips is a mirror of that of vLLM's core, which does not get the images of requests that are
        # refused or only tokenized.
        (rendered,) = await self._engine.renderer.render_cmpl_async([raw], tok_params, skip_mm_cache=True)
        return rendered

    async def _submit(
        self, request: _Request, rendered: Any, params: dict[str, Any], adapter: str, priority: int
    ) -> Any:
        """Add the request to vLLM and return its output collector. Raises Refused, and what vLLM raises."""
        check_adapter(adapter, self._adapters)
        room = completion_room(self._context, request.prompt_tokens, params)
        request.adapter = self._adapters[adapter] if adapter else None
        if request.adapter is not None and request.adapter.lora_int_id not in self._read_adapters:
            await self._engine.add_lora(request.adapter)  # in a step, an invalid one would end vLLM's core
            self._read_adapters.add(request.adapter.lora_int_id)
        return await self._engine.add_request(
            str(request.key),
            rendered,
            _sampling(params, room),
            lora_request=request.adapter,
            priority=priority,
        )

    async def _abort(self, vllm_id: str) -> None:
        await self._engine.abort(vllm_id, internal=True)
        self.emit_stats()

    def _on_core_exit(self, _: Any) -> None:
        """Exit this process after vLLM's core; the server fails the requests and restarts the process."""
        print("vLLM's engine core exited; see its output above", file=sys.stderr, flush=True)
        os._exit(1)

    def _describe(self, config: Any) -> dict[str, Any]:
        tokenizer = self._engine.tokenizer
        cache = config.cache_config
        processor = self._engine.renderer.mm_processor
        template = processor and getattr(processor.info.get_hf_processor(), "chat_template", None)
        template = template or getattr(tokenizer, "chat_template", None) or ""
        return {
            "context_length": self._context,
            "max_running": config.scheduler_config.max_num_seqs,
            "device": _device(config),
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
            "image_placeholders": _placeholders(processor, config.model_config) if processor is not None else (),
            "adapters": tuple(self._adapters),
            "max_adapters": config.lora_config.max_loras if config.lora_config is not None else 0,
            "supported_params": _SUPPORTED_PARAMS,
            "max_logprobs": config.model_config.max_logprobs,
            "priorities": config.scheduler_config.policy == "priority",
        }


class _Request:
    """One request. Replaces vLLM's output collector, whose `put` receives each step's output."""

    __slots__ = (
        *("_engine", "_logprobs", "_prompt_only", "adapter", "completion_tokens", "finished", "key", "prompt"),
        *("prompt_tokens", "vllm_id"),
    )

    def __init__(self, engine: VllmEngine, key: int, params: Mapping[str, Any]) -> None:
        self.key = key
        self.vllm_id = ""  # assigned by vLLM
        self.adapter: LoRARequest | None = None
        self.prompt_tokens = 0
        self.prompt: tuple[Any, ...] | None = None  # for the first delta, then None
        self.completion_tokens = 0
        self.finished = False
        self._engine = engine
        self._logprobs = params.get("logprobs") is not None
        self._prompt_only = params.get("prompt_only", False)

    def put(self, output: Any) -> None:
        """Emit an output or error. No-op for a finished request, and if the core died, which ends the process."""
        if self.finished or isinstance(output, EngineDeadError):
            return
        end: tuple[Any, ...] | None = None
        deltas: list[tuple[Any, ...]] = []
        if isinstance(output, Exception):
            end = _refusal(output)
        else:
            for completion in output.outputs:
                self.completion_tokens += len(completion.token_ids)
                deltas.append(self._delta(completion))
            if self.prompt is not None and deltas:
                deltas[0] = (*deltas[0], self._with_logprobs(self.prompt, output.prompt_logprobs))
                self.prompt = None
            if output.finished:
                scheduled = int(output.metrics.scheduled_ts * 1e9) if output.metrics is not None else 0
                end = (self.prompt_tokens, self.completion_tokens, output.num_cached_tokens or 0, scheduled)
            if any(completion.finish_reason == _FAILED for completion in output.outputs):
                deltas, end = [], (messages.INTERNAL, "vLLM failed this request with an internal error")
        if self._prompt_only and deltas:
            if len(deltas[0]) == _DELTA_ITEMS:
                return  # generated tokens, which are not requested
            self._engine.emit(prompt_only_event(self.key, deltas[0][_DELTA_ITEMS]))
            self._engine.abort(self.key)
            return
        if end is not None:
            self._engine.finish(self)
        self._engine.emit((self.key, tuple(deltas), end))

    def _with_logprobs(self, prompt: tuple[Any, ...], logprobs: Any) -> tuple[Any, ...]:
        if not logprobs:
            return prompt
        ids, text, pieces, _, *cut = prompt
        listed = [
            _alternatives(token, alternatives) if alternatives else () for token, alternatives in zip(ids, logprobs)
        ]
        return (ids, text, pieces, tuple(listed), *cut)

    def _delta(self, completion: Any) -> tuple[Any, ...]:
        logprobs: tuple[Any, ...] = ()
        if self._logprobs and completion.logprobs:
            logprobs = tuple(map(_alternatives, completion.token_ids, completion.logprobs))
        return (
            completion.index,
            completion.text,
            tuple(completion.token_ids),
            completion.finish_reason,
            completion.stop_reason,
            logprobs,
        )


class _StepStats(PrometheusStatLogger):  # type: ignore[misc]
    """Collects the scheduler's statistics. A subclass of vLLM's Prometheus logger, which vLLM adds beside any other."""

    def __init__(self, **_: Any) -> None:
        self.prefix_queries = self.prefix_hits = self.preemptions = 0
        self._gauges: dict[int, tuple[int, int, float]] = {}  # engine core → running, waiting, KV cache usage

    @property
    def running(self) -> int:
        """Requests in the running batch."""
        return sum(gauges[0] for gauges in self._gauges.values())

    @property
    def waiting(self) -> int:
        """Requests in the scheduler's queue."""
        return sum(gauges[1] for gauges in self._gauges.values())

    @property
    def kv_cache_usage(self) -> float:
        """Used share of the KV cache, 0 to 1."""
        return sum(gauges[2] for gauges in self._gauges.values()) / max(len(self._gauges), 1)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, engine_idx: int = 0, **__: Any) -> None:
        """Record a step's statistics."""
        if scheduler_stats is not None:
            waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._gauges[engine_idx] = scheduler_stats.num_running_reqs, waiting, scheduler_stats.kv_cache_usage
            self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Log nothing: the server does."""

    def log(self) -> None:
        """Log nothing: the server has metrics."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Do nothing: Conch stops idle engines instead."""

    def record_admission_rejection(self, reason: str) -> None:
        """Do nothing: the server receives the refusal."""


def _adapter_files(path: Path) -> tuple[list[Path], int]:
    """Return what vLLM reads of an adapter, and its bytes. Raises Refused."""
    if not (path / "adapter_config.json").is_file():
        raise Refused(f"'{path}' has no adapter_config.json")
    files = [file for pattern in _ADAPTER_FILES for file in path.glob(pattern)]
    return files, sum(file.stat().st_size for file in files)


def _copy_files(files: list[Path], folder: str) -> None:
    for file in files:
        shutil.copyfile(file, Path(folder) / file.name)


def _device(config: Any) -> str:
    """Return where the model computes: CPU, the numbers of GPUs, or vLLM's name of another device."""
    kind = current_platform.device_type
    parallel = config.parallel_config
    return visible_gpus(parallel.world_size * parallel.data_parallel_size) if kind == "cuda" else kind.upper()


def _placeholders(processor: Any, config: Any) -> tuple[str, ...]:
    """Return the placeholder of each image that a request may have; () for a model that takes none."""
    most = processor.info.allowed_mm_limits.get("image", 0)
    if "image" not in config.multimodal_config.limit_per_prompt:
        most = min(most, _MAX_IMAGES)
    model = get_model_cls(config)
    return tuple(model.get_placeholder_str("image", number) or "" for number in range(1, most + 1))


def _as_rgb(image: Any) -> Any:
    """Return pixels as vLLM's own server passes them on: upright, and white where they are transparent."""
    return convert_image_mode(normalize_image(image), "RGB")


def _refusal(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refused):
        return error.code, _ADDRESS.sub("0x…", error.text)
    if isinstance(error, GracefulHTTPError):  # a queue limit in model.json
        return messages.UNAVAILABLE, str(error)
    if isinstance(error, (VLLMClientError, ValueError)):
        return messages.INVALID_ARG, _ADDRESS.sub("0x…", str(error))
    return messages.INTERNAL, f"{type(error).__name__}: {error}"


def _sampling(params: Mapping[str, Any], room: int) -> Any:
    keywords = {name: params[name] for name in _SAME_NAME if name in params}
    keywords["max_tokens"] = room
    if "structured" in params:
        keywords["structured_outputs"] = _structured(*params["structured"])
    return SamplingParams(**keywords, output_kind=RequestOutputKind.DELTA, skip_clone=True)


def _alternatives(token: int, alternatives: Mapping[int, Any]) -> tuple[Any, ...]:
    """Return the chosen token, then the others by descending probability."""
    chosen = alternatives[token]
    others = sorted(
        (alternative for alternative in alternatives.items() if alternative[0] != token),
        key=lambda alternative: -alternative[1].logprob,
    )
    listed = [(token, chosen), *others]
    return tuple(
        (number, alternative.decoded_token or "", alternative.logprob, alternative.rank or 0)
        for number, alternative in listed
    )


def _structured(kind: str, value: str) -> Any:
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "choice":
        return StructuredOutputsParams(choice=json.loads(value))
    return StructuredOutputsParams(**{kind: value})
