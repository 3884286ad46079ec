"""The contract between the core, which decides what runs together, and a backend, which runs it.

    Backend     one per `backend:` name; knows how to complete a configuration and make instances
    Instance    one executor of one model version: a thread or a child process; runs one batch at a time
    Batch       the requests that the scheduler put together, each of them an Execution; see `batch`

A backend knows no queue, no version policy and no protocol.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from conch.backends.batch import Batch
from conch.model_config import InstanceKind, ModelConfig, RateLimit
from conch.observability.metrics.custom import MetricSample


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model version lies and what it is called."""

    config: ModelConfig
    version: int
    directory: Path  # <repository>/<model>
    # `--backend-config=<backend>,<key>=<value>`, the backend's own and the global ones.
    settings: Mapping[str, str]
    namespace: str = ""  # of the repository that it is in, "" where there are no namespaces
    allow_native_extensions: bool = False  # whether the configuration may name libraries for the server's process

    @property
    def version_directory(self) -> Path:
        """`<repository>/<model>/<version>`."""
        return self.directory / str(self.version)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """Everything one instance needs to know about itself."""

    source: ModelSource
    name: str  # `<group>_<index>`, as Triton names instances
    kind: InstanceKind
    device_id: int
    siblings: int  # instances of this model version on this host, itself included: for sizing thread pools
    rate: RateLimit = field(default_factory=RateLimit)


class Instance(ABC):
    """One executor of one model version.

    `start` → `execute`* → `stop`. After `start` the instance is `ready`. An instance that breaks down fails the batch
    it holds, turns not ready, recovers by itself if it can, and tells of both by calling `on_ready_change`.
    """

    plan: InstancePlan
    # Whether `execute` fetches tensors from their sources; where that fails, it is the request that fails.
    takes_sources: ClassVar[bool] = False
    # Set by the owner before start(); called on the event loop.
    on_ready_change: Callable[[], None]

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `execute` may be called."""

    @abstractmethod
    async def start(self) -> None:
        """Bring the model up. Raises ModelLoadError with the cause."""

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Run one batch. Returns at once; the batch is finished and released later, on the event loop.

        The caller guarantees that the instance is ready and holds no more batches than it wants ahead.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Finish what is running, release everything. Safe to call at any time, more than once."""

    async def kill(self) -> None:  # noqa: B027 - most instances end with the server's process
        """End at once, whatever is running, if that can be done: the time for `stop` is over. It may be under way."""

    @property
    def ahead(self) -> int:
        """How many batches it wants to hold while it runs one, so that it need not wait for the next.

        Worth it only where an execution is as short as the way to the instance and back: what is held cannot be
        taken by another instance that becomes free.
        """
        return 0

    @property
    def ahead_when_crowded(self) -> int:
        """The same while a full batch waits for every instance, so that holding one takes no work from another."""
        return self.ahead

    async def check_ready(self) -> bool:
        """Ask the model itself (`is_ready` of a Python model); by default what `ready` says."""
        return self.ready


class Backend(ABC):
    """One kind of model. Made once per server by `registry`; holds no model."""

    name: str
    default_model_filename: str
    # How many CPU instances a group has when the configuration does not say.
    default_cpu_instance_count: int = 1

    @property
    def can_use_gpus(self) -> bool:
        """Whether KIND_AUTO may mean a GPU: not where the framework has no support for one. Asked after `start`."""
        return True

    async def start(self) -> None:  # noqa: B027 - most backends have nothing to start
        """Make what the instances of all models share."""

    async def stop(self) -> None:  # noqa: B027 - see start
        """Release what `start` made."""

    @abstractmethod
    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Return the configuration's document with what the model itself can tell: inputs, outputs, batching.

        Called before any instance exists, not at all under `--disable-auto-complete-config`.
        Raises ModelLoadError or ConfigError if configuration and model contradict each other.
        """

    @abstractmethod
    def instance(self, plan: InstancePlan) -> Instance:
        """Make an instance; nothing is loaded before its `start`."""

    def custom_metrics(self) -> Sequence[MetricSample]:
        """Return what the models of this backend have measured themselves, for a scrape."""
        return ()
