"""vLLM's AsyncLLM: PagedAttention and continuous batching on GPUs, and on CPUs with its build for them.

`model.json` holds the engine's arguments as Triton's vLLM backend has them, passed on as they are, `multi_lora.json`
the LoRA adapters. Text, stop strings and detokenization are vLLM's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import traceback
from pathlib import Path
from typing import Any

from conch_child.wire import FrameDecoder, Message, encode

from . import messages

# What the environment says and nobody set: an engine's statistics at its end, and its telemetry, are not asked for.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_SAME_NAME = (
    *("n", "min_tokens", "temperature", "top_p", "min_p", "seed", "stop", "stop_token_ids", "max_tokens"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logprobs"),
)
_HONOURED = (*_SAME_NAME, "top_k", "logit_bias", "structured")
_REFUSED = "engine arguments must be a JSON object of AsyncEngineArgs"


def serve(connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]) -> None:
    """Load the model and run it until the server ends the connection or says STOP."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    asyncio.run(_serve(connection, decoder, backlog, options))


async def _serve(
    connection: socket.socket, decoder: FrameDecoder, backlog: list[Message], options: dict[str, Any]
) -> None:
    connection.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        engine = _Engine(writer, options)
    except Exception as error:
        text = str(error) if isinstance(error, _Refused) else traceback.format_exc().rstrip()
        writer.write(encode((messages.LOADED, text, {})))
        await writer.drain()
        return
    writer.write(encode((messages.LOADED, "", engine.info)))
    try:
        going = all(engine.obey(message) for message in backlog)
        while going:
            data = await reader.read(1 << 16)
            going = bool(data) and all(engine.obey(message) for message, _ in decoder.feed(data))
    finally:
        engine.close()


class _Refused(Exception):
    """A model cannot be loaded as its files say."""


class _Engine:
    """An AsyncLLM, its requests, and what is to be told of them in the next message."""

    def __init__(self, writer: asyncio.StreamWriter, options: dict[str, Any]) -> None:
        from vllm import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.async_llm import AsyncLLM

        directory = Path(options["directory"])
        arguments = _read_json(directory / "model.json")
        adapters = _read_json(directory / "multi_lora.json")
        arguments.setdefault("disable_log_stats", True)
        model = Path(directory, str(arguments.get("model", "")))
        if "model" in arguments and model.exists():  # beside model.json, or an absolute path
            arguments["model"] = str(model)
        try:
            parsed = AsyncEngineArgs(**arguments)
        except TypeError as error:
            raise _Refused(f"{directory / 'model.json'}: {error}") from error
        self._engine = AsyncLLM.from_engine_args(parsed)
        self._adapters = {
            name: LoRARequest(name, number, str(Path(directory, path)))
            for number, (name, path) in enumerate(adapters.items(), 1)
        }
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        self._events: list[tuple[Any, ...]] = []
        self._priorities = parsed.scheduling_policy == "priority"
        self.info = self._describe()

    def obey(self, message: Message) -> bool:
        """Do what the server says; False for the end."""
        kind = message[0]
        if kind == messages.GENERATE:
            key = message[1]
            self._tasks[key] = asyncio.create_task(self._generate(*message[1:]))
        elif kind == messages.ABORT:
            task = self._tasks.pop(message[1], None)
            if task is not None:
                task.cancel()  # upon which vLLM aborts the request
        return bool(kind != messages.STOP)

    def close(self) -> None:
        """End the engine's own processes."""
        for task in self._tasks.values():
            task.cancel()
        self._engine.shutdown()

    async def _generate(self, key: int, prompt: Any, params: dict[str, Any], adapter: str, priority: int) -> None:
        end: tuple[Any, ...] | None = None
        counts: dict[int, int] = {}
        given = prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}
        try:
            outputs = self._engine.generate(
                given,
                self._sampling(params),
                str(key),
                lora_request=self._adapters[adapter] if adapter else None,
                priority=priority,
                tokenization_kwargs=None if params.get("add_special_tokens", True) else {"add_special_tokens": False},
            )
            async for output in outputs:
                self._begun.add(key)
                deltas = tuple(self._delta(each, params) for each in output.outputs)
                for each in output.outputs:
                    counts[each.index] = counts.get(each.index, 0) + len(each.token_ids)
                if output.finished:
                    tokens = len(output.prompt_token_ids or ())
                    end = (tokens, sum(counts.values()), output.num_cached_tokens or 0)
                self._tell((key, deltas, end))
        except asyncio.CancelledError:
            raise
        except ValueError as error:
            self._tell((key, (), (messages.INVALID_ARG, str(error))))
        except Exception as error:  # what becomes of one request must not end the others
            self._tell((key, (), (messages.INTERNAL, f"{type(error).__name__}: {error}")))
            if self._engine.errored:
                traceback.print_exc()
                os._exit(1)  # the server starts another
        finally:
            self._tasks.pop(key, None)
            self._begun.discard(key)

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

    def _tell(self, event: tuple[Any, ...]) -> None:
        """Keep an event for the message of this turn of the loop: what a step has brought goes out together."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        running = len(self._begun)
        waiting = len(self._tasks) - running
        self._writer.write(encode((messages.STEP, events, (running, max(waiting, 0), 0.0, 0, 0, 0))))

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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _Refused(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise _Refused(f"{path}: {_REFUSED}")
    return document
