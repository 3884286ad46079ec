"""`ResponseIterator`: the responses of a decoupled call, one by one, for `for` and for `async for`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from .answering import InferenceResponse
from .calling import PendingCall, PendingCalls

# What has been read is told to the server whenever it comes to so many bytes: it holds back no more than a bound.
_TOLD_AT = 1 << 20


class ResponseIterator:
    """The responses to one call as they come. The last one has no tensors if the model ended by the flag alone.

    Errors are responses, too, and others may follow one. Let go of before its end, it lets the called model finish
    and drops what comes; `cancel` has it stop.
    """

    def __init__(self, calls: PendingCalls, call: PendingCall) -> None:
        self._calls = calls
        self._call = call
        self._turn = threading.Lock()
        self._ended = False
        self._untold = 0

    def __del__(self) -> None:
        self._call.unwanted = True
        self._call.items.clear()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        with self._turn:
            if self._ended:
                raise StopIteration
            return self._taken(self._calls.wait(self._call))

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        call = self._call
        if not call.items:
            await self._calls.future(call, asyncio.get_running_loop(), lambda: None)
        return self._taken(call.items.popleft())

    def cancel(self) -> None:
        """Have the called model stop. An error with code CANCELLED ends the iteration."""
        self._calls.cancel(self._call)

    def _taken(self, item: Any) -> InferenceResponse:
        response: InferenceResponse
        response, weight, self._ended = item
        self._untold += weight
        if self._untold >= _TOLD_AT:
            self._calls.read(self._call, self._untold)
            self._untold = 0
        return response
