"""`conch client prompts`: a file of prompts to a language model, and a file of its answers with the times they took."""

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from conch.cli.clients.api_key import client_key
from conch.cli.clients.prompt_template import read_template, read_text
from conch.cli.clients.triton_stream import Generated, TritonStream
from conch.errors import ConchError, InvalidRequest

_SEPARATOR = "\n=========\n\n"


@dataclass(slots=True)
class _Asked:
    """A prompt and what has become of it."""

    id: int
    prompt: str
    answer: Generated | None = None
    error: str | None = None

    def results(self) -> str:
        """What stands in the results file."""
        if self.answer is None:
            return f"Error: {self.error}\n"
        return "".join(f"{text}\n" for text in self.answer.texts)

    def document(self) -> dict[str, Any]:
        answer = asdict(self.answer) if self.answer is not None else {}
        return {"id": self.id, "prompt": self.prompt, **answer, "error": self.error}


def ask_prompts(given: Namespace, sampling: dict[str, Any]) -> int:
    """Send all prompts, print and write what comes; return the exit status, 1 if a prompt failed. Raises ConchError."""
    if given.streaming_mode and str(sampling.get("n", 1)) != "1":
        raise InvalidRequest("--streaming-mode takes one answer to each prompt: 'n' must be 1")
    template = read_template(given.template, given.system)
    say = _Silent() if given.json else _Spoken(given.model_name)
    say.line(f"Loading inputs from `{given.input_prompts}`...")
    prompts = [template(line) for line in _lines(given.input_prompts)] * given.iterations
    asked = [_Asked(given.offset + index, prompt) for index, prompt in enumerate(prompts)]
    with _open_results(given.results_file) as results:
        started = time.monotonic()
        asyncio.run(_ask_all(given, sampling, asked, say))
        total_s = time.monotonic() - started
        say.line(f"Storing results into `{given.results_file}`...")
        text = "".join(each.results() + _SEPARATOR for each in asked)
        results.truncate(0)
        results.write(text)
    say.line(f"Total time for all requests: {total_s:.2f} seconds ({total_s * 1000:.2f} milliseconds)")
    failed = sum(each.error is not None for each in asked)
    if given.verbose:
        say.line(f"\nContents of `{given.results_file}` ===>\n{text}")
    if given.json:
        requests = [each.document() for each in asked]
        print(json.dumps({"model": given.model_name, "requests": requests, "total_s": total_s, "failed": failed}))
    elif failed:
        print(f"FAIL: {failed} of {len(asked)} prompts have failed", file=sys.stderr)
    else:
        say.line("PASS: vLLM example")
    return 1 if failed else 0


async def _ask_all(given: Namespace, sampling: dict[str, Any], asked: Sequence[_Asked], say: "_Silent") -> None:
    """Ask so many at a time as is wanted. Raises ConchError if the server or the model is not there."""
    key = client_key(given.api_key_file)
    async with TritonStream(given.url, given.model_name, timeout_s=given.stream_timeout, key=key) as model:
        await model.look(stream=given.streaming_mode, exclude=given.exclude_inputs_in_outputs)
        free = asyncio.Semaphore(given.concurrency)

        async def ask(one: _Asked) -> None:
            async with free:
                try:
                    one.answer = await model.generate(one.id, one.prompt, sampling)
                except ConchError as error:
                    one.error = error.message
            say.end(one)

        async with asyncio.TaskGroup() as group:
            for each in asked:
                group.create_task(ask(each))


class _Silent:
    """Nobody wants to hear of it."""

    def line(self, text: str) -> None:
        """Say nothing."""

    def end(self, asked: _Asked) -> None:
        """Say nothing."""


class _Spoken(_Silent):
    """Lines on the terminal while answers come."""

    def __init__(self, model: str) -> None:
        self._model = model

    def line(self, text: str) -> None:
        print(text, flush=True)

    def end(self, asked: _Asked) -> None:
        """Print how long a prompt took, or why it failed."""
        who = f"Model {self._model} - Request {asked.id}"
        if asked.answer is None:
            print(f"{who}: {asked.error}", file=sys.stderr, flush=True)
            return
        details = []
        if asked.answer.output_tokens is not None:
            count = asked.answer.output_tokens
            details.append(f"{count} token{'s' if count != 1 else ''}")
        if asked.answer.first_s is not None:
            details.append(f"the first after {asked.answer.first_s * 1000:.2f} ms")
        told = f" ({', '.join(details)})" if details else ""
        self.line(f"{who}: {asked.answer.total_s * 1000:.2f} ms{told}")


def _lines(path: str) -> list[str]:
    """Return the lines that have something in them."""
    lines = [line.removesuffix("\r") for line in read_text(path, f"--input-prompts: '{path}'").split("\n")]
    found = [line for line in lines if line.strip()]
    if not found:
        raise InvalidRequest(f"--input-prompts: '{path}' has no prompts in it")
    return found


def _open_results(path: str) -> TextIO:
    # Before anything is sent, for answers that took an hour are not to be lost to a wrong path; and as it is, for the
    # results of before are not to be lost to a server that is not there.
    try:
        return Path(path).open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"--results-file: '{path}' cannot be written: {error.strerror}") from None
