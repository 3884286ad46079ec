"""The clients of `benchmarks.llm`: `python -m benchmarks.llm.client HOST:PORT MODEL JOB`, timings as JSON on stdout.

Text completions, streamed, over one connection per client. It shares the machine with the server, so it does little: an
event is looked at for whether it has text, and only the one with the usage is decoded.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import cast

import httptools
import uvloop

from benchmarks.llm.timings import Recorder, Stream, Timings
from benchmarks.llm.work import OUTPUT_TOKENS, Job

_TEXT = b'"text":"'
_USAGE = b'"usage":{'
_END = b"[DONE]"


class Events:
    """Cuts server-sent events from a body that comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; return the data of the events that are complete with it."""
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        return [event.removeprefix(b"data: ") for event in events]


def has_text(event: bytes) -> bool:
    """Whether a chunk of a text completion brings any text."""
    start = event.find(_TEXT)
    return start >= 0 and event[start + len(_TEXT) : start + len(_TEXT) + 1] != b'"'


def usage(event: bytes) -> tuple[int, int] | None:
    """Return the tokens of prompt and completion if a chunk tells them."""
    if _USAGE not in event:
        return None
    counts = json.loads(event)["usage"]
    return counts["prompt_tokens"], counts["completion_tokens"]


class Client(asyncio.Protocol):
    """One client: a connection, and one request after the other on it as long as there are prompts."""

    def __init__(self, host: str, model: str, prompt_tokens: int, prompts: Iterator[str], recorder: Recorder) -> None:
        self._host = host
        self._model = model
        self._expected = (prompt_tokens, OUTPUT_TOKENS)
        self._prompts = prompts
        self._recorder = recorder
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._now = 0.0
        self._events = Events()
        self._usage: tuple[int, int] | None = None
        self._last = b""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._recorder.failed(f"the connection was closed in the middle of an answer: {error}")
        self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the answer, for the parser."""
        assert self._stream is not None
        for event in self._events.feed(piece):
            self._last = event
            if has_text(event):
                self._stream.chunks.append(self._now)
            elif tokens := usage(event):
                self._usage = tokens

    def on_message_complete(self) -> None:
        """Finish the stream: the parser has seen the whole response."""
        stream, self._stream = self._stream, None
        assert stream is not None
        status = self._parser.get_status_code()
        if status != 200 or self._last != _END or self._usage != self._expected:
            self._recorder.failed(f"status {status}, prompt and completion tokens {self._usage}, {self._last!r:.200}")
        else:
            stream.tokens = OUTPUT_TOKENS
            stream.ended = self._now
            self._recorder.done(stream)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        prompt = next(self._prompts, None)
        if prompt is None:
            self._transport.close()
            return
        body = json.dumps(
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": OUTPUT_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._events, self._usage, self._last = Events(), None, b""
        self._stream = Stream(time.perf_counter())
        self._transport.write(head.encode() + body)


async def run(host: str, model: str, job: Job) -> Timings:
    """Do a job: as many clients as are to be at once, each with the next prompt whenever it has an answer."""
    prompts = iter(job.prompts())
    address, _, port = host.rpartition(":")
    loop = asyncio.get_running_loop()
    recorder = Recorder()

    def client() -> Client:
        return Client(host, model, job.prompt_tokens, prompts, recorder)

    opening = (loop.create_connection(client, address, int(port)) for _ in range(job.concurrency))
    opened = await asyncio.gather(*opening)
    await asyncio.gather(*(protocol.gone for _, protocol in opened))
    return recorder.timings()


def main() -> None:
    """Do the job of the command line."""
    host, model, job = sys.argv[1:]
    print(json.dumps(asdict(uvloop.run(run(host, model, Job(**json.loads(job)))))))


if __name__ == "__main__":
    main()
