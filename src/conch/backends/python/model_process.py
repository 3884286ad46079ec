"""One life of a Python model's process: what is under way in it, and what its messages mean."""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Any

from conch.backends.base import InstancePlan, ModelSource
from conch.backends.batch import Batch, Execution
from conch.backends.child.conch_child.ipc.arena import Parcel
from conch.backends.child.conch_child.ipc.wire import Message, WireError
from conch.backends.child.conch_child.python import messages
from conch.backends.processes.child_process import ChildProcess
from conch.backends.processes.launch import Exit, Launcher
from conch.backends.python.adapter import Adapter
from conch.backends.python.arena_trimmer import ArenaTrimmer
from conch.backends.python.custom_metrics import InstanceMetrics
from conch.backends.python.loop_busy_poll import LoopBusyPoll
from conch.backends.python.model_code import code_path, initialize_arguments
from conch.backends.python.outgoing_bls import Executions, OutgoingCalls
from conch.backends.python.send_ahead import SendAhead
from conch.backends.python.settings import PythonSettings
from conch.backends.python.tensor_exchange import TensorExchange
from conch.errors import BackendError, Code, ConchError, ModelLoadError, ProcessDied, Unavailable
from conch.observability.logs import MODEL_LOGGER
from conch.request import InferResponse
from conch.sliced_copy import copy_in_slices

_log = logging.getLogger(MODEL_LOGGER)

_CODES = {code.value: code for code in Code}

# How long a model may think about whether it is ready.
_READINESS_LIMIT_S = 5.0


