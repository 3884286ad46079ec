"""The contract of engines, which generate text: a request's prompt goes in, deltas come out until it ends.

Unlike an `Instance`, an engine schedules by itself: it receives each request immediately and decides in every step
which tokens it computes. What engines share (chat templates, tool calls, the tensor form of a generation) is in
`conch.domain.llm`; queues, limits and protocols belong to the core and the frontends.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest


class Engine(ABC):
    """One model version that generates.

    `start` → `generate`* → `stop`. After `start` it is `ready` and `info` is set. An engine that fails ends all of its
    requests with an error, turns not ready, recovers by itself if it can, and calls `on_ready_change` for both. All
    methods must be called on the event loop's thread.
    """

    info: EngineInfo
    load: EngineLoad
    # Set by the owner before start(); called on the event loop.
    on_ready_change: Callable[[], None]

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `generate` may be called."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model. Raises ModelLoadError with the cause."""

    @abstractmethod
    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        """Begin a request. `on_deltas` receives its deltas and its end, which may be a refusal by the engine."""

    @abstractmethod
    async def stop(self) -> None:
        """End all requests and release all resources. Safe to call at any time, more than once."""

    @property
    def pid(self) -> int:
        """Id of its process, 0 without one."""
        return 0

    @property
    def restarts(self) -> int:
        """How often a process that had exited was to be replaced."""
        return 0

    async def kill(self) -> None:  # noqa: B027 - most engines end with their process
        """Stop immediately, after `stop` has timed out."""
