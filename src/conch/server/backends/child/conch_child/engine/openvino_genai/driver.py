"""Driver of OpenVINO GenAI's ContinuousBatchingPipeline: paged KV cache, continuous batching, prefix caching; CPU."""

from __future__ import annotations

import random
import time
from typing import Any, Optional

import numpy as np
import openvino
import openvino_genai as genai

from .. import messages
from ..cache_size import GIB
from ..detokenizer import DecodeMany, StopStrings, TextStream, TokenTexts, decode_new, partial_character_tokens
from ..driver import (
    Driver,
    Event,
    Prompt,
    Refused,
    check_adapter,
    cut_tokens,
    describe_prompt,
    prompt_only_event,
    truncated,
)
from .options import Options, read_only_remedy, read_options, writable_model
from .sampling import SAME_NAME, generation_config
from .waiting import WaitingRequest, WaitingRequests

_SUPPORTED_PARAMS = (
    *SAME_NAME,
    *("n", "max_tokens", "min_tokens", "temperature", "top_k", "seed", "stop", "stop_token_ids", "logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "structured"),
    *("prompt_logprobs", "truncate_prompt_tokens", "truncation_side"),
)
_FINISHED = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}
_STRUCTURE_NAMES = {
    "json": "JSON schema",
    "json_object": "JSON",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}
_PROMPT_LOGPROBS_NEED_NO_CACHE = (
    "log probabilities of the prompt ('prompt_logprobs', or 'echo' with 'logprobs') need "
    '"enable_prefix_caching": false in model.json: OpenVINO GenAI returns none for cached prefixes'
)
_CPU_BLOCK_TOKENS = 32  # a constant of the library that its API does not expose
# For compiled structures.
_POLL_INTERVAL_MS = 2
_SEED_BITS = 32


class _Sequence:
    """One of the sequences of a request."""

    def __init__(self, number: int, request: _Request, index: int, handle: Any, params: dict[str, Any]) -> None:
        self.number = number  # its id in the library
        self.request = request
        self.index = index
        self.handle = handle  # the library cancels the request when it is deleted
        self.text = TextStream()
        self.stops = StopStrings(params.get("stop", ()), params.get("include_stop_str_in_output", False))
        self.stop_token_ids = frozenset(params.get("stop_token_ids", ()))
        self.skips_special = params.get("skip_special_tokens", True)
        self.echo = 0  # remaining tokens of the prompt, which the library returns with log probabilities first
        self.echoed: list[float] = []


class _Request:
    """A request, until all of its sequences have ended."""

    def __init__(self, key: int, prompt_tokens: int, params: dict[str, Any]) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.scheduled = 0  # start of its first step, monotonic ns
        self.cut = cut_tokens(params)
        self.logprobs = params.get("logprobs") is not None
        self.prompt: Optional[tuple[Any, ...]] = None  # for the first delta, then None
        self.prompt_only = params.get("prompt_only", False)
        self.sequences: list[_Sequence] = []
        self.unfinished = params.get("n", 1)


# A step's output for a sequence: tokens, finish reason or None, the tokens' log probabilities.
_Update = tuple[_Sequence, list[int], Optional[str], list[float]]


