# Compiled by mypyc in wheels.
"""Batches that the core sends to instances, and the requests in them as instances see them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic_ns

from conch.base.errors import ConchError, Unavailable
from conch.domain.request import InferRequest, InferResponse
from conch.domain.scheduling.waiting import Waiting


class Execution(Waiting, ABC):
    """One admitted request while an instance works on it. All methods belong to the event loop's thread.

    A request ends exactly once: `finish` settles it, and later calls are no-ops. So an instance need not check whether
    the caller has cancelled.
    """

    # A Protocol would do, but its attributes and methods are looked up by name in compiled code.
    __slots__ = ("request",)

    def __init__(self, request: InferRequest) -> None:
        super().__init__(request.batch_size)
        self.request = request

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the request."""
        return False

    @abstractmethod
    def on_cancel(self, notify: Callable[[], None]) -> None:
        """Call `notify` once when the caller cancels; immediately if that has happened."""

    @abstractmethod
    def send(self, response: InferResponse | ConchError) -> None:
        """Deliver one response or error of a decoupled model; more may follow."""

    @abstractmethod
    def finish(self, answer: InferResponse | ConchError | None) -> None:
        """Deliver the last response or the error; None ends a decoupled request without a further response."""

    @abstractmethod
    def reschedule(self) -> None:
        """Reschedule the request of an iterative model: it joins a later batch."""


class Batch:
    """Requests that are executed together.

    The instance stamps `input_done` and `infer_done` (`time.monotonic_ns()`; `started` too, if it began later than it
    received the batch), finishes every execution, and calls `release()` exactly once, when it can take another batch.
    It may release before decoupled executions are finished. A batch that it will never begin, it returns by
    `give_back()` instead; of several batches, the last one first.
    """

    __slots__ = (
        "_give_back",
        "_release",
        "ahead",
        "begun",
        "cpu_ns",
        "cpu_wait_ns",
        "executions",
        "formed",
        "infer_done",
        "input_done",
        "number",
        "started",
        "switches",
        "waiting",
        "why_now",
    )

    def __init__(
        self,
        executions: Sequence[Execution],
        release: Callable[["Batch"], None],
        give_back: Callable[["Batch"], None] | None = None,
    ) -> None:
        self.executions = executions
        self.formed = self.started = monotonic_ns()
        self.begun = True  # False while it waits behind another batch of its instance
        self.input_done = 0
        self.infer_done = 0
        # For the event log: number of the batch, why it was formed, requests that were left in the queue, and the
        # resources of the execution where the instance knows them.
        self.number = 0
        self.why_now = ""
        self.waiting = 0
        self.ahead = False  # whether it was sent to an instance that executed another
        self.cpu_ns = self.cpu_wait_ns = self.switches = 0
        self._release = release
        self._give_back = give_back

    def size(self) -> int:
        """Return the sum of the batch sizes of its requests."""
        size = 0
        for execution in self.executions:
            size += execution.request.batch_size
        return size

    def used_cpu(self, cpu_ns: int, wait_ns: int, switches: int, now: int) -> None:
        """Record the use of processors; a thread cannot have used more than the time since the batch was formed."""
        elapsed = now - self.formed
        self.cpu_ns, self.cpu_wait_ns, self.switches = min(cpu_ns, elapsed), min(wait_ns, elapsed), switches

    def release(self) -> None:
        """Notify the owner that the instance can take another batch."""
        self._release(self)

    def give_back(self) -> None:
        """Return an unbegun batch to the owner, which may execute it on another instance."""
        if self._give_back is not None:
            self._give_back(self)
        else:
            self.fail(Unavailable("the model instance ended before it came to this request"))
            self._release(self)

    def fail(self, error: ConchError) -> None:
        """Finish every execution with one error; no-op for those already finished."""
        for execution in self.executions:
            execution.finish(error)