class ModelProcess:
    """A process with one version of a model in it, from `start` to its end.

    `on_death` is called if it ends without having been stopped, after all its requests have been answered.
    """

    __deletable__ = ["_tensors"]  # noqa: RUF012 - what mypyc wants to know of an attribute that is deleted

    def __init__(
        self,
        name: str,
        source: ModelSource,
        settings: PythonSettings,
        metrics: InstanceMetrics,
        on_death: Callable[[Exit], None],
        calls: Callable[[ChildProcess, Executions], OutgoingCalls] | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        """Assign. `calls` makes what the model calls others by; without it, it cannot."""
        self.name = name
        self._source = source
        self._adapter = adapter
        self._settings = settings
        self._metrics = metrics
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._child = ChildProcess(name, self._received, self._exited)
        self._tensors: TensorExchange
        self._log_level = _log.getEffectiveLevel()
        self._keys = count(1)
        self._pending: dict[int, Execution] = {}
        self._batches: deque[Batch] = deque()  # in the order in which the process executes them
        self._last_done = 0  # when it was done with the one before the first of them, monotonic ns
        self._send_ahead = SendAhead()
        self._awake = LoopBusyPoll(self._loop, settings.busy_poll_us * 1000)
        self._settled = asyncio.Event()
        self._reply: asyncio.Future[Message] = self._loop.create_future()
        self._readiness: asyncio.Future[bool] | None = None
        self._last_readiness = True
        self._has_is_ready = False
        self._stopping = False
        self._upkeep = ArenaTrimmer(self._child.send, lambda: not self._pending, settings.shm_kept_size)
        self._handlers: dict[int, Callable[[Message, memoryview], None]] = {
            messages.EXECUTED: self._executed,
            messages.ANSWERED: self._answered,
            messages.SAMPLES: lambda message, _: self._metrics.update(message[1]),
            messages.LOG: self._logged,
            messages.READINESS: self._readiness_told,
            messages.INITIALIZED: self._replied,
            messages.COMPLETED: self._replied,
        }
        self._calls = calls(self._child, self._executions) if calls is not None else None
        if self._calls is not None:
            self._handlers.update(self._calls.handlers)

    def __repr__(self) -> str:
        return f"<ModelProcess {self._child!r} {len(self._pending)} pending>"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.exit is None and self._child.pid != 0

    @property
    def has_worked(self) -> bool:
        """Whether it has survived an execution."""
        return self._last_done > 0

    async def start(self, launcher: Launcher) -> None:
        """Start the process; it holds no model yet. Raises ModelLoadError."""
        try:
            self._tensors = TensorExchange(self.name, self._settings.shm_limit_size, self._upkeep.output_released)
        except OSError as error:
            size = self._settings.shm_limit_size
            text = f"no shared memory of {size} bytes for model instance '{self.name}': {error.strerror}"
            if error.errno == errno.EFBIG:
                text += "; raise `ulimit -f` or lower --backend-config=python,shm-limit-byte-size=<bytes>"
            raise ModelLoadError(text, Code.UNAVAILABLE) from error
        tensors = self._tensors
        self._upkeep.start(tensors)
        if self._calls is not None:
            self._calls.begin(tensors)
        try:
            await self._child.start(launcher, tensors.descriptors)
        except ModelLoadError:  # as at the end of a process
            self._upkeep.stop()
            if self._calls is not None:
                self._calls.end()
            del self._tensors
            raise
        finally:
            tensors.close_descriptors()
            del tensors  # whoever keeps the error keeps this frame

    async def initialize(self, plan: InstancePlan) -> None:
        """Import the model and have it initialize itself. Raises ModelLoadError with the cause."""
        source = plan.source
        more = self._adapter.arguments if self._adapter is not None else {}
        arguments = {**initialize_arguments(plan), **more}
        options = self._options()
        options["decoupled"] = source.config.decoupled
        options["outputs"] = [spec.name for spec in source.config.outputs]
        _, error, self._has_is_ready = await self._ask((messages.INITIALIZE, arguments, options), "initialize")
        if self._calls is not None:
            self._calls.controls.initializing = False
        if error:
            raise ModelLoadError(f"model instance '{self.name}' failed to initialize: {error}")

    async def complete(self, document: str) -> str:
        """Have the model complete a configuration, JSON in and out. Raises ModelLoadError with the cause."""
        message = (messages.COMPLETE, self._options(), document)
        _, error, completed = await self._ask(message, "auto_complete_config")
        if error:
            raise ModelLoadError(f"auto_complete_config of model '{self._source.config.name}' failed: {error}")
        return str(completed)

    def execute(self, batch: Batch) -> None:
        """Send a batch to the model, but for requests whose tensors cannot be had any more."""
        level = _log.getEffectiveLevel()
        if level != self._log_level:
            self._log_level = level
            self._child.send((messages.SET_LOG_LEVEL, level))
        self._batches.append(batch)
        parcel = self._tensors.parcel()
        requests = []
        for execution in batch.executions:
            key = next(self._keys)
            try:
                requests.append(self._tensors.encode(key, execution.request, parcel))
            except ConchError as error:
                # Not while the scheduler is in the middle of giving this batch away.
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
        self._awake.sent(len(requests))

    def _copied(self, batch: Batch, requests: list[tuple[Any, ...]], parcel: Parcel, send: Callable[..., None]) -> None:
        """Send a batch whose large tensors are in the arena by now, but for requests whose tensors have gone."""
        if self._child.exit is not None:  # all requests have been settled
            send()
            return
        errors = self._tensors.drop_failed(requests, parcel)
        if requests:
            released = self._tensors.outputs.take_released()
            send((messages.EXECUTE, released, requests), parcel.parts, parcel.size)
        else:
            send()
            self._batches.remove(batch)
            self._loop.call_soon(batch.release)
        for key, error in errors.items():
            execution = self._pending.pop(key, None)
            if execution is not None:
                execution.finish(error)
        if self._stopping and not self._pending:
            self._settled.set()

    def ahead(self, *, crowded: bool) -> int:
        """Return how many batches to send ahead; see `SendAhead.depth`.

        None to a model that calls others: what lies behind a call could wait for that very call.
        """
        if self._source.config.decoupled or (self._calls is not None and self._calls.ever):
            return 0
        begun = max(self._batches[0].started, self._last_done) if self._batches else 0
        return self._send_ahead.depth(monotonic_ns() - begun if begun else 0, crowded=crowded)

    async def check_ready(self) -> bool:
        """Ask the model, if it has an opinion, whether it is ready. For a busy one its last answer stands."""
        if not self._has_is_ready:
            return True
        if self._readiness is None:
            self._readiness = self._loop.create_future()
            self._child.send((messages.CHECK_READY,))
        try:
            return await asyncio.wait_for(asyncio.shield(self._readiness), _READINESS_LIMIT_S)
        except TimeoutError:
            return bool(self._batches) and self._last_readiness

    async def stop(self) -> None:
        """Let what is under way finish and the model finalize, each within the time limit; then end the process."""
        self._stopping = True
        self._child.resume()
        limit = self._settings.stop_limit_s
        unfinished = "finish what it was executing"
        with suppress(TimeoutError):
            if self._pending:
                await asyncio.wait_for(self._settled.wait(), limit)
            self._child.send((messages.FINALIZE,))
            if await self._child.wait(limit):
                return
            unfinished = "finalize"
        self._child.log(logging.WARNING, f"killed, because it did not {unfinished} within {limit:g} s")
        await self.kill()

    async def kill(self) -> None:
        """End the process at once."""
        self._stopping = True
        self._child.kill()
        await self._child.wait(None)

    def _options(self) -> dict[str, Any]:
        source = self._source
        return {
            "directory": str(source.directory),
            "version": str(source.version),
            "filename": code_path(source).name if self._adapter is None else "",
            "adapter": self._adapter.module if self._adapter is not None else "",
            "log_level": self._log_level,
            "kept_size": self._settings.shm_kept_size,
            "busy_poll_ns": self._settings.busy_poll_us * 1000,
        }

    async def _ask(self, message: Message, what: str) -> Message:
        self._child.send(message)
        try:
            return await asyncio.wait_for(self._reply, self._settings.time_limit_s)
        except TimeoutError:
            raise ModelLoadError(
                f"{what} of model instance '{self.name}' took longer than {self._settings.stub_timeout_s:g} s; "
                f"--backend-config={self._source.config.backend},stub-timeout-seconds=<s> allows more, 0 any time"
            ) from None

    def _received(self, message: Message, payload: memoryview) -> None:
        self._handlers[message[0]](message, payload)

    def _replied(self, message: Message, _: memoryview) -> None:
        if not self._reply.done():
            self._reply.set_result(message)

    def _executed(self, message: Message, payload: memoryview) -> None:
        _, released, answers, samples, input_done, infer_done = message
        if not self._batches:
            raise WireError("no batch is being executed")
        self._awake.answered()
        batch = self._batches.popleft()
        if released:
            self._tensors.inputs.free(released)
        if samples:
            self._metrics.update(samples)
        # One that was sent ahead has waited for the one before it.
        batch.started = max(batch.started, self._last_done)
        batch.input_done = input_done
        batch.infer_done = self._last_done = infer_done
        self._send_ahead.measured(infer_done - input_done)
        if self._calls is not None and self._calls:
            self._calls.executed()
        # First, so that the model works on the next batch while the answers of this one are delivered.
        batch.release()
        self._deliver(answers, payload)
        self._upkeep.worked()

    def _answered(self, message: Message, payload: memoryview) -> None:
        _, released, answers, samples = message
        if released:
            self._tensors.inputs.free(released)
        if samples:
            self._metrics.update(samples)
        self._deliver(answers, payload)

    def _deliver(self, answers: Sequence[tuple[Any, ...]], payload: memoryview) -> None:
        name, version = self._source.config.name, self._source.version
        for key, final, error, outputs, parameters in answers:
            execution = self._pending.get(key)
            destinations = None if execution is None else execution.request.destinations
            # Also for a request that has ended meanwhile: shared memory is released by being looked at and let go.
            tensors = self._tensors.decode(outputs, payload, destinations) if outputs else []
            if execution is None:
                continue
            if final is not False:
                del self._pending[key]
            answer: InferResponse | ConchError | None = None
            if error is not None:
                answer = BackendError(error[1], _CODES.get(error[0], Code.INTERNAL))
            elif outputs is not None:
                answer = InferResponse(name, version, tensors, id=execution.request.id, parameters=parameters)
            if final is None:
                execution.reschedule()
            elif final:
                execution.finish(answer)
            elif answer is not None:
                execution.send(answer)
        if self._stopping and not self._pending:
            self._settled.set()

    def _logged(self, message: Message, _: memoryview) -> None:
        _, level, file, line, text = message
        self._child.log(level, text, f"{file}:{line}")

    def _readiness_told(self, message: Message, _: memoryview) -> None:
        self._last_readiness = bool(message[1])
        if self._readiness is not None and not self._readiness.done():
            self._readiness.set_result(self._last_readiness)
        self._readiness = None

    def _cancel(self, key: int) -> None:
        if key in self._pending:
            self._child.send((messages.CANCEL, key))
            if self._calls is not None and self._calls:
                self._calls.caller_cancelled()

    def _executions(self, keys: Sequence[int]) -> list[Execution]:
        """Return what is under way under these keys; everything if there are none."""
        return [self._pending[key] for key in keys or self._pending if key in self._pending]

    def _exited(self, exit_: Exit) -> None:
        self._upkeep.stop()
        if self._calls is not None:
            self._calls.end()
        self._metrics.process_ended()
        if not self._reply.done():
            words = self._child.last_words
            self._reply.set_exception(
                ModelLoadError(
                    f"the process of model instance '{self.name}' {exit_}" + (f":\n{words}" if words else "")
                )
            )
            # Nobody asks any more if the process was ended for having taken too long.
            self._reply.exception()
        if self._readiness is not None and not self._readiness.done():
            self._readiness.set_result(False)
        self._fail_pending(exit_)
        # At once, not when the collector comes: memory whose other end is gone is of no use to anybody.
        del self._tensors
        if not self._stopping:
            self._on_death(exit_)

    def _fail_pending(self, exit_: Exit) -> None:
        error: ConchError
        if self._stopping:
            error = Unavailable(f"model instance '{self.name}' was stopped before the request was finished")
        else:
            error = ProcessDied(
                f"Stub process '{self.name}' is not healthy. It {exit_} while this request was being executed."
            )
        batches, self._batches = self._batches, deque()
        begun = batches.popleft() if batches else None
        # The process tells of each batch before it begins the next: of those sent ahead it has seen none.
        unbegun = {id(execution) for batch in batches for execution in batch.executions}
        pending, self._pending = self._pending, {}
        for execution in pending.values():
            if id(execution) not in unbegun:
                execution.finish(error)
        self._settled.set()
        if begun is not None:
            begun.release()
        for batch in reversed(batches):
            batch.give_back()
