"""The interface of observers, and the thread that samples them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from conch.measure.bench.measurement import GpuFigures, Note, ServerFigures

_INTERVAL_S = 1.0
_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What one observer saw in a window. Fields of `server` that are None are unknown to it."""

    server: ServerFigures | None = None
    gpus: tuple[GpuFigures, ...] = ()
    notes: tuple[Note, ...] = ()


class ServerObserver(ABC):
    """Takes samples of one source in a thread; the figures of a window come from the samples at its edges."""

    @abstractmethod
    def sample(self) -> None:
        """Sample the source. Must not raise, and must return within seconds."""

    @abstractmethod
    def observed(self, start_ns: int, end_ns: int) -> Observed:
        """Return the figures between two times of CLOCK_MONOTONIC."""

    @abstractmethod
    def gauges(self) -> dict[str, float]:
        """Return the latest values, by the names that the live view prints: "queue", "GPU", "server CPU", …"""


class Sampling:
    """Samples observers once a second in a thread. Start it after the load has forked its processes."""

    def __init__(self, observers: Sequence[ServerObserver]) -> None:
        self._observers = observers
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Without observers it is not needed."""
        if self._observers:
            self._thread = threading.Thread(target=self._run, name="observers", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Sample a last time and end the thread."""
        if self._thread is not None:
            self._ending = True
            self._wake.set()
            self._thread.join(_STOP_TIMEOUT_S)
            self._thread = None

    def mark(self) -> None:
        """Sample soon: an edge of the window is now."""
        self._wake.set()

    def gauges(self) -> dict[str, float]:
        """Return the latest values of all observers."""
        merged: dict[str, float] = {}
        for observer in self._observers:
            merged |= observer.gauges()
        return merged

    def observed(self, start_ns: int, end_ns: int) -> Observed:
        """Return the figures of all observers together."""
        parts = [observer.observed(start_ns, end_ns) for observer in self._observers]
        server: ServerFigures | None = None
        for part in parts:
            server = _merged(server, part.server)
        return Observed(
            server,
            tuple(gpu for part in parts for gpu in part.gpus),
            tuple(note for part in parts for note in part.notes),
        )

    def _run(self) -> None:
        while True:
            ending = self._ending
            self._wake.clear()
            for observer in self._observers:
                observer.sample()
            if ending:
                return
            self._wake.wait(_INTERVAL_S)


def _merged(first: ServerFigures | None, second: ServerFigures | None) -> ServerFigures | None:
    """Return both in one; where both know a figure, the first counts."""
    if first is None or second is None:
        return first or second
    values = {
        name: getattr(second, name) if getattr(first, name) is None else getattr(first, name)
        for name in ServerFigures.__slots__
    }
    return ServerFigures(**values)


def nearest(times_ns: Sequence[int], time_ns: int) -> int:
    """Return the index of the sample nearest to a time. There must be a sample."""
    return min(range(len(times_ns)), key=lambda index: abs(times_ns[index] - time_ns))
