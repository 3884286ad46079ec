"""Base class of instances that compute in dedicated threads, for frameworks that release the GIL.

The event loop puts batches into a queue; a thread returns the answers of a whole batch to the loop in one callback.
Tensors are joined and split in the thread, too.

A framework that several threads may call concurrently sets `concurrent_runs`; then a batch may run in parts. With
several `lanes`, each with a thread, batches may run beside each other.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from logging import getLogger
from queue import SimpleQueue
from threading import Thread
from time import monotonic_ns
from typing import Any, Final

import numpy.typing as npt

from conch.base.errors import BackendError, ConchError, ModelLoadError
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Room
from conch.domain.tensor import NUMPY_DTYPES, byte_size
from conch.machine.cores import pin_thread
from conch.server.backends.base import Instance, InstancePlan
from conch.server.backends.batch import Batch
from conch.server.backends.child.conch_child.ipc.cpu_meter import CpuMeter
from conch.server.backends.pool_threads import PoolThreads
from conch.server.backends.ragged import RaggedLayout
from conch.server.backends.side_by_side import SideBySide
from conch.server.backends.stacking import join, split

# After this many batches in a row without company, the next one runs alone again.
_SOLITARY_BATCHES: Final = 4


class Lanes:
    """Whether a batch runs alone with all threads of an instance, or beside others with fewer threads each.

    Threads that share one run wait for each other at every operator; concurrent runs do not, but each takes longer. So
    a batch runs alone while requests come one after the other, and in a lane once several are there at a time, or while
    other work takes the cores. Life of each batch: `begin` → `end`.
    """

    def __init__(self, lanes: int = 1, break_even: int = 2, patience: float = 1.0) -> None:
        """Choose from `lanes` concurrent runs, which pay from `break_even` concurrent requests on.

        They also pay where the threads of a run wait for the cores for more than the share `patience` of its time.
        """
        self.number: Final = lanes
        self._break_even = break_even
        self._patience = patience
        self._running = 0
        self._alone = False  # whether the running batch has all threads
        self._crowded = 0  # how many further batches run in lanes
        self._ended = 0

    def takes(self, held: int) -> bool:
        """Return whether another batch can begin besides `held` running ones."""
        return held == 0 or (held < self.number and not self._alone)

    def begin(self, size: int, waiting: int, queued: int) -> bool:
        """Return whether a batch runs alone.

        It has `size` requests, of which the first was queued at `queued` (monotonic ns; 0 if it was not). `waiting`
        requests are left in the queue.
        """
        waited = 0 < queued < self._ended
        if self._running + 1 + waiting + waited >= self._break_even:
            self._crowded = _SOLITARY_BATCHES
        elif self._crowded:
            self._crowded -= 1
        # Several requests that come while no other batch runs are divided between the cores instead.
        self._alone = not self._running and (size > 1 or not self._crowded or self.number == 1)
        self._running += 1
        return self._alone

    def end(self, now: int, waited: float) -> None:
        """Note the end of a batch at `now` (monotonic ns), whose thread waited for a core for the share `waited`."""
        self._running -= 1
        self._alone = False
        self._ended = now
        if waited > self._patience:
            self._crowded = _SOLITARY_BATCHES


_log = getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]
_Answers = list[InferResponse | ConchError]
_Compute = Callable[..., Mapping[str, npt.NDArray[Any]]]


class ThreadedInstance(Instance):
    """One executor in one thread or several. A subclass implements `load`, `compute` and, if necessary, `unload`.

    A class that sets `fills_rooms` has a third parameter of `compute`: arrays by names of outputs that it may fill.

    If a batch fails, each of its requests is retried alone, so that one request cannot fail the others.
    """

    fills_rooms = False

    def __init__(self, plan: InstancePlan) -> None:
        self.plan = plan
        self._ragged = RaggedLayout.of(plan.source.config)
        self.concurrent_runs = 1  # how many threads may call `compute_part` concurrently; set by `load`
        self.lanes = Lanes()  # set by `load`; used on the event loop
        # For each thread its batch, and whether it runs alone.
        self._batches: list[SimpleQueue[tuple[Batch, bool] | None]] = [SimpleQueue()]
        # The first thread computes what runs alone: where threads take turns, one often wakes on the core on which a
        # thread of the runtime still spins, and both wait.
        self._idle = [0]  # threads without a batch, a heap; used on the event loop
        self._thread: Thread | None = None
        self._ended = asyncio.Event()
        self._ready = False
        self._working: dict[Batch, int] = {}  # what is computed, and since when

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan.name} {'ready' if self._ready else 'not ready'}>"

    @abstractmethod
    def load(self) -> None:
        """Load the model; called in the first thread. Any exception fails `start`; a ConchError is raised unchanged."""

    @abstractmethod
    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run the model on arrays and return at least the named outputs; called in the thread.

        Any exception fails the request; a ConchError is its error unchanged. Array conventions: `stacking.join`.
        """

    def prepare_parts(self) -> None:
        """Make what `compute_part` needs; called once in another thread, while the instance computes whole batches."""

    def compute_part(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run the model on a part of a batch or in a lane as `compute` does, in one of several threads."""
        return self.compute(inputs, outputs)

    def unload(self) -> None:
        """Release the model; called in the thread."""

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def working_since(self) -> int:
        return min(list(self._working.values()), default=0)

    def takes(self, held: int) -> bool:
        return self.lanes.takes(held)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[None] = loop.create_future()
        self._thread = Thread(target=self._run_thread, args=(loop, loaded), name=self.plan.name, daemon=True)
        self._thread.start()
        try:
            await loaded
        except ConchError:
            raise
        except Exception as error:
            raise ModelLoadError(f"model instance '{self.plan.name}' failed to load: {error}") from error

    def execute(self, batch: Batch) -> None:
        executions = batch.executions
        alone = self.lanes.begin(len(executions), batch.waiting, executions[0].request.timeline.queued)
        self._batches[heappop(self._idle)].put((batch, alone))

    async def stop(self) -> None:
        self._ready = False
        if self._thread is None:
            return
        self._batches[0].put(None)
        await self._ended.wait()
        self._thread.join()

    def abandon(self) -> None:
        if self._thread is not None:
            self._batches[0].put(None)
            # The server waits for its executor: the interpreter must not end while native code loads or computes.
            asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run_thread(self, loop: asyncio.AbstractEventLoop, loaded: "asyncio.Future[None]") -> None:
        try:
            pin_thread(self.plan.source.cores)
            pool = PoolThreads(self.plan.name)
            self.load()
        except BaseException as error:
            loop.call_soon_threadsafe(self._load_ended, loaded, error)
        else:
            threads = SideBySide(self.concurrent_runs, self.plan.name, self.prepare_parts)
            others = range(1, self.lanes.number)
            self._batches += [SimpleQueue() for _ in others]
            self._idle += others
            lanes = [
                Thread(target=self._work, args=(loop, threads, number), name=self.plan.name, daemon=True)
                for number in others
            ]
            for lane in lanes:
                lane.start()
            loop.call_soon_threadsafe(self._load_ended, loaded, None)
            self._work(loop, threads, 0, pool)
            for number, lane in zip(others, lanes, strict=True):
                self._batches[number].put(None)
                lane.join()
            threads.close()
            self.unload()
        finally:
            loop.call_soon_threadsafe(self._ended.set)

    def _work(
        self, loop: asyncio.AbstractEventLoop, threads: SideBySide, number: int, pool: PoolThreads | None = None
    ) -> None:
        """Run the batches of thread `number` until the end of its queue. `pool` has been made before `load`."""
        meter = CpuMeter()
        pool = pool or PoolThreads(self.plan.name)
        while (item := self._batches[number].get()) is not None:
            batch, alone = item
            began = self._working[batch] = monotonic_ns()
            pool.begin(began)
            answers = self._answers(batch, threads if alone else None)
            del self._working[batch]
            now = monotonic_ns()
            cpu, wait, switches = meter.used(now - began)
            pool_wait = min(pool.waited(now), now - began) if alone else 0
            batch.used_cpu(cpu, wait + pool_wait, switches, now)
            loop.call_soon_threadsafe(self._deliver, batch, answers, wait / max(now - began, 1), number)
        meter.close()
        pool.close()

    def _load_ended(self, loaded: "asyncio.Future[None]", error: BaseException | None) -> None:
        if loaded.done():  # `start` was cancelled
            return
        if error is not None:
            loaded.set_exception(error)
        else:
            self._ready = True
            loaded.set_result(None)

    def _answers(self, batch: Batch, threads: SideBySide | None) -> _Answers:
        """Run a batch with all `threads`, or in a lane, and return one answer for each execution."""
        requests = [execution.request for execution in batch.executions]
        part = partial(self._run, batch, self.compute_part)
        try:
            if threads is None:
                return [*part(requests)]
            return [*threads.run(partial(self._run, batch, self.compute), part, requests)]
        except Exception as error:
            if len(requests) == 1:
                return [self._as_error(error)]
        return [self._run_alone(request, batch) for request in requests]

    def _run_alone(self, request: InferRequest, batch: Batch) -> InferResponse | ConchError:
        try:
            return self._run(batch, self.compute, [request])[0]
        except Exception as error:
            return self._as_error(error)

    def _run(self, batch: Batch, compute: _Compute, requests: Sequence[InferRequest]) -> list[InferResponse]:
        """Run requests of a batch together, and stamp the batch; of concurrent parts, the last one counts."""
        source = self.plan.source
        config = source.config
        inputs = join(requests) if self._ragged is None else self._ragged.join(requests)
        batch.input_done = monotonic_ns()
        requested = _requested_outputs(requests, [output.name for output in config.outputs])
        rooms = requests[0].rooms if self.fills_rooms and len(requests) == 1 else None
        if rooms is None:
            arrays = compute(inputs, requested)
        else:
            arrays = compute(inputs, requested, _filled(rooms, config, requested, requests[0].batch_size))
        batch.infer_done = monotonic_ns()
        sizes = [request.batch_size for request in requests] if config.max_batch_size > 0 else None
        responses = [InferResponse(config.name, source.version, [], id=request.id) for request in requests]
        for spec in config.outputs:
            if spec.name not in requested:
                continue
            array = arrays[spec.name]
            if array.ndim == 0 and sizes is None:
                array = array.reshape(spec.dims)  # a scalar: its configured dimensions are all 1
            if self._ragged is None:
                parts = split(spec.name, spec.datatype, array, sizes)
            else:
                parts = self._ragged.split(spec.name, spec.datatype, array, requests)
            for request, response, part in zip(requests, responses, parts, strict=True):
                if not request.outputs or spec.name in request.outputs:
                    response.outputs.append(part)
        return responses

    def _deliver(self, batch: Batch, answers: _Answers, waited: float, number: int) -> None:
        heappush(self._idle, number)
        self.lanes.end(monotonic_ns(), waited)
        for execution, answer in zip(batch.executions, answers, strict=True):
            execution.finish(answer)
        batch.release()

    def _as_error(self, error: Exception) -> ConchError:
        if isinstance(error, ConchError):
            return error
        message = f"model instance '{self.plan.name}' failed to execute: {type(error).__name__}: {error}"
        _log.error("%s", message, exc_info=error)
        return BackendError(message)


def _filled(rooms: Mapping[str, Room], config: ModelConfig, requested: Sequence[str], batch_size: int) -> Arrays:
    """Return arrays of the readers' memory for the outputs of one request, as far as there is room."""
    arrays = {}
    batch = (batch_size,) if config.max_batch_size > 0 else ()
    for spec in config.outputs:
        if spec.name in rooms and spec.name in requested:
            shape = (*batch, *spec.dims)
            block = rooms[spec.name](byte_size(spec.datatype, shape))
            if block is not None:
                arrays[spec.name] = block.view(NUMPY_DTYPES[spec.datatype]).reshape(shape)
    return arrays


def _requested_outputs(requests: Sequence[InferRequest], declared: Sequence[str]) -> Sequence[str]:
    """Return the declared outputs that any request asks for; a request without outputs asks for all."""
    if all(request.outputs for request in requests):
        names = {name for request in requests for name in request.outputs}
        return [name for name in declared if name in names]
    return declared
