# Compiled by mypyc in wheels.
"""Requests in flight in the process of a Python model: sent, answered, cancelled, failed."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Any, Final, TypeAlias

from conch.base.errors import BackendError, ConchError
from conch.domain.request import InferResponse, Room
from conch.domain.scheduling.pipeline_depth import PipelineDepth
from conch.domain.sliced_copy import copy_in_slices
from conch.server.backends.base import ModelSource
from conch.server.backends.batch import Batch, Execution
from conch.server.backends.child.conch_child.ipc.arena import Parcel
from conch.server.backends.child.conch_child.ipc.wire import Message, WireError
from conch.server.backends.child.conch_child.python import messages
from conch.server.backends.processes import untrusted
from conch.server.backends.processes.child_process import ChildProcess
from conch.server.backends.python.custom_metrics import InstanceMetrics
from conch.server.backends.python.outgoing_bls import Executions, OutgoingCalls
from conch.server.backends.python.settings import PythonSettings
from conch.server.backends.python.tensor_exchange import ArenaTrimmer, TensorExchange


class LoopBusyPoll:
    """Keeps the loop polling instead of sleeping for up to `limit` nanoseconds; 0 turns it off.

    Only after a lone request, so that the loop has nothing else to do, and if the last answer came within the limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._sent = 0
        self._fast = False
        self._until = 0
        self._polling = False

    def sent(self, requests: int) -> None:
        """Poll for the answer if one lone request was sent to the process."""
        self._sent = monotonic_ns()
        if requests == 1 and self._fast:
            self._until = self._sent + self._limit
            if not self._polling:
                self._polling = True
                self._loop.call_soon(self._poll)

    def answered(self) -> None:
        """Stop polling: the answer has arrived."""
        self._fast = monotonic_ns() - self._sent < self._limit
        self._until = 0

    def _poll(self) -> None:
        # A loop with a callback due polls its descriptors without blocking.
        self._polling = monotonic_ns() < self._until
        if self._polling:
            self._loop.call_soon(self._poll)


_MAX_KEY: Final = 2**63 - 1
_MAX_TIME_NS: Final = 2**63 - 1
# Of an answer that is a response without error and parameters.
_PLAIN_ITEMS: Final = 3

# Key, execution if the request is in flight, whether final (None: rescheduled), and the answer.
_Answer: TypeAlias = tuple[int, Execution | None, bool | None, InferResponse | ConchError | None]


