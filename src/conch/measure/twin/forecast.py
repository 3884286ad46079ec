"""Forecasts: what a change of configuration or load would do to latency and throughput, with intervals.

Each of many simulated runs draws other executions and other arrivals from the log (bootstrap), as a run on the server
would have others. The interval of a forecast holds 90 % of what these runs would have measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from conch.base.errors import InvalidRequest
from conch.domain.arrivals import ArrivalProcess, Arrivals, arrival_times, steady
from conch.domain.events.log import EventLog
from conch.domain.model_config import DynamicBatching, ModelConfig, QueuePolicy
from conch.domain.scheduling.rate_limiter import RateLimiter
from conch.measure.twin.learning import (
    ENOUGH,
    Documents,
    Executions,
    Floats,
    Integers,
    Learnt,
    UsualWork,
    learn,
)
from conch.measure.twin.simulation import (
    BatchStation,
    EnsembleStation,
    InstanceStation,
    SentRequests,
    SequenceStation,
    Simulation,
    Work,
)

RUNS: Final = 80
_CHECK_RUNS: Final = 24
_MIN_REQUESTS: Final = 1000
_MAX_REQUESTS: Final = 20_000
_MIN_RUN: Final = 20  # requests
_LOW, _HIGH = 5, 95  # percent: the ends of the interval
_WARM_UP: Final = 0.05  # share of a run that is not counted
_KEEPS_UP: Final = 0.97  # share of what arrives
_DRIFT_BLOCKS: Final = 10  # parts of the log, between which a machine may change its speed
# By which two runs of the same configuration differ, which one log cannot show: standard deviation of a logarithm.
_MIN_DRIFT: Final = 0.04
_SUBLINEAR: Final = 1.5  # exponent: batches exist because most of their time does not grow with their size
_PERCENTILES: Final = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Change:
    """What is different. None leaves a setting as it is; times are microseconds."""

    instances: int | None = None
    max_batch_size: int | None = None
    delay_us: int | None = None
    preferred: tuple[int, ...] | None = None
    max_queue_size: int | None = None
    timeout_us: int | None = None
    replaced: ModelConfig | None = None
    """The whole configuration, to which the other settings are applied."""

    def apply(self, config: ModelConfig) -> ModelConfig:
        """Return the changed configuration. Raises InvalidRequest if the model does not have a setting."""
        config = self.replaced or config
        if self.instances is not None and config.is_ensemble:
            steps = ", ".join(dict.fromkeys(step.model_name for step in config.ensemble_steps))
            raise InvalidRequest(f"'{config.name}' is an ensemble, whose steps have instances: {steps}")
        if self.max_batch_size is not None:
            config = replace(config, max_batch_size=self.max_batch_size)
        if self.delay_us is None and self.preferred is None and self.max_queue_size is None and self.timeout_us is None:
            return config
        if config.is_ensemble or config.sequence_batching is not None or config.max_batch_size == 0:
            raise InvalidRequest(f"model '{config.name}' does not use dynamic batching, which the change is for")
        batching = config.dynamic_batching or DynamicBatching()
        policy: QueuePolicy = batching.default_queue_policy
        if self.max_queue_size is not None:
            policy = replace(policy, max_queue_size=self.max_queue_size)
        if self.timeout_us is not None:
            policy = replace(policy, default_timeout_us=self.timeout_us)
        delay = batching.max_queue_delay_us if self.delay_us is None else self.delay_us
        preferred = batching.preferred_batch_sizes if self.preferred is None else self.preferred
        changed = replace(
            batching, max_queue_delay_us=delay, preferred_batch_sizes=preferred, default_queue_policy=policy
        )
        return replace(config, dynamic_batching=changed)


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come. By default as in the log, `factor` times as fast, also where clients send one after another.

    `rate` (a second) is for other arrivals, `times` (seconds) for those of a trace, `clients` for clients that send
    one request after the other.
    """

    factor: float = 1.0
    rate: float | None = None
    process: ArrivalProcess = ArrivalProcess.POISSON
    cv: float = 1.0
    times: Sequence[float] | None = None
    clients: int | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A value and its interval of 90 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would measure. Latencies are ns, as the server's frontends see them; throughput is a second."""

    p50: Prediction
    p95: Prediction
    p99: Prediction
    throughput: Prediction
    utilisation: Mapping[str, Prediction]  # by model
    batch: Mapping[str, float]  # mean size by model
    refused: Prediction  # share
    clients: int  # that send one after the other; 0 where requests come at their times
    recorded: tuple[float, float, float]  # P50, P95, P99 in the log, ns
    check: tuple[float, float, float]  # the same, simulated without a change
    executions: int  # learnt from, of the model with the fewest
    needed: int  # executions for a forecast of P99
    simulated: int  # requests
    notes: tuple[str, ...]


