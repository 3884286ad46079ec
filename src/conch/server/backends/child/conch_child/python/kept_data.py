"""Bytes of a tensor that the server keeps for this process, as most models pass them on without reading them."""

from __future__ import annotations

import threading
from typing import Any, Callable


class KeptData:
    """`fetch` copies the bytes into this process; `release` reports that it has no more use for them."""

    __slots__ = ("_array", "_fetch", "_lock", "_release", "_size", "place")

    def __init__(self, place: int, size: int, fetch: Callable[[int], Any], release: Callable[[int], None]) -> None:
        self.place = place
        self._size = size
        self._fetch = fetch
        self._release = release
        self._lock = threading.Lock()
        self._array: Any = None

    def __del__(self) -> None:
        self._release(self.place)

    def __len__(self) -> int:
        return self._size

    @property
    def array(self) -> Any:
        """The bytes as an array, None unless they have been read."""
        return self._array

    def read(self) -> Any:
        """Return the bytes as an array, the same for all tensors that share them.

        Raises TritonModelException if the server has exited.
        """
        with self._lock:
            if self._array is None:
                self._array = self._fetch(self.place)
        return self._array
