"""`conch client prompts`: send a file of prompts to a language model, and write its answers to a file."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from conch.base.command_line.say import say
from conch.base.errors import ConchError, InvalidRequest
from conch.base.http.credentials import client_key
from conch.clients.client import PromptSettings, read_template, read_text
from conch.clients.triton_stream import Generated, TritonStream

_SEPARATOR = "\n=========\n\n"


@dataclass(slots=True)
class _Request:
    """A prompt, and its answer or error."""

    id: int
    prompt: str
    answer: Generated | None = None
    error: str | None = None

    def results(self) -> str:
        """Return the entry for the results file."""
        if self.answer is None:
            return f"Error: {self.error}\n"
        return "".join(f"{text}\n" for text in self.answer.texts)

    def document(self) -> dict[str, Any]:
        answer = asdict(self.answer) if self.answer is not None else {}
        return {"id": self.id, "prompt": self.prompt, **answer, "error": self.error}


def ask_prompts(settings: PromptSettings, sampling: dict[str, Any]) -> int:
    """Send all prompts, print and write the answers; return the exit status, 1 after failures. Raises ConchError."""
    if settings.streaming_mode and str(sampling.get("n", 1)) != "1":
        raise InvalidRequest("--streaming-mode supports one answer to each prompt: 'n' must be 1")
    template = read_template(settings.template, settings.system)
    output = _NoOutput() if settings.json else _TerminalOutput(settings.model_name)
    output.line(f"Loading inputs from `{settings.input_prompts}`...")
    prompts = [template(line) for line in _lines(settings.input_prompts)] * settings.iterations
    requests = [_Request(settings.offset + index, prompt) for index, prompt in enumerate(prompts)]
    with _open_results(settings.results_file) as results:
        started = time.monotonic()
        asyncio.run(_send_all(settings, sampling, requests, output))
        total_s = time.monotonic() - started
        output.line(f"Storing results into `{settings.results_file}`...")
        text = "".join(request.results() + _SEPARATOR for request in requests)
        results.truncate(0)
        results.write(text)
    output.line(f"Total time for all requests: {total_s:.2f} seconds ({total_s * 1000:.2f} milliseconds)")
    failed = sum(request.error is not None for request in requests)
    if settings.verbose:
        output.line(f"\nContents of `{settings.results_file}` ===>\n{text}")
    if settings.json:
        documents = [request.document() for request in requests]
        print(json.dumps({"model": settings.model_name, "requests": documents, "total_s": total_s, "failed": failed}))
    elif failed:
        print(f"FAIL: {failed} of {len(requests)} prompts failed", file=sys.stderr)
    else:
        output.line("PASS: vLLM example")
    return 1 if failed else 0


async def _send_all(
    settings: PromptSettings, sampling: dict[str, Any], requests: Sequence[_Request], output: "_NoOutput"
) -> None:
    """Send the prompts with the given concurrency. Raises ConchError if the server or model is not available."""
    key = client_key(settings.api_key_file)
    async with TritonStream(settings.url, settings.model_name, timeout_s=settings.stream_timeout, key=key) as model:
        await model.prepare(stream=settings.streaming_mode, exclude=settings.exclude_inputs_in_outputs)
        slots = asyncio.Semaphore(settings.concurrency)

        async def send(request: _Request) -> None:
            async with slots:
                try:
                    request.answer = await model.generate(request.id, request.prompt, sampling)
                except ConchError as error:
                    request.error = error.message
            output.end(request)

        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(send(request))


class _NoOutput:
    """Print nothing, for --json."""

    def line(self, text: str) -> None:
        """Print a line."""

    def end(self, request: _Request) -> None:
        """Print the result of a request."""


class _TerminalOutput(_NoOutput):
    """Print lines while answers are received."""

    def __init__(self, model: str) -> None:
        self._model = model

    def line(self, text: str) -> None:
        print(text, flush=True)

    def end(self, request: _Request) -> None:
        """Print the duration of a request, or its error."""
        label = f"Model {self._model} - Request {request.id}"
        if request.answer is None:
            say(f"{label}: {request.error}")
            return
        details = []
        if request.answer.output_tokens is not None:
            count = request.answer.output_tokens
            details.append(f"{count} token{'s' if count != 1 else ''}")
        if request.answer.first_s is not None:
            details.append(f"the first after {request.answer.first_s * 1000:.2f} ms")
        suffix = f" ({', '.join(details)})" if details else ""
        self.line(f"{label}: {request.answer.total_s * 1000:.2f} ms{suffix}")


def _lines(path: str) -> list[str]:
    """Return the lines that are not blank."""
    lines = [line.removesuffix("\r") for line in read_text(path, f"--input-prompts: '{path}'").split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise InvalidRequest(f"--input-prompts: '{path}' has no prompts in it")
    return prompts


def _open_results(path: str) -> TextIO:
    # Opened before anything is sent, so that a wrong path fails early; for appending, so that the previous results are
    # kept if the server is not available.
    try:
        return Path(path).open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"--results-file: '{path}' cannot be written: {error.strerror}") from None