def forecast(
    log: EventLog,
    model: str,
    change: Change | Mapping[str, Change] = Change(),
    load: Load = Load(),
    *,
    documents: Documents | None = None,
    runs: int = RUNS,
    seed: int = 1,
    run_s: float | None = None,
) -> Forecast:
    """Forecast a model under a change, which may be given by model of an ensemble.

    Raises NotFound, InvalidRequest and ConfigError.
    """
    learnt = learn(log, model, documents)
    return Forecaster(learnt, seed, run_s).forecast(changes_of(model, change), load, runs)


def changes_of(model: str, change: Change | Mapping[str, Change]) -> Mapping[str, Change]:
    """Return changes by model."""
    return {model: change} if isinstance(change, Change) else change


@dataclass(frozen=True, slots=True)
class _Run:
    """What one simulated run measured."""

    latencies: tuple[float, ...]  # by percentile
    throughput: float
    arriving: float
    refused: float
    busy: dict[str, float]
    batch: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Unknown:
    """What a log does not say, of one run."""

    speed: float  # of the machine, in standard deviations from that in the log
    growth: float  # 0 to 1: how much a batch grows with its size, where the log has one size


class Forecaster:
    """Runs simulations of one learnt model: what runs of `run_s` seconds would measure, by default as long as the log.

    The P99 of a short run varies more, and is lower where queues take time to grow.
    """

    def __init__(self, learnt: Learnt, seed: int = 1, run_s: float | None = None) -> None:
        self._learnt = learnt
        self._run_s = run_s
        self._random = np.random.default_rng(seed)
        self._count = int(np.clip(len(learnt.requests.numbers), _MIN_REQUESTS, _MAX_REQUESTS))
        self._drifts = {name: _drift(executions) for name, executions in learnt.executions.items()}
        self._check: tuple[float, ...] | None = None

    def forecast(self, changes: Mapping[str, Change], load: Load, runs: int = RUNS) -> Forecast:
        """Forecast a change. Raises InvalidRequest."""
        learnt = self._learnt
        unknown = set(changes) - set(learnt.models)
        if unknown:
            raise InvalidRequest(f"'{learnt.config.name}' has no step '{unknown.pop()}'")
        for name, change in changes.items():
            change.apply(learnt.models[name])
        count = self._requests_of(changes, load)
        measured = [self._run(changes, load, count, unknown) for unknown in self._unknowns(runs)]
        recorded = _percentiles(learnt.requests.latency[learnt.requests.latency > 0])
        if self._check is None:
            unknowns = self._unknowns(min(_CHECK_RUNS, runs))
            unchanged = [self._run({}, Load(), self._count, unknown) for unknown in unknowns]
            self._check = tuple(float(np.median([run.latencies[index] for run in unchanged])) for index in range(3))
        latencies = [
            _widened(_estimate([run.latencies[index] for run in measured]), recorded[index], self._check[index])
            for index in range(3)
        ]
        fewest = min(learnt.executions.values(), key=lambda executions: len(executions.work))
        return Forecast(
            p50=latencies[0],
            p95=latencies[1],
            p99=latencies[2],
            throughput=_estimate([run.throughput for run in measured]),
            utilisation={name: _estimate([run.busy[name] for run in measured]) for name in measured[0].busy},
            batch={name: float(np.mean([run.batch[name] for run in measured])) for name in measured[0].batch},
            refused=_estimate([run.refused for run in measured]),
            clients=self._clients(load),
            recorded=(recorded[0], recorded[1], recorded[2]),
            check=(self._check[0], self._check[1], self._check[2]),
            executions=len(fewest.work),
            needed=ENOUGH,
            simulated=runs * count + min(_CHECK_RUNS, runs) * self._count,
            notes=(*learnt.notes, *self._notes(changes, load, measured, fewest)),
        )

    def _notes(
        self, changes: Mapping[str, Change], load: Load, measured: Sequence[_Run], fewest: Executions
    ) -> list[str]:
        learnt = self._learnt
        notes = list[str]()
        if len(fewest.work) < ENOUGH:
            more = (ENOUGH - len(fewest.work)) * learnt.duration_s / len(fewest.work)
            notes.append(
                f"too few samples for P99: {len(fewest.work)} executions of '{fewest.config.name}', it needs {ENOUGH}: "
                f"{more:.0f} s more of this load"
            )
        for name, executions in learnt.executions.items():
            config = changes[name].apply(executions.config) if name in changes else executions.config
            seen, possible = int(executions.sizes.max()), _max_batch(config)
            if possible > seen and max(run.batch[name] for run in measured) > 0.6 * seen + 0.4:
                notes.append(
                    f"batches of '{name}' had {seen} items at most in the log: the time of larger ones is extrapolated"
                )
            if executions.cores is None and self._instances(executions, changes) > 1:
                notes.append(
                    f"executions of '{name}' did not overlap in the log: whether they slow each other down is unknown"
                )
        arriving = float(np.median([run.arriving for run in measured]))
        served = float(np.median([run.throughput + run.arriving * run.refused for run in measured]))
        if not self._clients(load) and served < _KEEPS_UP * arriving:
            notes.append(
                f"does not keep up: {arriving:.0f} requests arrive a second and {served:.0f} are answered, so that "
                "latency grows for as long as this lasts"
            )
        return notes

    def _clients(self, load: Load) -> int:
        if load.clients is not None:
            return load.clients
        if load.rate is not None or load.times is not None:
            return 0
        clients = self._learnt.requests.clients
        return max(round(clients * load.factor), 1) if clients else 0

    @staticmethod
    def _instances(executions: Executions, changes: Mapping[str, Change]) -> int:
        change = changes.get(executions.config.name, Change())
        return (change.instances or executions.instances) * executions.lanes

    def _unknowns(self, runs: int) -> list[_Unknown]:
        """Return what runs differ in, at equal distances of probability: few runs have the right median and spread."""
        quantiles = (np.arange(runs) + 0.5) / runs
        growths = self._random.permutation(quantiles).tolist()
        return [
            _Unknown(NormalDist().inv_cdf(quantile), growth)
            for quantile, growth in zip(quantiles.tolist(), growths, strict=True)
        ]

    def _requests_of(self, changes: Mapping[str, Change], load: Load) -> int:
        """Return how many requests a run has."""
        if self._run_s is None:
            return self._count
        if load.rate is not None:
            rate = load.rate
        elif self._clients(load):
            rate = self._run(changes, load, self._count, _Unknown(0.0, 0.5)).throughput
        else:
            rate = len(self._learnt.requests.numbers) / max(self._learnt.duration_s, 1e-9) * load.factor
        return int(np.clip(round(rate * self._run_s), _MIN_RUN, _MAX_REQUESTS))

    def _run(self, changes: Mapping[str, Change], load: Load, count: int, unknown: _Unknown) -> _Run:
        learnt = self._learnt
        works = {
            name: self._work(executions, changes.get(name, Change()), unknown)
            for name, executions in learnt.executions.items()
        }
        clients = self._clients(load)
        simulation = build(learnt, changes, self._traffic(load, count), works, self._cores(changes), clients=clients)
        simulation.run()
        return _measured(simulation)

    def _cores(self, changes: Mapping[str, Change]) -> dict[str, float]:
        """Return how many processors executions use; at random between none and one where that is unknown."""
        return {
            name: float(self._random.uniform(0, 1)) if executions.cores is None else executions.cores
            for name, executions in self._learnt.executions.items()
            if executions.cores is not None or self._instances(executions, changes) > 1
        }

    def _work(self, executions: Executions, change: Change, unknown: _Unknown) -> Work:
        """Return what draws the work of one run's batches."""
        random = self._random
        # In blocks: slow executions come together, and queues grow by that.
        chosen = _blocks(len(executions.work), max(len(executions.work), _MIN_REQUESTS), random)
        sizes, kinds, work = executions.sizes[chosen], executions.kinds[chosen], executions.work[chosen]
        usual = UsualWork.of(sizes, kinds, work)
        relative = work / (usual.at(sizes) * usual.by_kind[kinds])
        largest = max(_max_batch(change.apply(executions.config)), int(executions.sizes.max()))
        # Sizes beyond those in the log: between no growth at all and one in proportion, or along a line.
        share = unknown.growth**_SUBLINEAR if len(usual.sizes) == 1 else random.uniform(0.8, 1.2)
        drift = exp(unknown.speed * max(self._drifts[executions.config.name], _MIN_DRIFT))
        by_size = usual.at(np.arange(largest + 1), share) * drift
        by_kind = np.ones(int(self._learnt.requests.kinds.max(initial=0)) + 1)
        by_kind[: len(usual.by_kind)] = usual.by_kind[: len(by_kind)]
        return Work(by_size.tolist(), by_kind.tolist(), relative.tolist())

    def _traffic(self, load: Load, count: int) -> SentRequests:
        requests, random = self._learnt.requests, self._random
        if self._learnt.config.sequence_batching is not None and load.rate is None and load.times is None:
            rows = np.arange(len(requests.numbers))  # sequences are not torn apart
        else:
            rows = _blocks(len(requests.numbers), count, random)
        if load.times is not None:
            at = np.asarray(load.times) * 1e9
        elif load.rate is not None:
            arrivals = Arrivals(steady(load.rate), load.process, load.cv)
            at = arrival_times(arrivals, count / load.rate, random) * 1e9
        else:
            gaps = np.diff(requests.queued, prepend=requests.queued[0])
            gaps[0] = int(np.median(gaps))
            at = np.cumsum(gaps[rows]) / load.factor
        rows = np.resize(rows, len(at))
        return traffic_of(self._learnt, rows, at.astype(np.int64) + 1)


