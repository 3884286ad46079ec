# Compiled by mypyc in wheels.
"""One call of an API that generates, while it does: deltas in, an answer or a stream of chunks out.

There is no task for a stream. An engine's step is one callback on the event loop, and its deltas for a client are one
write. While a client does not keep up, its deltas are queued here and then sent in one chunk.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from conch.base.errors import Cancelled, ConchError, Unavailable
from conch.domain.generation import Delta, FinishableGeneration, Usage
from conch.domain.llm.output import OutputParser
from conch.protocols.generation_form import ChoiceState, GenerationForm
from conch.protocols.http.long_replies import send_in_slices
from conch.protocols.http.message import HttpRefusal
from conch.protocols.http.reply import HttpReply
from conch.server.frontends.openai.errors import send_refusal
from conch.server.observability.tracing.request_trace import Trace

_TRUNCATED: Final = "prompt_truncated"
_log: Final = logging.getLogger(__name__)

# For a slow client: deltas, or characters, that are merged into one chunk, and the maximum of unsent chunks.
_MAX_COALESCED_DELTAS: Final = 4096
_MAX_COALESCED_CHARACTERS: Final = 2**20
MAX_UNSENT_BYTES: Final = 64 * 2**20


class Exchange:
    """Answers one call, whose prompts are generations of `n` sequences each.

    `refusal` writes the error of a call that has not been answered yet.
    """

    def __init__(
        self,
        reply: HttpReply,
        form: GenerationForm,
        parser: Callable[[], OutputParser],
        *,
        prompts: int,
        n: int,
        stream: bool,
        refusal: Callable[[ConchError], HttpRefusal],
        trace: Trace | None = None,
    ) -> None:
        self._reply = reply
        self._trace = trace
        self._form = form
        self._n = n
        self._stream = stream
        self._refusal = refusal
        self._sequences = [ChoiceState(parser()) for _ in range(prompts * n)]
        self._generations: list[FinishableGeneration] = []
        self._unfinished = prompts
        self._usage = Usage(0, 0, 0)
        self._queued: list[Delta] = []  # for a slow client
        self._queued_text = 0  # characters of it
        self._unsent = bytearray()  # chunks of what came before that
        self._catching_up: asyncio.Task[None] | None = None

    def begin(self, generate: Sequence[Callable[[Callable[..., None]], FinishableGeneration]]) -> None:
        """Start every generation; if one is refused, abort the others. Raises ConchError."""
        try:
            for number, start in enumerate(generate):
                self._generations.append(start(partial(self._on_deltas, number)))
        except ConchError:
            self._unfinished = 0
            self.abort()
            raise
        if self._reply.open:
            self._reply.on_disconnect = self.abort
        else:
            self.abort()

    def abort(self) -> None:
        """Abort the running generations."""
        for generation in self._generations:
            generation.abort()

    def _on_deltas(self, prompt: int, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        if not self._unfinished:
            return
        try:
            self._process(prompt, deltas, end)
        except ConchError as error:
            self._fail(error)
        except Exception:  # of one answer: must not reach the engine, which serves others
            self._fail_unexpectedly()
        if self._trace is not None and not self._unfinished:
            trace, self._trace = self._trace, None
            trace.answered(end if isinstance(end, ConchError) else None)

    def _process(self, prompt: int, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        if isinstance(end, ConchError):
            self._fail(end)
            return
        if deltas and deltas[0].prompt is not None:
            for state in self._sequences[prompt * self._n : (prompt + 1) * self._n]:
                state.prompt = deltas[0].prompt
        if prompt:
            deltas = [_moved(delta, prompt * self._n) for delta in deltas]
        if end is not None:
            self._unfinished -= 1
            total = self._usage
            self._usage = Usage(
                total.prompt_tokens + end.prompt_tokens,
                total.completion_tokens + end.completion_tokens,
                total.cached_tokens + end.cached_tokens,
                cut_tokens=total.cut_tokens + end.cut_tokens,
            )
        if self._stream:
            self._send(deltas)
        else:
            for delta in deltas:
                self._form.take(self._sequences[delta.index], delta)
            if not self._unfinished:
                if self._usage.cut_tokens:
                    self._reply.note_degraded(_TRUNCATED)
                send_in_slices(self._reply, self._form.headers, self._form.whole(self._sequences, self._usage))
        if end is None and self._n == 1 and self._catching_up is None and self._sequences[prompt].parser.complete:
            self._generations[prompt].finish()

    def _send(self, deltas: Sequence[Delta]) -> None:
        if self._catching_up is not None:
            self._queue(deltas)
            return
        chunks = self._chunks(deltas)
        if not self._reply.begun:
            if sum([0 if state.prompt is None else state.prompt.cut_tokens for state in self._sequences]):
                self._reply.note_degraded(_TRUNCATED)
            self._reply.begin(200, self._form.stream_headers)
        if not self._unfinished:
            self._reply.write(chunks + self._form.end(self._sequences, self._usage))
            self._reply.end()
            return
        self._reply.write(chunks)
        if not self._reply.writable:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        await self._reply.drained()
        self._catching_up = None
        if not self._reply.open:
            return
        try:
            self._coalesce()
            self._reply.write(bytes(self._unsent))
            self._unsent.clear()
            self._send(())
        except ConchError as error:
            self._fail(error)
        except Exception:
            self._fail_unexpectedly()

    def _queue(self, deltas: Sequence[Delta]) -> None:
        """Queue deltas for a slow client; end its stream if more than `MAX_UNSENT_BYTES` wait."""
        self._queued += deltas
        self._queued_text += sum([len(delta.text) for delta in deltas])
        if len(self._queued) < _MAX_COALESCED_DELTAS and self._queued_text < _MAX_COALESCED_CHARACTERS:
            return
        self._coalesce()
        if len(self._unsent) > MAX_UNSENT_BYTES:
            text = f"the client reads too slowly: {len(self._unsent)} bytes were waiting for it"
            self._unsent.clear()
            self._fail(Unavailable(text))

    def _coalesce(self) -> None:
        queued, self._queued, self._queued_text = self._queued, [], 0
        self._unsent += self._chunks(_merged(queued))

    def _chunks(self, deltas: Sequence[Delta]) -> bytes:
        return b"".join([self._form.chunks(self._sequences[delta.index], delta) for delta in deltas])

    def _fail(self, error: ConchError) -> None:
        """Answer with an error, and abort the running generations."""
        self._unfinished = 0
        self._answer_error(error)
        self.abort()

    def _fail_unexpectedly(self) -> None:
        """Log an unexpected exception, and end the answer with an error."""
        _log.exception("a generation over HTTP failed unexpectedly")
        self._fail(ConchError("internal error"))

    def _answer_error(self, error: ConchError) -> None:
        if not self._reply.begun:
            send_refusal(self._reply, self._refusal(error))
        elif not isinstance(error, Cancelled):
            self._reply.write(self._form.failure(error))
            self._reply.end()
        else:
            self._reply.end()


def _moved(delta: Delta, by: int) -> Delta:
    return Delta(delta.index + by, delta.text, delta.token_ids, delta.finish_reason, delta.stop_reason, delta.logprobs)


def _merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Join the deltas of each sequence into one."""
    by_index: dict[int, list[Delta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [
        Delta(
            index,
            "".join(delta.text for delta in group),
            [token for delta in group for token in delta.token_ids],
            group[-1].finish_reason,
            group[-1].stop_reason,
            [token for delta in group for token in delta.logprobs],
        )
        for index, group in by_index.items()
    ]