class InFlightRequests:
    """Requests that one process works on, and the shared memory that holds their tensors.

    Life: `open` → `execute`*, messages to the `handlers` → `close`. Belongs to the event loop's thread.
    """

    __deletable__ = ("_tensors",)

    def __init__(
        self,
        child: ChildProcess,
        source: ModelSource,
        settings: PythonSettings,
        metrics: InstanceMetrics,
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None = None,
    ) -> None:
        """`calls` makes the model's BLS calls; without it, the model cannot call others."""
        self._child = child
        child.caused = frozenset({messages.CALL_ANSWERED, messages.FETCHED, messages.CONTROLLED, messages.RELEASE})
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._tensors: TensorExchange
        self._keys = count(1)
        self._pending: dict[int, Execution] = {}
        self._batches: deque[Batch] = deque()  # in the order in which the process executes them
        self._last_answer = 0  # when a response or the end of a batch came, or the first request after all others
        self._last_done = 0  # when the process finished the batch before the first of them, monotonic ns
        self._pipeline_depth = PipelineDepth()
        self._busy_poll = LoopBusyPoll(self._loop, settings.busy_poll_us * 1000)
        self._trimmer = ArenaTrimmer(child.send, lambda: not self._pending, settings.shm_kept_size)
        self._draining = False
        self._drained = asyncio.Event()
        self.handlers: dict[int, Callable[[Message, memoryview], None]] = {
            messages.EXECUTED: self._executed,
            messages.ANSWERED: self._answered,
        }
        self._assign(source, metrics, calls)

    def _assign(
        self,
        source: ModelSource,
        metrics: InstanceMetrics,
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None,
    ) -> None:
        self._source = source
        self._metrics = metrics
        self.calls = calls(self._child, self.executions) if calls is not None else None
        if self.calls is not None:
            self.handlers.update(self.calls.handlers)

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def executing(self) -> bool:
        """Whether the process has a batch to execute; decoupled requests may outlive theirs."""
        return bool(self._batches)

    @property
    def has_worked(self) -> bool:
        """Whether the process has finished a batch."""
        return self._last_done > 0

    @property
    def working_since(self) -> int:
        """When the process answered last while it has requests, or got them; 0 while it has none or calls others."""
        if not self._pending or (self.calls is not None and self.calls):
            return 0
        return self._last_answer

    @property
    def input_room(self) -> Room:
        """What allocates memory for inputs of later batches."""
        return self._tensors.room

    @property
    def descriptors(self) -> Sequence[int]:
        """The file descriptors of the shared memory, for the process to inherit."""
        return self._tensors.descriptors

    def open(self) -> None:
        """Create the shared memory. Raises OSError."""
        tensors = TensorExchange(self._child.name, self._settings.shm_limit_size, self._trimmer.output_released)
        self._tensors = tensors
        self._trimmer.start(tensors)
        self._begin()

    def adopt(
        self,
        source: ModelSource,
        metrics: InstanceMetrics,
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None,
    ) -> None:
        """Serve an instance from now on; there were no requests before. The arguments are the constructor's."""
        self._assign(source, metrics, calls)
        self._begin()

    def _begin(self) -> None:
        self._metrics.attach(self._tensors.outputs.reserved)
        if self.calls is not None:
            self.calls.begin(self._tensors)

    def close_descriptors(self) -> None:
        """Close the descriptors that the process has inherited."""
        self._tensors.close_descriptors()

    def execute(self, batch: Batch) -> None:
        """Send a batch to the process, except for requests whose tensors are no longer available: those fail."""
        self._batches.append(batch)
        if not self._pending:
            self._last_answer = batch.started
        parcel = self._tensors.parcel()
        requests = []
        for execution in batch.executions:
            key = next(self._keys)
            try:
                requests.append(self._tensors.encode(key, execution.request, parcel))
            except ConchError as error:
                # In the next iteration of the loop: the scheduler is still dispatching this batch.
                self._loop.call_soon(execution.finish, error)
                continue
            self._pending[key] = execution
            execution.on_cancel(partial(self._cancel, key))
        if not requests:
            self._batches.pop()
            self._loop.call_soon(batch.release)
            return
        if parcel.copies is not None:
            send = self._child.hold()
            copy_in_slices(parcel.copies, partial(self._copied, batch, requests, parcel, send))
            return
        released = self._tensors.outputs.take_released()
        self._child.send((messages.EXECUTE, released, requests), parcel.parts, parcel.size)
        self._busy_poll.sent(len(requests))

    def ahead(self, *, crowded: bool) -> int:
        """Return how many batches to send ahead; see `PipelineDepth.depth`.

        0 for a model that makes BLS calls: a batch behind a call could be the one that answers the call.
        """
        if self._source.config.decoupled or (self.calls is not None and self.calls.ever_called):
            return 0
        began = max(self._batches[0].started, self._last_done) if self._batches else 0
        return self._pipeline_depth.depth(monotonic_ns() - began if began else 0, crowded=crowded)

    def executions(self, keys: Sequence[int]) -> list[Execution]:
        """Return the requests in flight that have these keys, all of them if there are no keys."""
        return [self._pending[key] for key in keys or self._pending if key in self._pending]

    async def drain(self) -> None:
        """Wait until no request is in flight. No batch may be executed any more."""
        self._draining = True
        if self._pending:
            await self._drained.wait()

    def close(self, error: ConchError) -> None:
        """Fail the requests in flight and free the shared memory, once the process has exited.

        A batch that the process has not begun is given back instead.
        """
        self._trimmer.stop()
        if self.calls is not None:
            self.calls.end()
        batches, self._batches = self._batches, deque()
        begun = batches.popleft() if batches else None
        # The process reports each batch before it begins the next, so it has not begun those that were sent ahead.
        unbegun = {id(execution) for batch in batches for execution in batch.executions}
        pending, self._pending = self._pending, {}
        for execution in pending.values():
            if id(execution) not in unbegun:
                execution.finish(error)
        self._drained.set()
        if begun is not None:
            begun.release()
        for batch in reversed(batches):
            batch.give_back()
        self._metrics.process_ended()
        # Do not leave the arenas to the garbage collector: they may be large.
        del self._tensors

    def _copied(self, batch: Batch, requests: list[tuple[Any, ...]], parcel: Parcel, send: Callable[..., None]) -> None:
        """Send a batch whose large tensors have been copied, except for requests whose copy failed."""
        if self._child.exit is not None:  # all requests have been settled
            send()
            return
        errors = self._tensors.drop_failed(requests, parcel)
        if requests:
            released = self._tensors.outputs.take_released()
            send((messages.EXECUTE, released, requests), parcel.parts, parcel.size)
        else:
            send()
            if batch in self._batches:  # else the process claims to have executed it
                self._batches.remove(batch)
                self._loop.call_soon(batch.release)
        for key, error in errors.items():
            execution = self._pending.pop(key, None)
            if execution is not None:
                execution.finish(error)
        self._check_drained()

    def _cancel(self, key: int) -> None:
        if key in self._pending:
            self._child.send((messages.CANCEL, key))
            if self.calls is not None and self.calls:
                self.calls.caller_cancelled()

    def _executed(self, message: Message, payload: memoryview) -> None:
        _, released, encoded, input_done, infer_done, usage = untrusted.items(message, 6, "EXECUTED")
        if not self._batches:
            raise WireError("no batch is being executed")
        untrusted.integer(input_done, 0, _MAX_TIME_NS, "the time when inputs were ready")
        untrusted.integer(infer_done, input_done, _MAX_TIME_NS, "the time when execute ended")
        cpu_ns, cpu_wait_ns, switches = untrusted.items(usage, 3, "the use of processors")
        untrusted.integer(cpu_ns, 0, _MAX_TIME_NS, "the use of processors")
        untrusted.integer(cpu_wait_ns, 0, _MAX_TIME_NS, "the use of processors")
        untrusted.integer(switches, 0, _MAX_TIME_NS, "the use of processors")
        # Everything is read before anything changes: a malformed message leaves its batch to `close`.
        answers = self._read(encoded, payload)
        self._tensors.release(released)
        self._busy_poll.answered()
        batch = self._batches.popleft()
        # A batch that was sent ahead has waited for the one before it.
        batch.started = max(batch.started, self._last_done)
        now = monotonic_ns()
        batch.input_done = min(max(input_done, batch.started), now)
        batch.infer_done = self._last_done = min(max(infer_done, batch.input_done), now)
        batch.used_cpu(cpu_ns, cpu_wait_ns, switches, now)
        self._last_answer = now
        self._pipeline_depth.measured(batch.infer_done - batch.input_done)
        if self.calls is not None and self.calls:
            self.calls.executed()
        # Before the answers are delivered, so that the model works on the next batch meanwhile.
        batch.release()
        self._deliver(answers)
        self._trimmer.worked()

    def _answered(self, message: Message, payload: memoryview) -> None:
        _, released, encoded, input_done, sent = untrusted.items(message, 5, "ANSWERED")
        untrusted.integer(input_done, 0, _MAX_TIME_NS, "the time when inputs were ready")
        untrusted.integer(sent, input_done, _MAX_TIME_NS, "the time when answers were sent")
        answers = self._read(encoded, payload)
        now = self._last_answer = monotonic_ns()
        if self._batches and not self._batches[0].input_done and input_done >= self._batches[0].started:
            self._batches[0].input_done = min(input_done, now)
        for _, execution, final, _ in answers:
            if final and execution is not None:
                execution.request.timeline.infer_done = min(sent, now)
        self._tensors.release(released)
        self._deliver(answers)

    def _read(self, encoded: Any, payload: memoryview) -> list[_Answer]:
        """Return the answers of a message. Raises WireError."""
        name, version = self._source.config.name, self._source.version
        decoupled = self._source.config.decoupled
        answers: list[_Answer] = []
        for fields in untrusted.array(encoded, "answers"):
            if type(fields) is list and len(fields) == _PLAIN_ITEMS:
                key, final, outputs = fields
                error = parameters = None
            else:
                key, final, error, outputs, parameters = untrusted.items(fields, 5, "an answer")
            execution = self._pending.get(untrusted.integer(key, 1, _MAX_KEY, "the key of an answer"))
            if final is not True and final is not None:
                untrusted.flag(final, "whether an answer is the last")
            destinations = None if execution is None else execution.request.destinations
            # Also for a request that has ended: dropping the view of an output releases its shared memory.
            tensors = [] if outputs is None else self._tensors.decode(outputs, payload, destinations)
            answer: InferResponse | ConchError | None = None
            request_id = "" if execution is None else execution.request.id
            if error is not None:
                code, text = untrusted.error_fields(error)
                answer = BackendError(text, code)
            elif outputs is not None:
                read = untrusted.parameters(parameters)
                answer = InferResponse(name, version, tensors, id=request_id, parameters=read)
            if not decoupled and (final is False or (final and answer is None)):
                raise WireError("a model that is not decoupled answers each request with one response or error")
            answers.append((key, execution, final, answer))
        return answers

    def _deliver(self, answers: list[_Answer]) -> None:
        for key, execution, final, answer in answers:
            if execution is None or key not in self._pending:
                continue
            if final is not False:
                del self._pending[key]
            if final is None:
                execution.reschedule()
            elif final:
                execution.finish(answer)
            elif answer is not None:
                execution.send(answer)
        self._check_drained()

    def _check_drained(self) -> None:
        if self._draining and not self._pending:
            self._drained.set()
