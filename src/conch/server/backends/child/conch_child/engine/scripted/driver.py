"""An engine without a model that generates scripted words, to try clients and measure the server's overhead.

`model.json`:

    {"rules": [{"match": "weather", "reply": "It rains.", "finish": "stop"}],   the first whose pattern matches applies
     "reply": "{prompt}",           the reply if no rule matches; `{prompt}` is the prompt itself
     "tokens": "words",             or "bytes": characters and stop strings then consist of several tokens
     "step_ms": 0,                  duration of a step, which generates one word for every running sequence
     "context_length": 4096, "max_running": 256, "chat_template": "…",
     "max_images": 0,               of a request; the prompt has "<image PNG 640x480 of 1234 bytes>" in their places
     "max_adapters": 0}             LoRA adapters that may be loaded; each is a folder with adapter_config.json

A rule may have `"error": "text"` instead of a reply, which fails the request after its first word, or `"exit": 1`,
which exits the process with that status to simulate a broken engine.
Words include the white space before them; token ids number them in order of first use.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import messages
from ..detokenizer import StopStrings, TextStream, decode_new
from ..driver import (
    Driver,
    Event,
    Prompt,
    Refused,
    check_adapter,
    completion_room,
    cut_tokens,
    prompt_only_event,
    truncated,
)

_WORD = re.compile(r"\s*\S+|\s+$")
_IMAGE = "<image>"
_DEFAULTS: dict[str, Any] = {
    "rules": [],
    "reply": "{prompt}",
    "tokens": "words",
    "step_ms": 0,
    "context_length": 4096,
    "max_running": 256,
    "max_adapters": 0,
    "max_images": 0,
    "chat_template": "{% for message in messages %}{{ message.content }}\n{% endfor %}",
}
_SUPPORTED_PARAMS = (
    *("n", "max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("seed", "temperature", "top_p", "top_k", "logprobs", "skip_special_tokens", "spaces_between_special_tokens"),
    *("prompt_logprobs", "truncate_prompt_tokens", "truncation_side"),
)


class _Sequence:
    """One sequence of a request: its words and position."""

    def __init__(self, request: _Request, index: int, words: list[str], finish: str) -> None:
        self.request = request
        self.index = index
        self.words = words
        self.finish = finish
        self.position = 0
        self.text = TextStream()  # of bytes
        self.stops = StopStrings(
            request.params.get("stop", ()), request.params.get("include_stop_str_in_output", False)
        )


class _Request:
    """One request; it waits until all of its sequences can run."""

    def __init__(self, key: int, prompt_tokens: int, params: dict[str, Any], rule: dict[str, Any]) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.scheduled = 0  # start of its first step, monotonic ns
        self.params = params
        self.rule = rule
        self.sequences: list[_Sequence] = []
        self.prompt: tuple[Any, ...] | None = None  # for the first delta, then None


class ScriptedDriver(Driver):
    """Generates the script's words."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Read the script. Raises Refused if it is invalid."""
        path = Path(options["directory"]) / "model.json"
        try:
            script = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise Refused(f"{path}: {error}") from error
        unknown = sorted(script.keys() - _DEFAULTS.keys())
        if unknown:
            raise Refused(f"{path}: unknown key '{unknown[0]}'; known: {', '.join(sorted(_DEFAULTS))}")
        self._script = {**_DEFAULTS, **script}
        if self._script["tokens"] not in ("words", "bytes"):
            raise Refused(f"{path}: 'tokens' must be words or bytes, got {self._script['tokens']!r}")
        self._rules = [(re.compile(rule.get("match", "")), rule) for rule in self._script["rules"]]
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._adapters: set[str] = set()
        self._waiting: dict[int, _Request] = {}
        self._running: dict[int, _Request] = {}
        self._ready_events: list[Event] = []  # that need no step
        self._due = 0.0
        return {
            "context_length": self._script["context_length"],
            "max_running": self._script["max_running"],
            "device": "CPU",
            "max_adapters": self._script["max_adapters"],
            "image_placeholders": [_IMAGE] * self._script["max_images"],
            "chat_template": self._script["chat_template"],
            "supported_params": _SUPPORTED_PARAMS,
            "max_logprobs": 0,
        }

    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        """Add a request. Raises Refused if it exceeds the context."""
        check_adapter(adapter, self._adapters)
        text = prompt if isinstance(prompt, str) else self._detokenize(prompt)
        if "images" in params:
            text = _with_images(text, params["images"])
        context = self._script["context_length"]
        words = list(truncated(self._tokenize(text), params, context))
        text = "".join(words) if self._script["tokens"] == "words" else _characters(map(ord, words))
        if params.get("prompt_only"):
            self._ready_events.append(prompt_only_event(key, self._prompt(words, text, params)))
            return
        limit = completion_room(context, len(words), params)
        rule: dict[str, Any] = next((rule for pattern, rule in self._rules if pattern.search(text)), {})
        request = _Request(key, len(words), params, rule)
        if "return_prompt" in params:
            request.prompt = self._prompt(words, text, params)
        reply = self._tokenize(str(rule.get("reply", self._script["reply"])).replace("{prompt}", text))
        if params.get("ignore_eos") and reply:
            reply = (reply * math.ceil(limit / len(reply)))[:limit]
            cut = True
        else:
            cut = len(reply) > limit
        finish = "length" if cut else str(rule.get("finish", "stop"))
        request.sequences = [_Sequence(request, index, reply[:limit], finish) for index in range(params.get("n", 1))]
        self._waiting[key] = request

    def set_adapter(self, name: str, path: str) -> None:
        if not path:
            self._adapters.discard(name)
        elif not (Path(path) / "adapter_config.json").is_file():
            raise Refused(f"'{path}' has no adapter_config.json")
        else:
            self._adapters.add(name)

    def abort(self, key: int) -> None:
        self._waiting.pop(key, None)
        self._running.pop(key, None)

    @property
    def wait_ms(self) -> int | None:
        """Milliseconds until the next step, None without a request."""
        if self._ready_events:
            return 0
        if not self._waiting and not self._running:
            return None
        return max(0, math.ceil((self._due - time.monotonic()) * 1000))

    def step(self) -> list[Event]:
        events, self._ready_events = self._ready_events, []
        if not self._waiting and not self._running:
            return events
        self._due = time.monotonic() + self._script["step_ms"] / 1000
        self._admit()
        return [*events, *(event for request in list(self._running.values()) for event in self._generate(request))]

    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return running and waiting requests, and running sequences of `max_running` as the cache usage."""
        running = sum(len(request.sequences) for request in self._running.values())
        return len(self._running), len(self._waiting), running / self._script["max_running"], 0, 0, 0

    def _admit(self) -> None:
        running = sum(len(request.sequences) for request in self._running.values())
        for key, request in list(self._waiting.items()):
            running += len(request.sequences)
            if running > self._script["max_running"] and self._running:
                return
            self._running[key] = self._waiting.pop(key)
            request.scheduled = time.monotonic_ns()

    def _generate(self, request: _Request) -> list[Event]:
        if "exit" in request.rule:
            os._exit(request.rule["exit"])
        if "error" in request.rule and request.completion_tokens:
            del self._running[request.key]
            return [(request.key, (), (messages.INTERNAL, str(request.rule["error"])))]
        deltas = tuple(self._next(sequence) for sequence in request.sequences)
        if request.prompt is not None:
            deltas = ((*deltas[0], request.prompt), *deltas[1:])
            request.prompt = None
        request.sequences = [sequence for sequence, delta in zip(request.sequences, deltas) if delta[3] is None]
        if request.sequences:
            return [(request.key, deltas, None)]
        del self._running[request.key]
        cut = cut_tokens(request.params)
        return [(request.key, deltas, (request.prompt_tokens, request.completion_tokens, 0, request.scheduled, *cut))]

    def _next(self, sequence: _Sequence) -> tuple[Any, ...]:
        word = sequence.words[sequence.position] if sequence.words else ""
        sequence.position += 1
        last = sequence.position >= len(sequence.words)
        tokens = (self._number(word),) if word else ()
        text, stop = sequence.stops.feed(self._read(sequence, word, tokens, last), last)
        sequence.request.completion_tokens += len(tokens)
        finish = "stop" if stop is not None else sequence.finish if last else None
        requested = sequence.request.params.get("logprobs") is not None
        logprobs = tuple(((token, word, 0.0),) for token in tokens) if requested else ()
        return sequence.index, text, tokens, finish, stop, logprobs

    def _prompt(self, words: list[str], text: str, params: dict[str, Any]) -> tuple[Any, ...]:
        if params.get("return_prompt") == "count":
            return (len(words), "", (), (), *cut_tokens(params))
        numbers = tuple(map(self._number, words))
        requested = "prompt_logprobs" in params
        logprobs = ((), *(((number, word, 0.0),) for number, word in zip(numbers[1:], words[1:]))) if requested else ()
        return (numbers, text, tuple(words), logprobs, *cut_tokens(params))

    def _tokenize(self, text: str) -> list[str]:
        """Split a text into tokens. Bytes are characters U+0000 to U+00FF."""
        return _WORD.findall(text) if self._script["tokens"] == "words" else list(text.encode().decode("latin-1"))

    def _read(self, sequence: _Sequence, word: str, tokens: tuple[int, ...], last: bool) -> str:
        if self._script["tokens"] == "words":
            return word
        (text,) = decode_new([(sequence.text, tokens, last)], lambda many: [_characters(ids) for ids in many])
        return text

    def _number(self, word: str) -> int:
        if self._script["tokens"] == "bytes":
            return ord(word)
        if word not in self._numbers:
            self._numbers[word] = len(self._words)
            self._words.append(word)
        return self._numbers[word]

    def _detokenize(self, numbers: Sequence[int]) -> str:
        if self._script["tokens"] == "bytes":
            return _characters(number % 256 for number in numbers)
        return "".join(self._words[number] if number < len(self._words) else f" {number}" for number in numbers)


def _with_images(text: str, images: Sequence[tuple[str, int, int, bytes]]) -> str:
    """Return the prompt with a description of each image in the place of its placeholder."""
    first, *pieces = text.split(_IMAGE)
    if len(pieces) != len(images):
        raise Refused(f"the prompt has {len(pieces)} placeholders for {len(images)} images")
    shown = [f"<image {kind} {width}x{height} of {len(file)} bytes>" for kind, width, height, file in images]
    return first + "".join(map("".join, zip(shown, pieces)))


def _characters(numbers: Iterable[int]) -> str:
    return bytes(numbers).decode(errors="replace")


driver = ScriptedDriver