def traffic_of(learnt: Learnt, rows: Integers, at: Integers) -> SentRequests:
    """Return the requests of these rows, queued at these times (ns)."""
    requests, zeros = learnt.requests, [0] * len(rows)
    return SentRequests(
        at.tolist(),
        requests.sizes[rows].tolist(),
        requests.kinds[rows].tolist(),
        requests.before[rows].tolist(),
        requests.after[rows].tolist(),
        requests.priorities[rows].tolist(),
        zeros,
        requests.keys[rows].tolist(),
        requests.ends[rows].tolist(),
        requests.tenants[rows].tolist(),
    )


def build(
    learnt: Learnt,
    changes: Mapping[str, Change],
    traffic: SentRequests,
    works: Mapping[str, Work],
    cores: Mapping[str, float],
    *,
    clients: int = 0,
    keep_batches: bool = False,
) -> Simulation:
    """Return a simulation of the changed model; `cores` are processors that an execution uses, by model."""
    simulation = Simulation(traffic, learnt.cores, clients=clients, keep_batches=keep_batches)
    limiter = RateLimiter()
    for name, config in learnt.models.items():
        change = changes.get(name, Change())
        config = change.apply(config)
        if config.is_ensemble:
            simulation.add(EnsembleStation(simulation, config))
            continue
        executions = learnt.executions[name]
        instances = (change.instances or executions.instances) * executions.lanes
        demand = cores.get(name, 0.0)
        station: InstanceStation
        if config.sequence_batching is not None:
            station = SequenceStation(simulation, config, works[name], instances, demand)
        else:
            late = executions.lateness.tolist()
            station = BatchStation(simulation, config, works[name], instances, demand, late, executions.executing, 0)
        rate = next((group.rate for group in config.instance_groups if group.rate.resources), None)
        if rate is not None:
            needs = {(need.name, None if need.shared else 0): need.count for need in rate.resources}
            station.limit(limiter, needs, rate.priority)
        simulation.add(station)
    return simulation


