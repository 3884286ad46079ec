"""The contract of engines, which generate text: a request's prompt goes in, deltas come out until it ends.

Unlike an `Instance`, an engine schedules by itself: it receives each request immediately and decides in every step
which tokens it computes. What engines share (chat templates, tool calls, the tensor form of a generation) is in
`conch.domain.llm`; queues, limits and protocols belong to the core and the frontends.
"""

from abc import abstractmethod
from collections.abc import Mapping

from conch.base.errors import Unsupported
from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest
from conch.server.backends.base import Worker


class Engine(Worker):
    """One model version that generates: `start`, which sets `info` → `generate`* → `stop`, which ends all requests."""

    info: EngineInfo
    load: EngineLoad

    @abstractmethod
    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        """Begin a request. `on_deltas` receives its deltas and its end, which may be a refusal by the engine."""

    @property
    def loaded_adapters(self) -> Mapping[str, str]:
        """The folders of the LoRA adapters that were loaded at run time, by name."""
        return {}

    async def set_adapter(self, name: str, path: str) -> None:  # noqa: ARG002 - for overrides
        """Load a LoRA adapter from a folder, or unload it if `path` is "". Raises ConchError; then nothing changes."""
        raise Unsupported(f"engine '{self.info.engine}' does not load LoRA adapters at run time")
