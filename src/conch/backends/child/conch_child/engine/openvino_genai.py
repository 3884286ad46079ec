"""OpenVINO GenAI's ContinuousBatchingPipeline: paged KV cache, continuous batching, prefix caching; on the CPU."""

from __future__ import annotations

import random
import time
from typing import Any, Optional

import numpy as np
import openvino
import openvino_genai as genai

from . import messages
from .cache_size import GIB
from .driver import Driver, Event, Prompt, Refused, prompt_alone, prompt_of, truncated
from .openvino_options import Options, read_only_remedy, read_options
from .openvino_sampling import SAME_NAME, generation_config
from .openvino_waiting import WaitingRequest, WaitingRoom
from .text import DecodeMany, Pieces, StopStrings, TextStream, parts_of_characters, tell

_SUPPORTED_PARAMS = (
    *SAME_NAME,
    *("n", "max_tokens", "min_tokens", "temperature", "top_k", "seed", "stop", "stop_token_ids", "logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "structured"),
    *("prompt_logprobs", "truncate_prompt_tokens", "truncation_side"),
)
_FINISHED = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}
_KINDS = {"json": "JSON schema", "json_object": "JSON", "regex": "regex", "grammar": "grammar", "choice": "choice"}
_RUNS = genai.GenerationStatus.RUNNING
_CACHED = (
    "log probabilities of the prompt ('prompt_logprobs', or 'echo' with 'logprobs') need "
    '"enable_prefix_caching": false in model.json: OpenVINO GenAI has none of a prefix that it takes from the cache'
)
_CPU_BLOCK_TOKENS = 32  # the library's, which it does not tell
# How often it is looked whether a structure has been compiled.
_LOOK_MS = 2
# Of the random numbers that the library is seeded with.
_SEED_BITS = 32


class _Sequence:
    """One of the sequences of a request."""

    def __init__(self, number: int, request: _Request, index: int, handle: Any, params: dict[str, Any]) -> None:
        self.number = number  # the library's
        self.request = request
        self.index = index
        self.handle = handle  # dropping it would cancel the request
        self.text = TextStream()
        self.stops = StopStrings(params.get("stop", ()), params.get("include_stop_str_in_output", False))
        self.stop_token_ids = frozenset(params.get("stop_token_ids", ()))
        self.skips_special = params.get("skip_special_tokens", True)
        self.echo = 0  # tokens of the prompt that the library returns with their log probabilities before all others
        self.echoed: list[float] = []


class _Request:
    """What is known of a request until all of its sequences have ended."""

    def __init__(self, key: int, prompt_tokens: int, params: dict[str, Any]) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.scheduled = 0  # when the step that was its first began, monotonic ns
        self.logprobs = params.get("logprobs") is not None
        self.prompt: Optional[tuple[Any, ...]] = None  # until it has been told, if it is to be
        self.prompt_only = params.get("prompt_only", False)
        self.sequences: list[_Sequence] = []
        self.unfinished = params.get("n", 1)


# What a step has brought a sequence: its tokens, why it has ended if it has, and the tokens' log probabilities.
_New = tuple[_Sequence, list[int], Optional[str], list[float]]