def _reason(error: RuntimeError) -> str:
    """Return the library's error message without the lines on positions in its sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if line and not line.startswith(("Exception from ", "Check "))]
    return "; ".join(causes or lines) or type(error).__name__


class OpenVinoDriver(Driver):
    """Runs requests on a `ContinuousBatchingPipeline`."""

    _pipeline: Any
    _tokenizer: Any
    _options: Options

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Create the pipeline. Raises Refused for invalid options and files."""
        self._options = chosen = read_options(options, self.log)
        self._requests: dict[int, _Request] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._unscheduled: dict[int, _Sequence] = {}  # those not computed by any step yet
        self._waiting = WaitingRequests()
        self._ready_events: list[Event] = []  # that need no step
        self._next_id = 0
        self._adapters = {name: genai.Adapter(str(path)) for name, path in chosen.adapters.items()}
        self._make_pipeline()
        self._eos = self._tokenizer.get_eos_token_id()
        vocabulary = self._tokenizer.get_vocab()
        self._vocabulary = max(vocabulary.values()) + 1
        self._partial_tokens = partial_character_tokens(vocabulary)
        self._decoders = {skips: self._decoder(skips) for skips in (True, False)}
        self._decoders[True][1].add_all(self._vocabulary)  # the other decodes one by one, which takes too long
        return {
            "context_length": chosen.context_length,
            "max_running": chosen.scheduler["max_num_seqs"],
            "device": chosen.device,
            # The library allocates it with the first request. Its size is unknown if given in blocks.
            "kv_cache_bytes": chosen.scheduler.get("cache_size", 0) * GIB,
            **_blocks(chosen),
            "prefix_caching": chosen.scheduler["enable_prefix_caching"],
            "chat_template": self._tokenizer.chat_template or "",
            "special_tokens": {
                "bos_token": self._tokenizer.get_bos_token(),
                "eos_token": self._tokenizer.get_eos_token(),
                "pad_token": self._tokenizer.get_pad_token(),
            },
            "adapters": tuple(self._adapters),
            "supported_params": _SUPPORTED_PARAMS,
        }

    def _make_pipeline(self) -> None:
        """Create the pipeline and its tokenizer. Raises Refused."""
        chosen = self._options
        properties: dict[str, Any] = dict(chosen.properties)
        if self._adapters:
            properties["adapters"] = genai.AdapterConfig(list(self._adapters.values()))
        if chosen.draft_model is not None:
            properties["draft_model"] = genai.draft_model(str(chosen.draft_model), chosen.device)
        if chosen.prompt_lookup:
            properties["prompt_lookup"] = True
        scheduler = genai.SchedulerConfig()
        for name, value in chosen.scheduler.items():
            setattr(scheduler, name, value)
        try:
            with writable_model(chosen.model, self.log) as model:
                self._pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, chosen.device, properties)
        except RuntimeError as error:
            self.log(messages.ERROR, f"cannot load '{chosen.model}': {error}")
            raise Refused(
                f"{chosen.model}: OpenVINO GenAI cannot load it: {_reason(error)}{read_only_remedy(chosen.model)}"
            ) from error
        self._tokenizer = self._pipeline.get_tokenizer()

    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        """Add a request: one in the library for each of its `n` sequences, since only those return every step."""
        if "prompt_logprobs" in params and self._options.scheduler["enable_prefix_caching"]:
            raise Refused(_PROMPT_LOGPROBS_NEED_NO_CACHE, messages.UNSUPPORTED)
        token_ids = self._tokens(prompt, params)
        if params.get("prompt_only") and "prompt_logprobs" not in params:
            self._ready_events.append(
                prompt_only_event(key, describe_prompt(token_ids[0], params, self._decode_with_special))
            )
            return
        configuration = generation_config(params, token_ids.shape[1], self._options, self._eos)
        check_adapter(adapter, self._adapters)
        waiting = WaitingRequest(key, token_ids, configuration, params, adapter)
        if self._waiting.must_wait(waiting):
            self._waiting.add(waiting)
        else:
            self._admit(waiting)

    def _admit(self, waiting: WaitingRequest) -> None:
        key, token_ids, configuration, params = waiting.key, waiting.token_ids, waiting.configuration, waiting.params
        request = _Request(key, token_ids.shape[1], params)
        if "return_prompt" in params:
            request.prompt = describe_prompt(token_ids[0], params, self._decode_with_special)
        seed = params.get("seed")
        for index in range(request.unfinished):
            configuration.echo = "prompt_logprobs" in params and index == 0
            configuration.rng_seed = random.getrandbits(_SEED_BITS) if seed is None else (seed + index) % 2**_SEED_BITS
            handle = self._pipeline.add_request(self._next_id, openvino.Tensor(token_ids), configuration)
            sequence = _Sequence(self._next_id, request, index, handle, params)
            sequence.echo = token_ids.shape[1] if configuration.echo else 0
            request.sequences.append(sequence)
            self._sequences[self._next_id] = sequence
            self._unscheduled[self._next_id] = sequence
            self._next_id += 1
        self._requests[key] = request

    def abort(self, key: int) -> None:
        """Cancel a request; the library frees its cache in the next step."""
        self._waiting.remove(key)
        request = self._requests.pop(key, None)
        if request is not None:
            self._drop(request)

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds until `step` has work, which includes freeing the cache of cancelled requests."""
        if self._ready_events or not self._idle or self._waiting.ready:
            return 0
        return _POLL_INTERVAL_MS if self._waiting else None

    @property
    def _idle(self) -> bool:
        return not self._sequences and not self._pipeline.has_non_finished_requests()

    def step(self) -> list[Event]:
        """Compute a token for each running sequence, or part of the prompts of new ones."""
        refused = self._admit_waiting() if self._waiting else []
        if self._ready_events:
            refused += self._ready_events
            self._ready_events = []
            if self._idle:
                return refused
        started_ns = time.monotonic_ns()
        self._pipeline.step()
        if self._unscheduled:
            self._record_scheduled(started_ns)
        updates, ignored = self._read_updates()
        events = [
            *self._events([update for update in updates if update[0].skips_special], skips_special=True),
            *self._events([update for update in updates if not update[0].skips_special], skips_special=False),
        ]
        return [*refused, *events, *self._out_of_cache(ignored)]

    def stats(self) -> tuple[int, int, float, int, int, int]:
        metrics = self._pipeline.get_metrics()
        # The library's metrics are from before the step and include sequences that it finished.
        running = min(metrics.scheduled_requests, len(self._sequences))
        usage = metrics.cache_usage / 100 if self._pipeline.has_non_finished_requests() else 0.0
        return running, len(self._sequences) - running, usage, 0, 0, 0

    def _admit_waiting(self) -> list[Event]:
        """Begin requests that no longer wait; return error events for those with an invalid structure."""
        events: list[Event] = []
        while (ready := self._waiting.pop_ready(idle=self._idle)) is not None:
            waiting, error = ready
            if error:
                kind = _STRUCTURE_NAMES[waiting.params["structured"][0]]
                text = f"cannot compile the {kind} for structured output: {error}"
                events.append((waiting.key, (), (messages.INVALID_ARG, text)))
                continue
            if self._waiting.needs_pipeline(waiting):
                self.log(messages.INFO, "replacing the pipeline, which keeps every structure that it has compiled")
                self._pipeline = self._tokenizer = None  # before the next one needs the memory
                self._make_pipeline()
                self._waiting.note_pipeline()
            if waiting.structure is not None:
                self._waiting.note_compiled(waiting.structure)
            if waiting.adapter != self._waiting.adapter:
                self._apply(waiting.adapter)
            self._admit(waiting)
        return events

    def _apply(self, adapter: str) -> None:
        """Switch to an adapter. Only the library's `generate` does that, and computes at least one token."""
        configuration = genai.GenerationConfig()
        configuration.max_new_tokens = 1
        configuration.adapters = genai.AdapterConfig([self._adapters[adapter]] if adapter else [])
        self._pipeline.generate([openvino.Tensor(np.zeros((1, 1), np.int64))], [configuration])
        self._waiting.adapter = adapter

    def _record_scheduled(self, started_ns: int) -> None:
        """Record a step's start for requests that it was the first for: the library schedules in order of arrival."""
        before = len(self._sequences) - len(self._unscheduled)
        newly_scheduled = max(self._pipeline.get_metrics().scheduled_requests - before, 0)
        for number, sequence in list(self._unscheduled.items())[:newly_scheduled]:
            del self._unscheduled[number]
            sequence.request.scheduled = sequence.request.scheduled or started_ns

    def _decode_with_special(self, many: list[list[int]]) -> list[str]:
        """Decode with special tokens, one by one: the library pads batches and would decode the padding, too."""
        return [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in many]

    def _decoder(self, skips_special: bool) -> tuple[DecodeMany, TokenTexts]:
        def plain_text(many: list[list[int]]) -> Any:
            return self._tokenizer.decode(many, skip_special_tokens=True)

        decode = plain_text if skips_special else self._decode_with_special
        plain = self._tokenizer.encode("a", add_special_tokens=False).input_ids.data
        return decode, TokenTexts(decode, int(plain[0][-1]) if plain.size else 0, self._partial_tokens)

    def _events(self, updates: list[_Update], *, skips_special: bool) -> list[Event]:
        streams = [(update[0].text, self._without_eos(update), update[2] is not None) for update in updates]
        texts = decode_new(streams, *self._decoders[skips_special])
        return [self._event(text, *update) for text, update in zip(texts, updates)]

    def _without_eos(self, update: _Update) -> list[int]:
        """Return the tokens without a final end-of-sequence token."""
        _, token_ids, finish, _ = update
        return token_ids[:-1] if finish == "stop" and token_ids and token_ids[-1] == self._eos else token_ids

    def _read_updates(self) -> tuple[list[_Update], list[_Sequence]]:
        """Return the step's updates, and the sequences that the library ignores for lack of KV cache.

        Each call of the library costs a microsecond per sequence and step, hence as few as possible.
        """
        updates: list[_Update] = []
        ignored: list[_Sequence] = []
        for sequence in self._sequences.values():
            handle = sequence.handle
            token_ids: list[int] = []
            logprobs: list[float] = []
            finish: str | None = None
            while handle.can_read():
                for output in handle.read().values():
                    token_ids += output.generated_ids
                    if sequence.request.logprobs or sequence.echo:
                        logprobs += output.generated_log_probs
                    finish = _FINISHED.get(output.finish_reason, finish)
                if finish is None:
                    break  # one output per step
            if sequence.echo:
                token_ids, logprobs = _without_prompt(sequence, token_ids, logprobs, self._decode_with_special)
            if token_ids or finish:
                updates.append((sequence, token_ids, finish, logprobs))
            elif handle.get_status() == genai.GenerationStatus.IGNORED:
                ignored.append(sequence)
        return updates, ignored

    def _event(
        self, text: str, sequence: _Sequence, token_ids: list[int], finish: str | None, logprobs: list[float]
    ) -> Event:
        request = sequence.request
        prompt: tuple[Any, ...] = ()
        if request.prompt is not None:
            prompt, request.prompt = (request.prompt,), None
        request.completion_tokens += len(token_ids)
        text, stop = sequence.stops.feed(text, finish is not None)
        reason: Any = stop
        if stop is not None:
            sequence.handle.cancel()
            finish = "stop"
        elif finish == "stop" and token_ids and token_ids[-1] in sequence.stop_token_ids:
            reason = token_ids[-1]
        token_logprobs: tuple[Any, ...] = ()
        if request.prompt_only and finish is not None:
            self._forget(sequence)
            del self._requests[request.key]
            return prompt_only_event(request.key, prompt[0])
        if request.logprobs:
            names = self._decode_with_special([[token] for token in token_ids])
            token_logprobs = tuple(((token, name, value),) for token, name, value in zip(token_ids, names, logprobs))
        end = None
        if finish is not None:
            request.unfinished -= 1
            self._forget(sequence)
            if not request.unfinished:
                del self._requests[request.key]
                end = (request.prompt_tokens, request.completion_tokens, 0, request.scheduled, *request.cut)
        return request.key, ((sequence.index, text, tuple(token_ids), finish, reason, token_logprobs, *prompt),), end

    def _out_of_cache(self, ignored: list[_Sequence]) -> list[Event]:
        """Fail requests that the library ignores because the KV cache cannot hold them even alone."""
        events: list[Event] = []
        for sequence in ignored:
            request = sequence.request
            if request.key in self._requests:
                del self._requests[request.key]
                self._drop(request)
                text = (
                    f"out of KV cache: a prompt of {request.prompt_tokens} tokens and its completion do not fit even "
                    "alone; increase cache_size in model.json"
                )
                events.append((request.key, (), (messages.UNAVAILABLE, text)))
        return events

    def _drop(self, request: _Request) -> None:
        for sequence in request.sequences:
            sequence.handle.cancel()
            self._forget(sequence)

    def _forget(self, sequence: _Sequence) -> None:
        self._sequences.pop(sequence.number, None)
        self._unscheduled.pop(sequence.number, None)

    def _tokens(self, prompt: Prompt, params: dict[str, Any]) -> Any:
        """Return the prompt, truncated, as an array [1, tokens] of INT64."""
        if isinstance(prompt, str):
            special = params.get("add_special_tokens", True)
            token_ids = np.array(self._tokenizer.encode(prompt, add_special_tokens=special).input_ids.data, np.int64)
        else:
            unknown = max(prompt, default=0)
            if unknown >= self._vocabulary:
                raise Refused(f"token id {unknown} is out of the vocabulary: the model has {self._vocabulary} tokens")
            token_ids = np.array([prompt], np.int64)
        return np.array([truncated(token_ids[0], params, self._options.context_length)], np.int64)


