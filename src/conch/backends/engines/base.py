"""The contract between the core and a backend that generates: a prompt goes in, deltas come out until it has ended.

    EngineBackend   one per `backend:` name; knows how to make an engine for a model version
    Engine          one model version, brought up; runs any number of requests side by side (continuous batching)

Unlike an `Instance`, an engine has a scheduler of its own: it is given every request that it is to know of at once and
decides in each step whose tokens it computes. What is shared between engines (chat templates, tool calls, the tensor
form of a generation) is in `conch.llm`; queues, limits and protocols are the core's and the frontends'.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from conch.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.backends.engines.embedding import EmbeddingModels
from conch.backends.engines.tensors import engine_document
from conch.backends.processes.environment import ChildEnvironment
from conch.backends.processes.fork_server import ForkServer
from conch.errors import ModelLoadError
from conch.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest


class Engine(ABC):
    """One model version that generates.

    `start` → `generate`* → `stop`. After `start` it is `ready` and `info` is known. An engine that breaks down ends
    every request that it holds with an error, turns not ready, recovers by itself if it can, and tells of both by
    calling `on_ready_change`. All methods belong to the event loop's thread.
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
        """Bring the model up. Raises ModelLoadError with the cause."""

    @abstractmethod
    def generate(self, request: GenerationRequest, listen: DeltaCallback) -> Generation:
        """Begin a request; `listen` hears of everything that becomes of it, refusals by the engine included."""

    @abstractmethod
    async def stop(self) -> None:
        """End what is running, release everything. Safe to call at any time, more than once."""

    async def kill(self) -> None:  # noqa: B027 - most engines end with their process
        """End at once: the time for `stop` is over."""


class EngineBackend(Backend):
    """A kind of model that generates. Its configurations have the tensors of Triton's vLLM backend and do not batch."""

    default_model_filename = "model.json"
    # Whether its library makes embeddings, too. Such models execute batches, by instances.
    makes_embeddings = False

    def __init__(self, fork_server: ForkServer | None = None) -> None:
        """Make the backend; `fork_server` is one that has been started ahead of time; engines get its environment."""
        self.environment = fork_server.environment if fork_server is not None else ChildEnvironment()
        self._embedding = EmbeddingModels(self.name, fork_server)

    async def stop(self) -> None:
        await self._embedding.stop()

    def generates(self, source: ModelSource) -> bool:
        """Whether a model version has an engine. If not, it makes embeddings and has instances."""
        return not (self.makes_embeddings and self._embedding.claims(source))

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add the tensors of a generation, decoupled responses and one instance, as Triton's vLLM backend does.

        A model that makes embeddings is given the tensors of those.
        """
        if not self.generates(source):
            return self._embedding.complete(source)
        return engine_document(source.config.document)

    def instance(self, plan: InstancePlan) -> Instance:
        """Make an instance of a model that makes embeddings. Raises ModelLoadError for others, which have none."""
        if self.generates(plan.source):
            raise ModelLoadError(f"backend '{self.name}' generates; it has no instances that execute batches")
        return self._embedding.instance(plan)

    @abstractmethod
    def engine(self, source: ModelSource) -> Engine:
        """Make the engine of a model version; nothing is loaded before its `start`. Raises ConfigError."""