def _max_batch(config: ModelConfig) -> int:
    batched = config.dynamic_batching is not None or config.sequence_batching is not None
    return max(config.max_batch_size, 1) if batched else 1


def _measured(simulation: Simulation) -> _Run:
    done, began = np.array(simulation.done, np.int64), np.array(simulation.began, np.int64)
    first = int(len(done) * _WARM_UP)
    counted = done[first:] > 0
    latencies = (done - began)[first:][counted]
    if not len(latencies):
        raise InvalidRequest("no request would be answered: all of them would be refused or time out in the queue")
    span = max(int(done.max()) - int(began[done > 0].min()), 1) / 1e9
    came = max(int(began.max()) - int(began[began > 0].min(initial=0)), 1) / 1e9
    stations = [station for station in simulation.stations if isinstance(station, InstanceStation)]
    return _Run(
        tuple(_percentiles(latencies)),
        int((done > 0).sum()) / span,
        len(done) / came,
        simulation.refused / len(done),
        {station.config.name: station.busy_ns / max(simulation.now, 1) / station.instances for station in stations},
        {station.config.name: station.executed / max(station.executions, 1) for station in stations},
    )


def _percentiles(latencies: Integers) -> list[float]:
    if not len(latencies):
        return [0.0] * len(_PERCENTILES)
    return [float(value) for value in np.percentile(latencies, _PERCENTILES)]


