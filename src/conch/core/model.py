"""One served version of one model: its queue, its instances, and the moment at which they meet.

Everything here runs on the event loop, so there are no locks. `submit` and a released instance both end in `_dispatch`:
while an instance is free and a request waits, the pure `batching.decide` says what to run.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic_ns

from conch.backends.base import Instance
from conch.backends.batch import Batch
from conch.core.batching import RUN_ONE, BatchRules, Run, Wait, decide
from conch.core.ordering import ResponseOrder
from conch.core.pending import Pending, State
from conch.core.queue import PolicyQueue
from conch.core.reshape import Reshaper
from conch.core.served import Served
from conch.core.timer import Timer
from conch.core.validation import RequestValidator
from conch.core.warmup import warm_up
from conch.errors import ConchError, QueueFull, QueueTimeout, Unavailable
from conch.model_config import ModelConfig
from conch.request import InferRequest, InferResponse, Respond

# How long requests wait for an instance when none is ready: long enough for a quick restart, short enough to be told.
_STRANDED_S = 5.0
# What an instance usually takes to come back.
_RESTART_S = 1.0


class ServedModel(Served):
    """A model version that instances execute."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
        *,
        max_queue_size: int = 0,
    ) -> None:
        """Assign. `max_queue_size` bounds the queue where the configuration does not; 0 does not either."""
        super().__init__(config, version, labels)
        self.instances = instances
        self._loop = loop
        self._validator = RequestValidator(config)
        self._reshaper = Reshaper(config)
        self._rules = BatchRules.of(config)
        # So many waiting are a full batch for every instance.
        self._crowd = len(instances) * (1 if self._rules.single else self._rules.max_batch_size)
        self._grouped = _needs_grouping(config, self._rules)
        self._queue = PolicyQueue(config.dynamic_batching, max_queue_size)
        dynamic = config.dynamic_batching
        self._order = ResponseOrder() if dynamic and dynamic.preserve_ordering else None
        self._timer = Timer(loop, self._dispatch)
        self._held = dict.fromkeys(instances, 0)  # batches that each instance has not released
        self._idle: list[Instance] = []  # ready, and holding none
        self._dispatching = False  # whether `_dispatch` is due in this turn of the loop
        self._stranded: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        held = sum(self._held.values())
        return f"<ServedModel {self.config.name}/{self.version} {len(self._queue)} waiting, {held} held>"

    @property
    def ready(self) -> bool:
        """Whether some instance can execute. A model all of whose processes are dead is not ready."""
        return any(instance.ready for instance in self.instances)

    async def check_ready(self) -> bool:
        """Ask the model itself as well, where it has an opinion (`is_ready` of a Python model)."""
        ready = [instance for instance in self.instances if instance.ready]
        return bool(ready) and all(await asyncio.gather(*(instance.check_ready() for instance in ready)))

    async def start(self) -> None:
        """Start all instances side by side. Raises ModelLoadError, OSError; then nothing is left running."""
        started = monotonic_ns()
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

    def refusal(self, now: int) -> QueueFull | None:
        """Return the refusal that any request would get now; None while there is room."""
        return self._queue.refusal(now)

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request, or raise: InvalidRequest, QueueFull, Unavailable. Admitted, it is answered exactly once."""
        self._validator.check(request)
        if not self._idle and self._stranded is None and not self.ready:
            raise Unavailable(self._why_not_ready(), retry_after_s=_RESTART_S)
        if self._reshaper.needed:
            self._reshaper.request(request)
        pending = Pending(request, respond, self)
        if self._grouped:
            pending.group_key = _group_key(request)
        now = pending.queued = request.timeline.queued = monotonic_ns()
        try:
            self._queue.push(pending, now)
        except QueueFull as error:
            self.statistics.count_failure(now - request.timeline.received, error.reason)
            raise
        if self._order is not None:
            pending.respond = self._order.enter(respond)
        self.enter()
        self.statistics.pending += 1
        if self._idle:
            self._dispatch()
        else:
            self._dispatch_soon()
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, was: State) -> None:
        """Write a finished request into the books. Called once per admitted request, by the request itself."""
        self.leave()
        if was is State.QUEUED:
            self.statistics.pending -= 1
            self._queue.remove(pending)
        timeline = pending.request.timeline
        if isinstance(answer, ConchError):
            self.statistics.count_failure(timeline.done - timeline.received, answer.reason)
        else:
            if answer is not None and self._reshaper.needed:
                self._reshaper.response(answer)
            self._count_success(pending)
        # Batch and requests know each other; without the cycle, large tensors go when the last of them is answered.
        pending.batch = None

    async def stop(self) -> None:
        """Stop all instances; requests still unanswered are answered with UNAVAILABLE."""
        self._fail_waiting(Unavailable(f"model '{self.config.name}' is being unloaded"))
        self._timer.close()
        if self._stranded is not None:
            self._stranded.cancel()
        await asyncio.gather(*(instance.stop() for instance in self.instances), return_exceptions=True)
        self._idle.clear()

    async def kill(self) -> None:
        """End all instances at once."""
        await asyncio.gather(*(instance.kill() for instance in self.instances))

    def _dispatch_soon(self) -> None:
        """Dispatch at the end of this turn of the loop, together with what else comes in it.

        Only an idle instance is worth an execution of its own for every request.
        """
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Run what can run now, and see to being woken for the rest."""
        self._dispatching = False
        wake = 0
        expiry = self._queue.next_expiry()
        if expiry and expiry <= monotonic_ns():
            self._expire()
        while self._queue:
            instance = self._free_instance()
            if instance is None:
                break
            decision = self._decide()
            if not isinstance(decision, Run):
                wake = decision.until
                break
            self._run(instance, self._queue.pop(decision.number))
        if wake or expiry or self._timer.armed:
            self._arm(wake)

    def _free_instance(self) -> Instance | None:
        if self._idle:
            return self._idle[-1]
        # A batch is better formed late than held early, but with none held ahead server and model would take turns.
        for instance, held in self._held.items():
            # What an instance holds is out of reach of the queue's time-outs.
            if len(self._queue) >= self._crowd and not self._queue.next_expiry():
                ahead = instance.ahead_when_crowded
            else:
                ahead = instance.ahead if self._rules.single else min(instance.ahead, 1)
            if 0 < held <= ahead and instance.ready:
                return instance
        return None

    def _decide(self) -> Run | Wait:
        if self._rules.single:
            return RUN_ONE
        return decide(self._queue, self._rules, monotonic_ns())

    def _run(self, instance: Instance, requests: list[Pending]) -> None:
        if self._held[instance] == 0:
            self._idle.remove(instance)
        self._held[instance] += 1
        self.statistics.pending -= len(requests)
        batch = Batch(requests, partial(self._released, instance), partial(self._given_back, instance))
        for pending in requests:
            pending.state = State.EXECUTING
            pending.batch = batch
        instance.execute(batch)

    def _released(self, instance: Instance, batch: Batch) -> None:
        if batch.infer_done:
            size = sum(execution.request.batch_size for execution in batch.executions)
            self.statistics.count_execution(size, batch.started, batch.input_done, batch.infer_done, monotonic_ns())
        self._has_one_less(instance)
        if self._idle:
            if self._queue:
                self._dispatch()
        else:
            self._dispatch_soon()

    def _given_back(self, instance: Instance, batch: Batch) -> None:
        """Let the requests of a batch that was not begun wait again, at the head of the queue."""
        self._has_one_less(instance)
        for execution in reversed(batch.executions):
            assert isinstance(execution, Pending)
            if execution.state is State.EXECUTING:
                execution.state = State.QUEUED
                execution.batch = None
                self.statistics.pending += 1
                self._queue.put_back(execution)
        self._dispatch()

    def _has_one_less(self, instance: Instance) -> None:
        self._held[instance] -= 1
        if self._held[instance] == 0 and instance.ready:
            self._idle.append(instance)

    def _ready_changed(self) -> None:
        """An instance died or came back."""
        self._idle = [instance for instance, held in self._held.items() if instance.ready and not held]
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
        for pending in list(self._queue):
            pending.finish(error)

    def _expire(self) -> None:
        for pending in self._queue.expire(monotonic_ns()):
            pending.finish(QueueTimeout("Request timeout expired"))

    def _arm(self, wake: int) -> None:
        """Set the timer to the earlier of the batch delay and the next queue time-out."""
        expiry = self._queue.next_expiry()
        at = min(wake, expiry) if wake and expiry else wake or expiry
        if at:
            self._timer.set(at)
        else:
            self._timer.cancel()

    def _count_success(self, pending: Pending) -> None:
        request, batch = pending.request, pending.batch
        timeline = request.timeline
        done = timeline.done
        if batch is not None:
            timeline.started = batch.started
            timeline.input_done = batch.input_done or batch.started
            timeline.infer_done = batch.infer_done or done
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
    await instance.start()
    if instance.plan.source.config.warmups:
        await warm_up(instance)


def _needs_grouping(config: ModelConfig, rules: BatchRules) -> bool:
    """Whether two requests of the model may differ in shape or in the inputs present, so that they cannot be joined."""
    return not rules.single and any(spec.optional or -1 in spec.dims for spec in config.inputs)


def _group_key(request: InferRequest) -> object:
    return tuple(sorted((tensor.name, tensor.shape[1:]) for tensor in request.inputs))
