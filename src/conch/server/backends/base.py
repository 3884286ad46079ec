"""The contract between the core, which decides what runs together, and a backend, which runs it.

    Backend     one per `backend:` name; knows how to complete a configuration and make instances
    Instance    one executor of one model version: threads or a child process; runs one batch at a time, or several
                where their owner allows that
    Batch       the requests that the scheduler put together, each of them an Execution; see `batch`

A backend knows no queue, no version policy and no protocol.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from conch.domain.model_config import InstanceKind, ModelConfig, RateLimit
from conch.domain.request import Room
from conch.machine.cores import usable_cores
from conch.server.backends.batch import Batch
from conch.server.observability.degradations import Report, log_degradation
from conch.server.observability.metrics.custom import MetricSample


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model version: its configuration, files and settings."""

    config: ModelConfig
    version: int
    directory: Path  # <repository>/<model>
    # `--backend-config=<backend>,<key>=<value>`, those of the backend and the global ones.
    settings: Mapping[str, str]
    namespace: str = ""  # of its repository, "" without --model-namespacing
    allow_native_extensions: bool = False  # whether the configuration may name libraries for the server's process
    linked: tuple[Path, ...] = ()  # files that the server has linked into `directory`, which processes may read
    # Says that the model runs worse than asked, in any thread; raises ConfigError where --strict refuses that.
    report: Report = field(default=log_degradation, compare=False, repr=False)
    cores: frozenset[int] = frozenset()  # on which it runs, by its host policy; empty for any

    @property
    def version_directory(self) -> Path:
        """`<repository>/<model>/<version>`."""
        return self.directory / str(self.version)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """What one instance is made from."""

    source: ModelSource
    name: str  # `<group>_<index>`, as Triton names instances
    kind: InstanceKind
    device_id: int
    siblings: int  # instances of this model version on this host, including this one: for sizing thread pools
    rate: RateLimit = field(default_factory=RateLimit)


def report_threads(plan: InstancePlan, threads: int) -> None:
    """Report an instance that computes with more threads than there are cores, by its affinity and CPU quota."""
    if threads > usable_cores():
        text = f"instance '{plan.name}' has {threads} intra-op threads, and there are {usable_cores()} cores"
        plan.source.report("threads_exceed_cores", text)


class Worker(ABC):
    """What runs one model version: an instance, or an engine of a language model.

    After `start` it is `ready`. A worker that breaks down fails its requests, becomes not ready and recovers if it can;
    it calls `on_ready_change` whenever `ready` changes. All methods must be called on the event loop's thread.
    """

    # Set by the owner before start(); called on the event loop.
    on_ready_change: Callable[[], None]

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it can execute requests."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model. Raises ModelLoadError with the cause."""

    @abstractmethod
    async def stop(self) -> None:
        """End, and release everything. Safe to call at any time, more than once."""

    async def kill(self) -> None:  # noqa: B027 - most end with the server's process
        """End immediately, whatever is running, if possible: `stop` has timed out, and may still be running."""

    @property
    def pid(self) -> int:
        """Id of its process, 0 without one."""
        return 0

    @property
    def working_since(self) -> int:
        """When it made progress last while it has work (monotonic ns), or got that; 0 without work."""
        return 0

    def replace(self, why: str) -> bool:  # noqa: ARG002
        """End its process, whose requests fail with `why`, so that another one starts; return False if it has none."""
        return False

    @property
    def restarts(self) -> int:
        """How often a process that had exited was to be replaced."""
        return 0


class Instance(Worker):
    """One executor of one model version: `start` → `execute`* → `stop`, which finishes what is running."""

    plan: InstancePlan
    # Whether `execute` reads tensors from their sources; a failed read then fails that request only.
    takes_sources: ClassVar[bool] = False
    # Set by the owner before start(): whether it begins further batches on an instance that `takes` them.
    overlaps: bool = False

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Run one batch. Returns immediately; the batch is finished and released later, on the event loop.

        The caller guarantees that the instance is ready and `takes` the batch, or is sent it `ahead`.
        """

    def takes(self, held: int) -> bool:
        """Return whether the instance can begin another batch now, besides `held` that it has not released.

        Never more than one at a time unless `overlaps` is set.
        """
        return held == 0

    def ahead(self, *, crowded: bool) -> int:  # noqa: ARG002
        """Return how many batches to send to the instance while it runs one, to hide the latency of the next.

        Pays only where an execution is as short as the round trip to the instance: a batch that was sent cannot be run
        by another instance that becomes free. While it is `crowded`, a full batch waits for every instance, so that
        sending ahead takes no work from another.
        """
        return 0

    @property
    def input_room(self) -> Room | None:
        """What allocates memory for inputs, in any thread, that the instance need not copy; None if it has none."""
        return None

    def abandon(self) -> None:
        """End once a cancelled `start` or warm-up has returned, without waiting for that."""

    async def check_ready(self) -> bool:
        """Return the model's own answer (`is_ready` of a Python model), by default `ready`."""
        return self.ready


class Backend(ABC):
    """One kind of model. Made once per server by `registry`; holds no model."""

    name: str
    default_model_filename: str
    # How many CPU instances a group has when the configuration gives no count.
    default_cpu_instance_count: int = 1

    @property
    def can_use_gpus(self) -> bool:
        """Whether KIND_AUTO may mean a GPU: False if the framework does not support GPUs. Read after `start`."""
        return True

    async def start(self) -> None:  # noqa: B027 - most backends have nothing to start
        """Make the resources that the instances of all models share."""

    async def stop(self) -> None:  # noqa: B027 - see start
        """Release the shared resources."""

    @abstractmethod
    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Return the configuration's document, completed from the model: inputs, outputs, batching.

        Called before any instance exists, and not under `--disable-auto-complete-config`.
        Raises ModelLoadError or ConfigError if configuration and model contradict each other.
        """

    @abstractmethod
    def instance(self, plan: InstancePlan) -> Instance:
        """Make an instance, which loads nothing before its `start`."""

    def custom_metrics(self) -> Sequence[MetricSample]:
        """Return the custom metrics of this backend's models, for a scrape."""
        return ()