def _blocks(options: Options) -> dict[str, int]:
    """Return the fields of `EngineInfo` on the cache's blocks, as far as known: only on CPUs."""
    if options.device != "CPU":
        return {}
    return {
        "kv_block_size": _CPU_BLOCK_TOKENS,
        "kv_cache_tokens": options.scheduler.get("num_kv_blocks", 0) * _CPU_BLOCK_TOKENS,
    }


def _without_prompt(
    sequence: _Sequence, token_ids: list[int], logprobs: list[float], decode: DecodeMany
) -> tuple[list[int], list[float]]:
    """Remove the prompt's tokens from the output; after the last, add their log probabilities to `request.prompt`."""
    count = min(sequence.echo, len(token_ids))
    sequence.echoed += logprobs[:count]
    sequence.echo -= count
    prompt = sequence.request.prompt
    if not sequence.echo and prompt is not None:
        ids, text, pieces, _, *cut = prompt
        names = pieces or decode([[token] for token in ids])
        token_logprobs = zip(ids[1:], names[1:], sequence.echoed[1:])  # the first follows nothing
        sequence.request.prompt = (ids, text, pieces, ((), *((logprob,) for logprob in token_logprobs)), *cut)
    return token_ids[count:], logprobs[count:] if sequence.request.logprobs else []


driver = OpenVinoDriver
