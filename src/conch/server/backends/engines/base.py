"""The contract of backends that generate text: a request's prompt goes in, deltas come out until it ends.

    EngineBackend   one per `backend:` name; creates engines for model versions
    Engine          one loaded model version; runs any number of requests concurrently (continuous batching)

Unlike an `Instance`, an engine schedules by itself: it receives each request immediately and decides in every step
which tokens it computes. What engines share (chat templates, tool calls, the tensor form of a generation) is in
`conch.domain.llm`; queues, limits and protocols belong to the core and the frontends.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from conch.base.errors import ModelLoadError
from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.engines.embedding import EmbeddingModels
from conch.server.backends.engines.tensors import engine_document
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.processes.launch import ChildEnvironment


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


class EngineBackend(Backend):
    """A kind of model that generates. Its configurations have the tensors of Triton's vLLM backend and do not batch."""

    default_model_filename = "model.json"
    # Whether its library also computes embeddings. Such models have instances that execute batches.
    makes_embeddings = False

    def __init__(self, fork_server: ForkServer | None = None) -> None:
        """Create the backend. Engines get the environment of `fork_server`; embedding models are forked from it."""
        self.environment = fork_server.environment if fork_server is not None else ChildEnvironment()
        self._embedding = EmbeddingModels(self.name, fork_server)

    async def stop(self) -> None:
        await self._embedding.stop()

    def generates(self, source: ModelSource) -> bool:
        """Return whether a model version has an engine. If not, it computes embeddings and has instances."""
        return not (self.makes_embeddings and self._embedding.accepts(source))

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add the tensors of Triton's vLLM backend, decoupled responses and one instance.

        An embedding model gets an embedding's tensors instead.
        """
        if not self.generates(source):
            return self._embedding.complete(source)
        return engine_document(source.config.document)

    def instance(self, plan: InstancePlan) -> Instance:
        """Create an instance of an embedding model. Raises ModelLoadError for models with an engine."""
        if self.generates(plan.source):
            raise ModelLoadError(f"backend '{self.name}' runs generative models by an engine; they have no instances")
        return self._embedding.instance(plan)

    @abstractmethod
    def engine(self, source: ModelSource) -> Engine:
        """Create the engine of a model version; its `start` loads the model. Raises ConfigError."""