def _reason(error: RuntimeError) -> str:
    """Return what the library says, without the lines that say where in its sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from ", "Check "))]
    return "; ".join(said or lines) or type(error).__name__


class OpenVinoDriver(Driver):
    """A `ContinuousBatchingPipeline` and what it works on."""

    _pipeline: Any
    _tokenizer: Any
    _options: Options

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Make the pipeline. Raises Refused for options and files that are not right."""
        self._options = chosen = read_options(options, self.log)
        self._requests: dict[int, _Request] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._unscheduled: dict[int, _Sequence] = {}  # those of them that no step has computed yet
        self._waiting = WaitingRoom()
        self._told: list[Event] = []  # of what needs no step
        self._next = 0
        self._adapters = {name: genai.Adapter(str(path)) for name, path in chosen.adapters.items()}
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
            self._pipeline = genai.ContinuousBatchingPipeline(str(chosen.model), scheduler, chosen.device, properties)
        except RuntimeError as error:
            self.log(messages.ERROR, f"cannot load '{chosen.model}': {error}")
            raise Refused(
                f"{chosen.model}: OpenVINO GenAI cannot load it: {_reason(error)}{read_only_remedy(chosen.model)}"
            ) from error
        self._tokenizer = self._pipeline.get_tokenizer()
        self._eos = self._tokenizer.get_eos_token_id()
        vocabulary = self._tokenizer.get_vocab()
        self._vocabulary = max(vocabulary.values()) + 1
        self._parts = parts_of_characters(vocabulary)
        self._decoders = {skips: self._decoder(skips) for skips in (True, False)}
        return {
            "context_length": chosen.context_length,
            "max_running": chosen.scheduler["max_num_seqs"],
            # Which the library reserves with the first request; by blocks it is not known before.
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

    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        """Take a request as so many of the library's as it wants sequences: those tell of each step."""
        if "prompt_logprobs" in params and self._options.scheduler["enable_prefix_caching"]:
            raise Refused(_CACHED, messages.UNSUPPORTED)
        token_ids = self._tokens(prompt, params)
        if params.get("prompt_only") and "prompt_logprobs" not in params:
            self._told.append(prompt_alone(key, prompt_of(token_ids[0], params, self._shown)))
            return
        configuration = generation_config(params, token_ids.shape[1], self._options, self._eos)
        if adapter and adapter not in self._adapters:
            raise Refused(f"LoRA adapter '{adapter}' is unknown; this model has: {', '.join(self._adapters) or 'none'}")
        waiting = WaitingRequest(key, token_ids, configuration, params, adapter)
        if self._waiting.wants(waiting):
            self._waiting.enter(waiting)
        else:
            self._admit(waiting)

    def _admit(self, waiting: WaitingRequest) -> None:
        key, token_ids, configuration, params = waiting.key, waiting.token_ids, waiting.configuration, waiting.params
        request = _Request(key, token_ids.shape[1], params)
        if "return_prompt" in params:
            request.prompt = prompt_of(token_ids[0], params, self._shown)
        seed = params.get("seed")
        for index in range(request.unfinished):
            configuration.echo = "prompt_logprobs" in params and index == 0
            configuration.rng_seed = random.getrandbits(_SEED_BITS) if seed is None else (seed + index) % 2**_SEED_BITS
            handle = self._pipeline.add_request(self._next, openvino.Tensor(token_ids), configuration)
            sequence = _Sequence(self._next, request, index, handle, params)
            sequence.echo = token_ids.shape[1] if configuration.echo else 0
            request.sequences.append(sequence)
            self._sequences[self._next] = sequence
            self._unscheduled[self._next] = sequence
            self._next += 1
        self._requests[key] = request

    def abort(self, key: int) -> None:
        """Cancel; the library frees the cache in its next step."""
        self._waiting.leave(key)
        request = self._requests.pop(key, None)
        if request is not None:
            self._drop(request)

    @property
    def wait_ms(self) -> int | None:
        """Whether there is something to compute, be it only to free what was cancelled."""
        if self._told or not self._idle or self._waiting.ready:
            return 0
        return _LOOK_MS if self._waiting else None

    @property
    def _idle(self) -> bool:
        return not self._sequences and not self._pipeline.has_non_finished_requests()

    def step(self) -> list[Event]:
        """Compute a token for each sequence that is running, or a piece of the prompts of those to come."""
        refused = self._admit_waiting() if self._waiting else []
        if self._told:
            refused += self._told
            self._told = []
            if self._idle:
                return refused
        began = time.monotonic_ns()
        self._pipeline.step()
        if self._unscheduled:
            self._note_scheduled(began)
        news, given_up = self._read()
        # What skips special tokens and what shows them is decoded apart, which of the two being nearly always empty.
        shown = [new for new in news if not new[0].skips_special]
        news = [new for new in news if new[0].skips_special]
        told = [*self._tell(news, skips_special=True), *self._tell(shown, skips_special=False)]
        return [*refused, *told, *self._starved(given_up)]

    def stats(self) -> tuple[int, int, float, int, int, int]:
        metrics = self._pipeline.get_metrics()
        # As of before the step, that is, with those that it has finished.
        running = min(metrics.scheduled_requests, len(self._sequences))
        usage = metrics.cache_usage / 100 if self._pipeline.has_non_finished_requests() else 0.0
        return running, len(self._sequences) - running, usage, 0, 0, 0

    def _admit_waiting(self) -> list[Event]:
        """Begin the requests whose turn has come; tell of those whose structures are no good."""
        events: list[Event] = []
        while (called := self._waiting.call(idle=self._idle)) is not None:
            waiting, wrong = called
            if wrong:
                kind = _KINDS[waiting.params["structured"][0]]
                text = f"the answer cannot be made to match the {kind} that was sent: {wrong}"
                events.append((waiting.key, (), (messages.INVALID_ARG, text)))
                continue
            if waiting.adapter != self._waiting.adapter:
                self._apply(waiting.adapter)
            self._admit(waiting)
        return events

    def _apply(self, adapter: str) -> None:
        """Have an adapter applied to what is computed from now on; `generate` alone does that, for a token at least."""
        configuration = genai.GenerationConfig()
        configuration.max_new_tokens = 1
        configuration.adapters = genai.AdapterConfig([self._adapters[adapter]] if adapter else [])
        self._pipeline.generate([openvino.Tensor(np.zeros((1, 1), np.int64))], [configuration])
        self._waiting.adapter = adapter

    def _note_scheduled(self, began: int) -> None:
        """Note which requests the step was the first for: the library takes them in the order of their arrival."""
        before = len(self._sequences) - len(self._unscheduled)
        fresh = max(self._pipeline.get_metrics().scheduled_requests - before, 0)
        for number, sequence in list(self._unscheduled.items())[:fresh]:
            del self._unscheduled[number]
            sequence.request.scheduled = sequence.request.scheduled or began

    def _shown(self, many: list[list[int]]) -> list[str]:
        """Decode, special tokens as well: one by one, for the library pads a batch, and shows what it pads with."""
        return [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in many]

    def _decoder(self, skips_special: bool) -> tuple[DecodeMany, Pieces]:
        def plain_text(many: list[list[int]]) -> Any:
            return self._tokenizer.decode(many, skip_special_tokens=True)

        decode = plain_text if skips_special else self._shown
        plain = self._tokenizer.encode("a", add_special_tokens=False).input_ids.data
        return decode, Pieces(decode, int(plain[0][-1]) if plain.size else 0, self._parts)

    def _tell(self, news: list[_New], *, skips_special: bool) -> list[Event]:
        streams = [(new[0].text, self._without_end(new), new[2] is not None) for new in news]
        texts = tell(streams, *self._decoders[skips_special])
        return [self._event(text, *new) for text, new in zip(texts, news)]

    def _without_end(self, new: _New) -> list[int]:
        """Return the tokens but for the one that ends the text, which is no part of it."""
        _, token_ids, finish, _ = new
        return token_ids[:-1] if finish == "stop" and token_ids and token_ids[-1] == self._eos else token_ids

    def _read(self) -> tuple[list[_New], list[_Sequence]]:
        """Return what the step has done, and the sequences that the library has given up.

        Every call of the library costs a microsecond, for every sequence in every step: no more are made than needed.
        """
        news: list[_New] = []
        given_up: list[_Sequence] = []
        for sequence in self._sequences.values():
            handle = sequence.handle
            token_ids: list[int] = []
            logprobs: list[float] = []
            finish: str | None = None
            runs = handle.get_status() == _RUNS
            while handle.can_read():
                for output in handle.read().values():
                    token_ids += output.generated_ids
                    if sequence.request.logprobs or sequence.echo:
                        logprobs += output.generated_log_probs
                    if not runs:
                        finish = _FINISHED.get(output.finish_reason, finish)
                if runs:
                    break  # a step tells once
            if sequence.echo:
                token_ids, logprobs = _without_prompt(sequence, token_ids, logprobs, self._shown)
            if token_ids or finish:
                news.append((sequence, token_ids, finish, logprobs))
            elif not runs and handle.get_status() == genai.GenerationStatus.IGNORED:
                given_up.append(sequence)
        return news, given_up

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
        told: tuple[Any, ...] = ()
        if request.prompt_only and finish is not None:
            self._forget(sequence)
            del self._requests[request.key]
            return prompt_alone(request.key, prompt[0])
        if request.logprobs:
            names = self._shown([[token] for token in token_ids])
            told = tuple(((token, name, value),) for token, name, value in zip(token_ids, names, logprobs))
        end = None
        if finish is not None:
            request.unfinished -= 1
            self._forget(sequence)
            if not request.unfinished:
                del self._requests[request.key]
                end = (request.prompt_tokens, request.completion_tokens, 0, request.scheduled)
        return request.key, ((sequence.index, text, tuple(token_ids), finish, reason, told, *prompt),), end

    def _starved(self, given_up: list[_Sequence]) -> list[Event]:
        """Tell of requests that the library has given up: the cache cannot hold even one of them alone."""
        events: list[Event] = []
        for sequence in given_up:
            request = sequence.request
            if request.key in self._requests:
                del self._requests[request.key]
                self._drop(request)
                text = (
                    f"out of KV cache: a prompt of {request.prompt_tokens} tokens and what has been generated do not "
                    "fit into it beside nothing else; cache_size in model.json makes it larger"
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
    """Return what is known of the cache's blocks: their size on CPUs, and their number if model.json has it."""
    if options.device != "CPU":
        return {}
    return {
        "kv_block_size": _CPU_BLOCK_TOKENS,
        "kv_cache_tokens": options.scheduler.get("num_kv_blocks", 0) * _CPU_BLOCK_TOKENS,
    }


def _without_prompt(
    sequence: _Sequence, token_ids: list[int], logprobs: list[float], decode: DecodeMany
) -> tuple[list[int], list[float]]:
    """Take off the tokens of the prompt; when the last one has come, add their log probabilities to what is told."""
    count = min(sequence.echo, len(token_ids))
    sequence.echoed += logprobs[:count]
    sequence.echo -= count
    prompt = sequence.request.prompt
    if not sequence.echo and prompt is not None:
        ids, text, pieces, _ = prompt
        names = pieces or decode([[token] for token in ids])
        told = zip(ids[1:], names[1:], sequence.echoed[1:])  # the first follows nothing
        sequence.request.prompt = ids, text, pieces, ((), *((each,) for each in told))
    return token_ids[count:], logprobs[count:] if sequence.request.logprobs else []


driver = OpenVinoDriver
