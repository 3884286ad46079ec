"""Watches served models for degradations that develop while they run, from two readings of their counters."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic_ns

from conch.base.process.process_stat import ProcessStat
from conch.domain.degradations import Degradation
from conch.server.backends.base import Instance, Worker
from conch.server.core.served_model import ServedModel
from conch.server.observability.degradations import Report

MIN_REQUESTS = 1000  # before a model's batches or cache are judged
_MIN_WAITING = 2.0  # mean number of requests in the queue, by Little's law
_MIN_SHARE_OF_DELAY = 0.5
# Samples in succession that must find requests alone: a machine that stands still makes them wait in one.
_MIN_ALONE_SAMPLES = 2
# How long a worker with requests may show no progress before it is named, and how many usual executions.
_MIN_STILL_S = 60.0
_MIN_EXECUTIONS = 10
# Between looks at the processes that have requests and have not progressed for that long.
_STOPPED_INTERVAL_S = 0.2

Note = Callable[[str, str, str], None]  # (reason, detail, model)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a model version at one moment. Times are nanoseconds."""

    requests: int  # executed successfully, without hits of the cache
    inferences: int
    executions: int
    queue_ns: int
    compute_ns: int
    hits: int
    misses: int
    restarts: int
    preemptions: int
    truncated: int  # prompts
    missing: int  # instances that are not ready
    taken_ns: int  # monotonic

    def since(self, before: "Counters") -> "Counters":
        """Return the differences to an earlier reading; `missing` is the lower of both."""
        names = [name for name in self.__slots__ if name != "missing"]
        differences = {name: getattr(self, name) - getattr(before, name) for name in names}
        return Counters(**differences, missing=min(self.missing, before.missing))


def counters(model: ServedModel) -> Counters:
    """Read the counters of a model version."""
    statistics, state = model.statistics, model.state()
    return Counters(
        statistics.success.count - statistics.cache_hit.count,
        statistics.inference_count,
        statistics.execution_count,
        statistics.queue.ns,
        statistics.compute_input.ns + statistics.compute_infer.ns + statistics.compute_output.ns,
        statistics.cache_hit.count,
        statistics.cache_miss.count,
        state.restarts,
        0 if statistics.generation is None else int(statistics.generation.load().preemptions),
        0 if statistics.generation is None else statistics.generation.truncated_prompts,
        state.instances - state.ready_instances,
        monotonic_ns(),
    )


class _Watched:
    """What is known about one model version."""

    def __init__(self, model: ServedModel) -> None:
        self.last = counters(model)
        self.unbatched = self.last  # since when no execution had two requests
        self.alone_samples = 0  # in succession, in which requests waited and were executed alone
        self.degradations: list[Degradation] = []
        self.stalled: tuple[Worker, int] | None = None  # that the event log has, and since when


class StoppedProcesses:
    """Records in the event log which processes with requests are stopped, by a signal or a debugger, and continued."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]]) -> None:
        self._models = models
        self._stopped: set[int] = set()  # ids of processes

    async def run(self) -> None:
        """Look at processes that have not progressed for a while, until cancelled."""
        while True:
            await asyncio.sleep(_STOPPED_INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Look at them once."""
        now = monotonic_ns()
        for model in self._models():
            for worker in model.workers:
                pid, since = worker.pid, worker.working_since
                if not pid or not (pid in self._stopped or (since and now - since > _STOPPED_INTERVAL_S * 1e9)):
                    continue
                stat = ProcessStat.read(pid)
                stopped = stat is not None and stat.state in ("T", "t")
                if stopped != (pid in self._stopped):
                    self._stopped ^= {pid}
                    model.log_worker("stopped" if stopped else "continued", worker, now)