def _estimate(values: Sequence[float]) -> Prediction:
    low, value, high = np.percentile(values, [_LOW, 50, _HIGH])
    return Prediction(float(value), float(low), float(high))


def _widened(estimate: Prediction, recorded: float, check: float) -> Prediction:
    """Widen an interval by the error that the simulation makes about the log itself, on the side of that error."""
    if not recorded or not check:
        return estimate
    error = recorded / check
    return replace(estimate, low=estimate.low * min(error, 1.0), high=estimate.high * max(error, 1.0))


def _drift(executions: Executions) -> float:
    """Return the standard deviation of the machine's speed between parts of the log, as a logarithm."""
    usual = UsualWork.of(executions.sizes, executions.kinds, executions.work)
    relative: Floats = np.log(executions.work / (usual.at(executions.sizes) * usual.by_kind[executions.kinds]))
    if len(relative) < _DRIFT_BLOCKS * _DRIFT_BLOCKS:
        return 0.0
    parts = np.array_split(relative, _DRIFT_BLOCKS)
    between = float(np.var([np.median(part) for part in parts], ddof=1))
    # The median of a part varies by itself, by about 1.57 times the variance of its mean.
    within = float(np.mean([1.57 * np.var(part, ddof=1) / len(part) for part in parts]))
    return sqrt(max(between - within, 0.0))


def _blocks(rows: int, count: int, random: np.random.Generator) -> Integers:
    """Return rows of a log in blocks that begin at random, so that bursts stay bursts (moving block bootstrap)."""
    length = min(max(round(sqrt(rows)), 20), rows)
    starts = random.integers(0, rows - length + 1, count // length + 1)
    return np.asarray((starts[:, None] + np.arange(length)).ravel()[:count])
