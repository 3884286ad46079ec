"""Instances that compute in a thread of their own, for frameworks that release the interpreter while they work.

The event loop puts a batch into the thread's mailbox; all its answers come home in one call on the loop. Joining and
splitting happen in the thread too.

A framework that can be called by several threads at once says so by `concurrent_runs`; then a batch may run in parts.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from logging import getLogger
from queue import SimpleQueue
from threading import Thread
from time import monotonic_ns
from typing import Any

import numpy.typing as npt

from conch.backends.base import Instance, InstancePlan
from conch.backends.batch import Batch
from conch.backends.ragged import RaggedLayout
from conch.backends.side_by_side import SideBySide
from conch.backends.stacking import join, split
from conch.errors import BackendError, ConchError, ModelLoadError
from conch.request import InferRequest, InferResponse

_log = getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]
_Answers = list[InferResponse | ConchError]


class ThreadedInstance(Instance):
    """One executor in one thread. A framework implements `load`, `compute` and, if need be, `unload`.

    If a batch fails, each of its requests is run once more by itself: only those fail that fail alone.
    """

    def __init__(self, plan: InstancePlan) -> None:
        self.plan = plan
        self._ragged = RaggedLayout.of(plan.source.config)
        self.concurrent_runs = 1  # how many may call `compute` at once; for `load` to say
        self._mailbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._ended = asyncio.Event()
        self._ready = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan.name} {'ready' if self._ready else 'not ready'}>"

    @abstractmethod
    def load(self) -> None:
        """Bring the model up, in the thread. Whatever is raised fails `start`; a ModelLoadError does so as it is."""

    @abstractmethod
    def compute(self, inputs: Arrays, outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Run the model on arrays and return at least the outputs named, in the thread.

        Whatever is raised fails the request; a ConchError does so as it is. Array conventions: `stacking.join`.
        """

    def unload(self) -> None:
        """Release what `load` made, in the thread."""

    @property
    def ready(self) -> bool:
        """Whether the model is loaded and `stop` has not been called."""
        return self._ready

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[None] = loop.create_future()
        self._thread = Thread(target=self._live, args=(loop, loaded), name=self.plan.name, daemon=True)
        self._thread.start()
        try:
            await loaded
        except ConchError:
            raise
        except Exception as error:
            raise ModelLoadError(f"model instance '{self.plan.name}' failed to load: {error}") from error

    def execute(self, batch: Batch) -> None:
        self._mailbox.put(batch)

    async def stop(self) -> None:
        """Let the batch that is running finish, and end the thread."""
        self._ready = False
        if self._thread is None:
            return
        self._mailbox.put(None)
        await self._ended.wait()
        self._thread.join()

    def _live(self, loop: asyncio.AbstractEventLoop, loaded: "asyncio.Future[None]") -> None:
        """Be the thread."""
        try:
            self.load()
        except BaseException as error:
            loop.call_soon_threadsafe(self._load_ended, loaded, error)
        else:
            loop.call_soon_threadsafe(self._load_ended, loaded, None)
            threads = SideBySide(self.concurrent_runs, self.plan.name)
            while (batch := self._mailbox.get()) is not None:
                loop.call_soon_threadsafe(_deliver, batch, self._answers(batch, threads))
            threads.close()
            self.unload()
        finally:
            loop.call_soon_threadsafe(self._ended.set)

    def _load_ended(self, loaded: "asyncio.Future[None]", error: BaseException | None) -> None:
        # Whoever waited for the start may have been cancelled.
        if loaded.done():
            return
        if error is not None:
            loaded.set_exception(error)
        else:
            self._ready = True
            loaded.set_result(None)

    def _answers(self, batch: Batch, threads: SideBySide) -> _Answers:
        """Run a batch in the thread: one answer for each execution."""
        requests = [execution.request for execution in batch.executions]
        try:
            return [*threads.run(partial(self._run, batch), requests)]
        except Exception as error:
            if len(requests) == 1:
                return [self._as_error(error)]
        return [self._alone(request, batch) for request in requests]

    def _alone(self, request: InferRequest, batch: Batch) -> InferResponse | ConchError:
        try:
            return self._run(batch, [request])[0]
        except Exception as error:
            return self._as_error(error)

    def _run(self, batch: Batch, requests: Sequence[InferRequest]) -> list[InferResponse]:
        """Run requests of a batch together, and stamp the batch; where parts of it run at once, the last one counts."""
        source = self.plan.source
        config = source.config
        inputs = join(requests) if self._ragged is None else self._ragged.join(requests)
        batch.input_done = monotonic_ns()
        wanted = _wanted(requests, [output.name for output in config.outputs])
        arrays = self.compute(inputs, wanted)
        batch.infer_done = monotonic_ns()
        sizes = [request.batch_size for request in requests] if config.max_batch_size > 0 else None
        responses = [InferResponse(config.name, source.version, [], id=request.id) for request in requests]
        for spec in config.outputs:
            if spec.name not in wanted:
                continue
            array = arrays[spec.name]
            if array.ndim == 0 and sizes is None:
                array = array.reshape(spec.dims)  # a scalar: all that its configuration can declare are ones
            if self._ragged is None:
                parts = split(spec.name, spec.datatype, array, sizes)
            else:
                parts = self._ragged.split(spec.name, spec.datatype, array, requests)
            for request, response, part in zip(requests, responses, parts, strict=True):
                if not request.outputs or spec.name in request.outputs:
                    response.outputs.append(part)
        return responses

    def _as_error(self, error: Exception) -> ConchError:
        if isinstance(error, ConchError):
            return error
        message = f"model instance '{self.plan.name}' failed to execute: {type(error).__name__}: {error}"
        _log.error("%s", message, exc_info=error)
        return BackendError(message)


def _wanted(requests: Sequence[InferRequest], declared: Sequence[str]) -> Sequence[str]:
    """The declared outputs that some request asks for; asking for none in particular is asking for all."""
    if all(request.outputs for request in requests):
        asked = {name for request in requests for name in request.outputs}
        return [name for name in declared if name in asked]
    return declared


def _deliver(batch: Batch, answers: _Answers) -> None:
    for execution, answer in zip(batch.executions, answers, strict=True):
        execution.finish(answer)
    batch.release()
