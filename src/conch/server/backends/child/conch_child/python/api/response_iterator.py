"""The iterator of a decoupled call's responses, for `for` and `async for`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ..bls import PendingCall, PendingCalls
from .responses import InferenceResponse

# Read responses are reported to the server in steps of this size; it limits the bytes of unread responses.
_REPORT_BYTES = 1 << 20


class ResponseIterator:
    """The responses of one call as they arrive. The last has no tensors if the model ended by the final flag alone.

    Errors are responses, too, and others may follow. If the iterator is deleted early, the called model continues and
    its responses are dropped; `cancel` stops it.
    """

    def __init__(self, calls: PendingCalls, call: PendingCall) -> None:
        self._calls = calls
        self._call = call
        self._lock = threading.Lock()
        self._ended = False
        self._unreported = 0

    def __del__(self) -> None:
        self._call.discarded = True
        self._call.items.clear()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        with self._lock:
            if self._ended:
                raise StopIteration("Iteration is done for the responses.")
            return self._unpack(self._calls.wait(self._call))

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        call = self._call
        if not call.items:
            await self._calls.future(call, asyncio.get_running_loop(), lambda: None)
        return self._unpack(call.items.popleft())

    def cancel(self) -> None:
        """Cancel the call. The iteration then ends with an error with code CANCELLED."""
        self._calls.cancel(self._call)

    def _unpack(self, item: Any) -> InferenceResponse:
        response: InferenceResponse
        response, weight, self._ended = item
        self._unreported += weight
        if self._unreported >= _REPORT_BYTES:
            self._calls.read(self._call, self._unreported)
            self._unreported = 0
        return response
