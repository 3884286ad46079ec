"""The interface of the load generator."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from conch.measure.bench.measurement import ClientHealth
from conch.measure.bench.records import Chunks, Records


@dataclass(frozen=True, slots=True)
class Collected:
    """What has come in since the call before."""

    records: Records
    chunks: Chunks
    in_flight: int
    errors: tuple[str, ...]
    """Some of the messages of failed requests, at most 100 a call, one line each."""
    ended: bool
    """Whether all processes have ended: the requests are sent, or `stop` was called."""


class Load(ABC):
    """A load that runs in processes forked from this one. Start it before threads."""

    @abstractmethod
    def start(self) -> None:
        """Fork, connect, and begin. Raises ConnectionError with address and cause if nothing can be opened."""

    @abstractmethod
    def collect(self, timeout_s: float) -> Collected:
        """Wait for up to `timeout_s` and return what has come in. Raises RuntimeError if a process died."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """Send nothing more; requests in flight after `grace_s` become UNFINISHED.

        Continue to call `collect` until it says `ended`.
        """

    @abstractmethod
    def health(self) -> ClientHealth:
        """Return how the processes kept up since the last call of `health`."""

    @abstractmethod
    def close(self) -> None:
        """End all processes at once, in any state."""