class ModelWatch:
    """Watches the models that `models` yields.

    `note` reports an event, which is shown for some time, `report` what holds until a later sample no longer finds it.
    The process of a worker that shows no progress for `hang_timeout_s` is replaced; 0 for never.
    """

    def __init__(
        self, models: Callable[[], Iterable[ServedModel]], note: Note, report: Report, hang_timeout_s: float = 0
    ) -> None:
        self._models = models
        self._hang_timeout_s = hang_timeout_s
        self._note = note
        self._report = report
        self._watched: dict[ServedModel, _Watched] = {}

    def degradations(self) -> Iterator[Degradation]:
        """Yield those that loads have reported and those that the last sample has found, of the served models."""
        for model in self._models():
            yield from model.degraded
            watched = self._watched.get(model)
            yield from () if watched is None else watched.degradations

    def sample(self) -> None:
        """Read the counters of each model, and log what is new."""
        known = self._watched
        self._watched = {model: known.get(model) or _Watched(model) for model in self._models()}
        for model, watched in self._watched.items():
            if model not in known:
                continue
            now = counters(model)
            self._note_events(model, now.since(watched.last))
            if now.since(watched.unbatched).executions < now.since(watched.unbatched).requests:
                watched.unbatched = now
            reasons = {degradation.reason for degradation in watched.degradations}
            conditions = [*_conditions(model, now, watched), *self._hung_workers(model, watched, now)]
            watched.degradations = [Degradation(reason, detail, str(model.id)) for reason, detail in conditions]
            watched.last = now
            for degradation in watched.degradations:
                if degradation.reason not in reasons:
                    self._report(degradation.reason, degradation.detail)

    def _hung_workers(self, model: ServedModel, watched: _Watched, now: Counters) -> Iterator[tuple[str, str]]:
        """Yield the workers that have requests and show no progress, and replace their processes after the time-out."""
        usual_s = now.compute_ns / now.executions / 1e9 if now.executions else 0.0
        limit_s = self._hang_timeout_s or max(_MIN_STILL_S, _MIN_EXECUTIONS * usual_s)
        for worker in model.workers:
            since = worker.working_since
            waited_s = (now.taken_ns - since) / 1e9 if since else 0.0
            if waited_s < limit_s:
                continue
            if (worker, since) != watched.stalled:
                watched.stalled = worker, since
                model.log_worker("stalled", worker, since)
            name = worker.plan.name if isinstance(worker, Instance) else model.config.name
            kind = "instance" if isinstance(worker, Instance) else "engine"
            text = f"it made no progress for {waited_s:.0f} s"
            yield "no_progress", f"{kind} '{name}' of model '{model.id}' has requests, but {text}"
            why = f"{text} (--hang-timeout-secs={self._hang_timeout_s:g})"
            if self._hang_timeout_s and worker.replace(why):
                model.log_worker("replaced", worker, monotonic_ns())

    def _note_events(self, model: ServedModel, change: Counters) -> None:
        name = str(model.id)
        if change.restarts > 0:
            text = f"a process of model '{name}' exited and was started again"
            self._note("process_restarted", text, name)
        if change.truncated > 0:
            self._note("prompt_truncated", f"{change.truncated} prompts for model '{name}' were truncated", name)
        if change.preemptions > 0:
            self._note("preempted", f"the KV cache of model '{name}' was full: sequences were computed again", name)


def _conditions(model: ServedModel, now: Counters, watched: _Watched) -> Iterator[tuple[str, str]]:
    name = str(model.id)
    if missing := now.since(watched.last).missing:
        yield "instances_missing", f"instances of model '{name}' that are not ready: {missing}"
    if now.misses >= MIN_REQUESTS and not now.hits:
        yield "cache_never_hit", f"the response cache had no hit in {now.misses} requests of model '{name}'"
    if model.cache is not None and model.cache.noted_surplus:
        yield "cache_too_small", f"a response of model '{name}' is larger than the whole response cache"
    alone = batchable_alone(model, now.since(watched.unbatched), now.since(watched.last))
    watched.alone_samples = watched.alone_samples + 1 if alone else 0
    if watched.alone_samples >= _MIN_ALONE_SAMPLES:
        yield "batches_never_form", alone


def batchable_alone(model: ServedModel, change: Counters, latest: Counters) -> str:
    """Return a sentence if requests that could share executions had none in common, otherwise "".

    They could if two of them were in the queue at a time on average in the `latest` sample. Requests that are too rare
    to share executions count if the batch delay is longer than an execution, so that it more than doubles their time.
    """
    config = model.config
    batching = config.dynamic_batching
    if batching is None or config.max_batch_size < 2 or change.requests < MIN_REQUESTS:
        return ""
    if change.executions < change.requests or 2 * change.inferences > config.max_batch_size * change.requests:
        return ""
    queue_ns, compute_ns = change.queue_ns / change.requests, change.compute_ns / change.requests
    delay_ns = batching.max_queue_delay_us * 1000
    crowded = latest.queue_ns > _MIN_WAITING * latest.taken_ns
    if not crowded and not (delay_ns > compute_ns and queue_ns > _MIN_SHARE_OF_DELAY * delay_ns):
        return ""
    return (
        f"the last {change.requests} requests of model '{config.name}' waited {queue_ns / 1000:.0f} us on average and "
        "were executed alone, although batching is on"
    )
