"""One call of the OpenAI API and a client that reads as it likes: what it has read in the end is the same."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import BackendError, ConchError
from conch.domain.generation import Delta, DeltaCallback, FinishReason, Usage
from conch.domain.llm.output import PlainOutput
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.choices import CompletionForm, Form, ReplyOptions
from conch.server.frontends.openai import exchange as openai_exchange
from conch.server.frontends.openai.errors import refusal_of
from conch.server.frontends.openai.exchange import Exchange

N = 2


class Channel:
    """A connection whose client takes what is written when the test says so."""

    ending = False

    def __init__(self) -> None:
        self.sent = bytearray()
        self.answers = 0
        self.ready = asyncio.Event()
        self.ready.set()

    @property
    def writable(self) -> bool:
        return self.ready.is_set()

    def write(self, data: Any) -> None:
        assert not self.answers
        self.sent += data

    def write_parts(self, parts: list[Any]) -> None:
        self.write(b"".join(parts))

    def finished(self, _keep_alive: bool) -> None:
        self.answers += 1

    async def drained(self) -> None:
        await self.ready.wait()


class Generation:
    """The generation of a call, of which the model is notified of one end only."""

    def __init__(self) -> None:
        self.listen: DeltaCallback | None = None
        self.aborted = 0

    def start(self, listen: Callable[..., None]) -> "Generation":
        self.listen = listen
        return self

    def tell(self, deltas: Sequence[Delta], end: Usage | ConchError | None = None) -> None:
        if self.listen is not None:
            listen = self.listen
            if end is not None:
                self.listen = None
            listen(deltas, end)

    def abort(self) -> None:
        self.aborted += 1


def begun(channel: Channel, form: Form | None = None) -> Generation:
    reply = HttpReply(channel, HttpRequest(b"POST", "/v1/completions", []))
    form = form or CompletionForm("id", "m", 0, ReplyOptions(include_usage=True))
    generation = Generation()
    exchange = Exchange(reply, form, PlainOutput, prompts=1, n=N, stream=True, refusal=refusal_of)
    exchange.begin([generation.start])
    return generation


def events(channel: Channel) -> list[Any]:
    """Take the body out of its chunks and the events out of the body."""
    _, _, rest = bytes(channel.sent).partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    *frames, last = body.decode().split("\n\n")
    assert last == ""
    return [
        json.loads(data) if data != "[DONE]" else data for data in (frame.removeprefix("data: ") for frame in frames)
    ]


STEPS = st.lists(st.sampled_from(["token", "part", "pause", "slow", "quick", "first ends"]), max_size=12)


@given(STEPS, st.sampled_from(["with", "apart", "error"]))
def test_every_text_arrives_whole_and_ends_once(steps: list[str], end: str) -> None:
    async def scenario() -> None:
        channel = Channel()
        generation = begun(channel)
        texts, open_ = ["", ""], [0, 1]
        for number, step in enumerate(steps):
            if step in ("slow", "quick"):
                (channel.ready.clear if step == "slow" else channel.ready.set)()
            elif step == "pause":
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            elif step == "first ends":
                if 0 in open_:
                    open_.remove(0)
                    generation.tell([Delta(0, "", (), FinishReason.STOP)])
            else:
                text = f"<{number}>" if step == "token" else ""
                generation.tell([Delta(index, text, (number,)) for index in open_])
                for index in open_:
                    texts[index] += text
        last = [Delta(index, "!", (), FinishReason.LENGTH) for index in open_]
        if end == "error":
            generation.tell((), BackendError("the engine was killed"))
        elif end == "with":
            generation.tell(last, Usage(3, 4))
        else:
            generation.tell(last)
            generation.tell((), Usage(3, 4))
        channel.ready.set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert channel.answers == 1
        if end == "error" and channel.sent.startswith(b"HTTP/1.1 500"):
            return
        told = events(channel)
        assert told[-1] == "[DONE]"
        assert told.count("[DONE]") == 1
        choices = [choice for event in told[:-1] for choice in event.get("choices", ())]
        if end == "error":
            assert told[-2]["error"]["message"] == "the engine was killed"
            return
        assert told[-2]["usage"]["total_tokens"] == 7
        for index in range(N):
            mine = [choice for choice in choices if choice["index"] == index]
            assert "".join(choice["text"] for choice in mine) == texts[index] + "!" * (index in open_)
            assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == [
                "length" if index in open_ else "stop"
            ]

    asyncio.run(scenario())


async def test_a_client_that_never_reads_gets_an_error_and_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_exchange, "MAX_UNSENT_BYTES", 5 * 2**20)
    channel = Channel()
    generation = begun(channel)
    generation.tell([Delta(0, "a", (1,))])
    channel.ready.clear()
    for _ in range(20):
        generation.tell([Delta(0, "x" * 2**19, (1,))])
        if generation.aborted:
            break
    assert generation.aborted == 1
    assert channel.answers == 1
    assert events(channel)[-2]["error"]["message"].startswith("the client reads too slowly: ")
    generation.tell([Delta(0, "late", (1,))])
    channel.ready.set()
    await asyncio.sleep(0)
    assert channel.answers == 1


async def test_a_fault_in_one_answer_does_not_affect_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(CompletionForm):
        def chunks(self, sequence: Any, delta: Delta) -> bytes:
            if delta.text == "deep":
                raise RecursionError
            return super().chunks(sequence, delta)

    for slow in (False, True):
        channel = Channel()
        generation = begun(channel, Faulty("id", "m", 0, ReplyOptions()))
        generation.tell([Delta(0, "a", (1,))])
        if slow:
            channel.ready.clear()
            generation.tell([Delta(0, "b", (1,))])
        generation.tell([Delta(0, "deep", (1,))])
        channel.ready.set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert (channel.answers, generation.aborted) == (1, 1)
        assert events(channel)[-2]["error"]["message"] == "internal error"
        assert "RecursionError" in caplog.text
