"""Conversion of TensorRT-LLM's outputs to deltas, one sequence at a time.

The API's texts and stop strings are not used: it streams the beginning of a stop string and later retracts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ..detokenizer import DecodeMany, StopStrings, TextStream, decode_new

Delta = tuple[Any, ...]  # as `messages` describes it
FINISH = 3  # index of the finish reason

_FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort"}


class OutputSequence:
    """Converts the outputs of one sequence to deltas."""

    def __init__(self, index: int, params: Mapping[str, Any], decode: DecodeMany) -> None:
        self.tokens = 0
        self.ended = False
        self._index = index
        self._decode = decode
        self._logprobs: int | None = params.get("logprobs")
        self._stream = TextStream()
        self._stops = StopStrings(params.get("stop", ()), params.get("include_stop_str_in_output", False))

    def take(self, output: Any) -> tuple[Any, ...]:
        """Return the delta of the API's `CompletionOutput`, and set `ended` with the last."""
        new = list(output.token_ids_diff)
        finish = None if output.finish_reason is None else _FINISHED.get(output.finish_reason, "abort")
        last = finish is not None
        (text,) = decode_new([(self._stream, new, last)], self._decode)
        text, stop = self._stops.feed(text, last)
        self.tokens += len(new)
        self.ended = last or stop is not None
        logprobs: tuple[Any, ...] = ()
        if self._logprobs is not None and output.logprobs_diff:
            logprobs = self._alternatives(new, output.logprobs_diff, self._logprobs)
        if stop is not None:
            return self._index, text, tuple(new), "stop", stop, logprobs
        return self._index, text, tuple(new), finish, output.stop_reason, logprobs

    def _alternatives(
        self, tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any]], count: int
    ) -> tuple[Any, ...]:
        """Return for each token itself and the `count` most likely others."""
        listed = []
        for token, alternatives in zip(tokens, logprobs):
            others = sorted(
                (candidate for candidate in alternatives if candidate != token), key=lambda e: -alternatives[e].logprob
            )
            chosen = [token, *others][: 1 + count]
            texts = self._decode([[candidate] for candidate in chosen])
            listed.append(
                tuple((candidate, text, alternatives[candidate].logprob) for candidate, text in zip(chosen, texts))
            )
        return tuple(listed)


async def stream_deltas(sequence: OutputSequence, result: Any) -> AsyncIterator[Delta]:
    """Yield the deltas of a sequence until it ends, also at a stop string, which the API does not know."""
    async for step in result:
        yield sequence.take(step.outputs[0])
        if sequence.ended:
            return


async def merge_streams(streams: Sequence[AsyncIterator[Delta]]) -> AsyncIterator[Delta]:
    """Yield items of all streams as they arrive. Closing this iterator cancels the streams."""
    waiting = {asyncio.ensure_future(stream.__anext__()): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(stream.__anext__())] = stream
                yield item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
