"""A served model version that instances execute: bringing them up, giving them batches, taking the answers in.

What waits and what runs next is the business of a scheduler, a subclass: `model.BatchingModel` and
`sequence_model.SequenceModel`. Everything here runs on the event loop, so there are no locks.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from time import monotonic_ns

from conch.backends.base import Instance
from conch.backends.batch import Batch, Execution
from conch.core.pending import Pending, State
from conch.core.reshape import Reshaper
from conch.core.scheduling.rate_limiter import ModelLimiter
from conch.core.scheduling.timer import Timer
from conch.core.scheduling.warmup import warm_up
from conch.core.served_model import ServedModel
from conch.core.validation import RequestValidator
from conch.errors import ConchError, Unavailable
from conch.model_config import ModelConfig
from conch.request import InferRequest, InferResponse

_log = getLogger(__name__)

# How long requests wait for an instance when none is ready: long enough for a quick restart, short enough to be told.
_STRANDED_S = 5.0
# What an instance usually takes to come back.
_RESTART_S = 1.0


class ScheduledModel(ServedModel):
    """Instances, the batches in their hands, and the books. A subclass decides what they are given."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, version, labels)
        self.instances = instances
        self.limiter: ModelLimiter | None = None  # set by the builder where the server has one
        self._loop = loop
        self._validator = RequestValidator(config)
        self._reshaper = Reshaper(config)
        self._takes_sources = all(instance.takes_sources for instance in instances)
        self._timer = Timer(loop, self._dispatch)
        # Batches that each instance has not released: the one that it executes, then those sent ahead.
        self._held: dict[Instance, deque[Batch]] = {instance: deque() for instance in instances}
        self._idle: list[Instance] = []  # ready, and holding none
        self._dispatching = False  # whether `_dispatch` is due in this turn of the loop
        self._stranded: asyncio.TimerHandle | None = None
        self._leaving: dict[Instance, asyncio.Event] = {}  # instances that are given nothing more, and whether idle
        self._departures: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        held = sum(map(len, self._held.values()))
        waiting = self.statistics.pending
        return f"<{type(self).__name__} {self.config.name}/{self.version} {waiting} waiting, {held} held>"

    @property
    def takes_sources(self) -> bool:
        """Whether its instances fetch inputs themselves, and no key of the cache is made of them before."""
        return self._takes_sources and self.cache is None

    # ── what a scheduler implements ──

    @abstractmethod
    def _dispatch(self) -> None:
        """Run what can run now, and see to being woken for the rest."""

    @abstractmethod
    def _waiting(self) -> Iterable[Pending]:
        """Return the requests that no instance has."""

    @abstractmethod
    def _forget(self, pending: Pending) -> None:
        """Take out a request that has ended while it waited."""

    @abstractmethod
    def _put_back(self, pending: Pending) -> None:
        """Take a request back, before all others, that an instance had and did not begin."""

    @abstractmethod
    def _freed(self, batch: Batch) -> None:
        """Go on: an instance has released a batch."""

    # ── what is the same for all ──

    @property
    def ready(self) -> bool:
        """Whether some instance can execute. A model all of whose processes are dead is not ready."""
        return any(instance.ready for instance in self.instances)

    async def check_ready(self) -> bool:
        ready = [instance for instance in self.instances if instance.ready]
        return bool(ready) and all(await asyncio.gather(*(instance.check_ready() for instance in ready)))

    async def start(self) -> None:
        """Start all instances side by side. Raises ConchError, OSError; then nothing is left running."""
        started = monotonic_ns()
        if self.limiter is not None:
            self.limiter.open(self._dispatch)
        self._timer.start()
        for instance in self.instances:
            instance.on_ready_change = self._ready_changed
        results = await asyncio.gather(*map(_bring_up, self.instances), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]
        self._idle = [instance for instance in self.instances if instance.ready]
        self.statistics.load_duration_s = (monotonic_ns() - started) / 1e9

    @property
    def can_rearrange(self) -> bool:
        """Whether `rearrange` works: for those that share nothing but a queue."""
        return False

    async def rearrange(self, config: ModelConfig, instances: Sequence[Instance]) -> None:
        """Execute on these instances from now on, as `config` says, which is the same as before otherwise.

        New ones are started first; those that are not among them any more finish what they have and are stopped.
        Raises ConchError, OSError; then everything is as it was.
        """
        new = [instance for instance in instances if instance not in self._held]
        for instance in new:
            instance.on_ready_change = self._ready_changed
        results = await asyncio.gather(*map(_bring_up, new), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(instance.stop() for instance in new))
            raise failures[0]
        gone = [instance for instance in self.instances if instance not in instances]
        self.config, self.instances = config, instances
        self._held |= {instance: deque() for instance in new}
        for instance in gone:
            idle = self._leaving[instance] = asyncio.Event()
            if not self._held[instance]:
                idle.set()
            task = self._loop.create_task(self._depart(instance, idle))
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)
        self._ready_changed()

    async def _depart(self, instance: Instance, idle: asyncio.Event) -> None:
        await idle.wait()
        await instance.stop()
        del self._held[instance], self._leaving[instance]

    def _admissible(self, request: InferRequest) -> None:
        """Check a request, give it the backend's shapes and its data, or raise: InvalidRequest, Unavailable."""
        self._validator.check(request)
        if not self._idle and self._stranded is None and not self.ready:
            raise Unavailable(self._why_not_ready(), retry_after_s=_RESTART_S)
        if self._reshaper.needed:
            self._reshaper.request(request)
        if request.destinations is not None and (self.cache is not None or self.config.decoupled):
            # What is kept must not be a client's to change, nor one response written over another.
            request.destinations = None
        if not self._takes_sources:
            request.fetch_inputs()

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, was: State) -> None:
        """Write a finished request into the books. Called once per admitted request, by the request itself."""
        self.leave()
        if was is State.QUEUED:
            self.statistics.pending -= 1
            self._forget(pending)
        timeline = pending.request.timeline
        batch = pending.batch
        if batch is not None:
            if not batch.begun:
                self._begin(pending)
            timeline.started = batch.started
            timeline.input_done = batch.input_done or batch.started
            timeline.infer_done = batch.infer_done or timeline.done
            if pending.request.span is not None:
                pending.request.span.executed(len(batch.executions))
        if isinstance(answer, InferResponse) and self._reshaper.needed:
            self._reshaper.response(answer)
        error = answer if isinstance(answer, ConchError) else pending.failure
        if error is not None:
            self.statistics.count_failure(timeline.done - timeline.received, error.reason)
        else:
            self._count_success(pending)
        # Batch and requests know each other; without the cycle, large tensors go when the last of them is answered.
        pending.batch = None

    async def stop(self) -> None:
        """Stop all instances; requests still unanswered are answered with UNAVAILABLE."""
        self._fail_waiting(Unavailable(f"model '{self.config.name}' is being unloaded"))
        self._timer.close()
        if self._stranded is not None:
            self._stranded.cancel()
        await asyncio.gather(*(instance.stop() for instance in self._held), return_exceptions=True)
        for idle in self._leaving.values():
            idle.set()
        await asyncio.gather(*self._departures, return_exceptions=True)
        self._idle.clear()
        if self.limiter is not None:
            self.limiter.close()

    async def kill(self) -> None:
        await asyncio.gather(*(instance.kill() for instance in self._held))

    def _dispatch_soon(self) -> None:
        """Dispatch at the end of this turn of the loop, together with what else comes in it.

        Only an idle instance is worth an execution of its own for every request.
        """
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _run(
        self, instance: Instance, requests: Sequence[Pending], executions: Sequence[Execution] | None = None
    ) -> None:
        """Give an instance requests to run together, or `executions` that have them among them."""
        held = self._held[instance]
        batch = Batch(executions or requests, partial(self._released, instance), partial(self._given_back, instance))
        if held:
            batch.begun = False
            self._send_ahead(requests)
        else:
            self._idle.remove(instance)
            self.statistics.pending -= len(requests)
        held.append(batch)
        for pending in requests:
            pending.state = State.EXECUTING
            pending.batch = batch
        instance.execute(batch)

    def _released(self, instance: Instance, batch: Batch) -> None:
        if batch.infer_done:
            size = sum(execution.request.batch_size for execution in batch.executions)
            self.statistics.count_execution(size, batch.started, batch.input_done, batch.infer_done, monotonic_ns())
        self._has_one_less(instance, batch)
        self._freed(batch)

    def _given_back(self, instance: Instance, batch: Batch) -> None:
        """Let the requests of a batch that was not begun wait again."""
        self._has_one_less(instance, batch)
        for execution in reversed(batch.executions):
            assert isinstance(execution, Pending)
            if execution.state is State.EXECUTING:
                if not batch.begun:
                    self._begin(execution)
                execution.state = State.QUEUED
                execution.batch = None
                self.statistics.pending += 1
                self._put_back(execution)
        self._dispatch()

    def _send_ahead(self, requests: Sequence[Pending]) -> None:
        """Note requests that an instance is given while it executes others: they still wait."""

    def _begin(self, pending: Pending) -> None:  # noqa: ARG002
        """Note that a request which was sent ahead does not wait any longer."""
        self.statistics.pending -= 1

    def _has_one_less(self, instance: Instance, batch: Batch) -> None:
        held = self._held[instance]
        held.remove(batch)
        if held:
            following = held[0]
            if not following.begun:
                following.begun = True
                for execution in following.executions:
                    assert isinstance(execution, Pending)
                    if execution.state is State.EXECUTING:
                        self._begin(execution)
        else:
            if self._leaving and instance in self._leaving:
                self._leaving[instance].set()
            elif instance.ready:
                self._idle.append(instance)
            if self.limiter is not None:
                self.limiter.give_back(instance)

    def _ready_changed(self) -> None:
        """An instance died or came back."""
        self._idle = [instance for instance in self.instances if instance.ready and not self._held[instance]]
        if self.ready:
            if self._stranded is not None:
                self._stranded.cancel()
                self._stranded = None
            self._dispatch()
        elif self._stranded is None:
            self._stranded = self._loop.call_later(_STRANDED_S, self._give_up)

    def _give_up(self) -> None:
        self._stranded = None
        self._fail_waiting(Unavailable(self._why_not_ready(), retry_after_s=_RESTART_S))

    def _why_not_ready(self) -> str:
        return (
            f"model '{self.config.name}' version {self.version} is not ready: "
            "none of its instances is healthy; they are being restarted"
        )

    def _fail_waiting(self, error: ConchError) -> None:
        for pending in list(self._waiting()):
            pending.finish(error)

    def _count_success(self, pending: Pending) -> None:
        request = pending.request
        timeline = request.timeline
        done = timeline.done
        self.statistics.count_success(
            request.batch_size,
            total=done - timeline.received,
            queue=timeline.started - timeline.queued,
            compute_input=timeline.input_done - timeline.started,
            compute_infer=timeline.infer_done - timeline.input_done,
            compute_output=done - timeline.infer_done,
        )
        if self.statistics.first_response is not None:
            self.statistics.first_response.add((pending.first_response or done) - timeline.received)


async def _bring_up(instance: Instance) -> None:
    started = monotonic_ns()
    await instance.start()
    plan, seconds = instance.plan, (monotonic_ns() - started) / 1e9
    _log.debug("started instance '%s' (%s device %d) in %.3f s", plan.name, plan.kind.name, plan.device_id, seconds)
    if instance.plan.source.config.warmups:
        await warm_up(instance)
