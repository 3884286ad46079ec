"""The contract between the core, which decides what runs together, and a backend, which runs it.

    Backend     one per `backend:` name; knows how to complete a configuration and make instances
    Instance    one executor of one model version: a thread or a child process; runs one batch at a time
    Batch       the requests that the scheduler put together, and the times of their shared execution
    Execution   one request of a batch in the hands of an instance

A backend knows no queue, no version policy and no protocol.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from conch.errors import ConchError, Unavailable
from conch.model_config import InstanceKind, ModelConfig
from conch.observability.custom_metrics import MetricSample
from conch.request import InferRequest, InferResponse


class Execution(Protocol):
    """One admitted request while an instance works on it. All methods belong to the event loop's thread.

    A request ends exactly once: `finish` settles it, and whatever comes after that, from whichever side, is dropped
    without harm. So an instance need not ask whether the caller has already gone.
    """

    @property
    def request(self) -> InferRequest:
        """What was asked."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller wants no answer any more."""

    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Have `notify` called once when the caller cancels; at once if that has happened."""

    def send(self, response: InferResponse) -> None:
        """Deliver one response of a decoupled model; more may follow."""

    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Deliver the last response or the error; None ends a decoupled request without a further response."""


class Batch:
    """Requests that are executed together.

    The instance stamps `input_done` and `infer_done` (`time.monotonic_ns()`; `started` too, if it began later than it
    was given the batch), finishes every execution, and calls `release()` exactly once, when it can take another batch.
    It may release before decoupled executions are finished. A batch that it holds and will never begin it hands back by
    `give_back()`, in place of all that; several of them the last one first.
    """

    __slots__ = ("_give_back", "_release", "executions", "infer_done", "input_done", "started")

    def __init__(
        self,
        executions: Sequence[Execution],
        release: Callable[["Batch"], None],
        give_back: Callable[["Batch"], None] | None = None,
    ) -> None:
        self.executions = executions
        self.started = monotonic_ns()
        self.input_done = 0
        self.infer_done = 0
        self._release = release
        self._give_back = give_back

    def release(self) -> None:
        """Tell the owner that the instance can take another batch."""
        self._release(self)

    def give_back(self) -> None:
        """Hand an unbegun batch back to the owner, who may have it executed elsewhere."""
        if self._give_back is not None:
            self._give_back(self)
        else:
            self.fail(Unavailable("the model instance ended before it came to this request"))
            self._release(self)

    def fail(self, error: ConchError) -> None:
        """Finish every execution with one error. Those already finished stay as they are."""
        for execution in self.executions:
            execution.finish(error)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model version lies and what it is called."""

    config: ModelConfig
    version: int
    directory: Path  # <repository>/<model>
    # `--backend-config=<backend>,<key>=<value>`, the backend's own and the global ones.
    settings: Mapping[str, str]

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


class Instance(ABC):
    """One executor of one model version.

    `start` → `execute`* → `stop`. After `start` the instance is `ready`. An instance that breaks down fails the batch
    it holds, turns not ready, recovers by itself if it can, and tells of both by calling `on_ready_change`.
    """

    plan: InstancePlan
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

        The caller guarantees that the instance is ready and holds no more than `ahead` batches.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Finish what is running, release everything. Safe to call at any time, more than once."""

    @property
    def ahead(self) -> int:
        """How many batches it wants to hold while it runs one, so that it need not wait for the next.

        Worth it only where an execution is as short as the way to the instance and back: what is held cannot be
        taken by another instance that becomes free.
        """
        return 0

    async def check_ready(self) -> bool:
        """Ask the model itself (`is_ready` of a Python model); by default what `ready` says."""
        return self.ready


class Backend(ABC):
    """One kind of model. Made once per server by `registry`; holds no model."""

    name: str
    default_model_filename: str
    # How many CPU instances a group has when the configuration does not say.
    default_cpu_instance_count: int = 1

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
