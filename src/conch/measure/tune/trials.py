"""Trials: load a configuration, put a load on the model, measure, read the statistics of the stages, record."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from conch.base.http.prometheus import ScrapeSettings
from conch.domain.arrivals import parse_arrivals
from conch.machine.memory import free_memory_share
from conch.measure.bench.generator import LoadPlan, ScriptSource, Tls
from conch.measure.bench.inputs.answer_check import answer_check
from conch.measure.bench.inputs.build import build_source
from conch.measure.bench.levels import Users, rates
from conch.measure.bench.measure_level import measure_level
from conch.measure.bench.measurement import Measurement, TimeDistribution
from conch.measure.bench.observers.gpu_metrics import GpuMetrics
from conch.measure.bench.observers.local_processes import LocalProcesses
from conch.measure.bench.observers.observer import ServerObserver
from conch.measure.bench.observers.server_metrics import ServerMetrics
from conch.measure.bench.plan import MeasuringWindow
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol
from conch.measure.tune.deployment import Deployment
from conch.measure.tune.knobs import LOAD, Document
from conch.measure.tune.outcome import stage_loads
from conch.measure.tune.planning import measurement_s
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess, ServerRefusal, ServerUnreachable
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import Trial, TrialLog
from conch.measure.tune.tune_settings import TrialSettings, TuneSettings

_DEFAULT_PORT = 80
_PERCENTILES = ("50", "90", "95", "99")
_MIN_SUCCESS = 0.99  # share of requests, below which a configuration is not used


@dataclass(frozen=True, slots=True)
class TrialReading:
    """Figures by the names of `conch.measure.tune.objective.METRICS`; empty if no request succeeded, with the cause."""

    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    notes: tuple[str, ...] = ()


class TrialMeter(ABC):
    """Puts a load on the model and measures it."""

    @abstractmethod
    def measure(self, load: Value, effort: float) -> TrialReading:
        """Measure under a load (concurrent users, or requests per second) for a share of the full window.

        Raises ServerUnreachable if the server is gone.
        """

    @abstractmethod
    def expected_s(self, effort: float) -> float:
        """Return how long a measurement takes."""


def trial_observers(access: ServerAccess, settings: TuneSettings) -> tuple[ServerObserver, ...]:
    """Return an observer for each URL of metrics, and for the processes of a server on this machine."""
    observers: list[ServerObserver] = []
    trial = settings.trial
    if trial.metrics_url is not None:
        observers.append(ServerMetrics(ScrapeSettings(trial.metrics_url), settings.model, required=True))
    if trial.gpu_metrics_url is not None:
        observers.append(GpuMetrics(ScrapeSettings(trial.gpu_metrics_url)))
    if access.is_local:
        observers.append(LocalProcesses(urlsplit(access.url).port or _DEFAULT_PORT))
    return tuple(observers)


@dataclass(slots=True)
class BenchMeter(TrialMeter):
    """Finds the target at the first measurement: the model may have to be loaded before."""

    access: ServerAccess
    model: str
    settings: TrialSettings
    observers: tuple[ServerObserver, ...] = ()
    _target: BenchTarget | None = None
    _source: ScriptSource | None = None

    def measure(self, load: Value, effort: float) -> TrialReading:
        """Measure. Raises ServerUnreachable; TargetError and InputError if requests cannot be made."""
        target, source = self._prepared()
        given = float(str(load))
        level = rates([given], *parse_arrivals("poisson"))[0] if self.settings.rates else Users(int(given))
        window_s = self.settings.window_s * effort
        warm_up_s = self.settings.warm_up_s
        plan = LoadPlan(
            endpoint=target.endpoint,
            source=source,
            pacing=level.pacing(warm_up_s + window_s, self.settings.inputs.seed),
            timeout_s=self.settings.timeout_s,
            seed=self.settings.inputs.seed,
            check=answer_check(target),
            has_tokens=target.takes_prompts,
        )
        window = MeasuringWindow(duration_s=window_s, warm_up_s=warm_up_s)
        try:
            measured = measure_level(plan, window, level.level, self.observers, slo=self.settings.slo)
        except ConnectionError as error:
            raise ServerUnreachable(str(error)) from error
        if set(_present(measured.outcomes)) == {"connection_error"}:
            raise ServerUnreachable(measured.errors[0][0] if measured.errors else "all connections failed")
        if measured.requests == 0:
            return TrialReading(failure=f"no answer within {window_s:g} s; --window sets a longer one")
        return reading_of(measured)

    def expected_s(self, effort: float) -> float:
        return measurement_s(self.settings, effort)

    def _prepared(self) -> tuple[BenchTarget, ScriptSource]:
        if self._target is None or self._source is None:
            settings = self.settings
            key = self.access.key()
            protocol = Protocol(settings.protocol)
            is_grpc = protocol in (Protocol.GRPC, Protocol.GRPC_STREAM)
            self._target = discover(
                (settings.grpc_url or _grpc_url(self.access.url)) if is_grpc else self.access.url,
                protocol=protocol,
                model=self.model,
                headers=(("authorization", f"Bearer {key}"),) if key else (),
                tls=Tls(ca_file=self.access.ca_file) if self.access.ca_file else None,
                metrics=False,
            )
            self._source = build_source(self._target, settings.inputs)
        return self._target, self._source


def reading_of(measured: Measurement) -> TrialReading:
    """Return the figures of a measurement that objectives can use."""
    succeeded = measured.outcomes.get("ok", 0)
    total = sum(measured.outcomes.values()) - measured.outcomes.get("unfinished", 0)
    cause = f": {measured.errors[0][0]}" if measured.errors else ""
    if measured.latency is None or not succeeded:
        return TrialReading(failure=f"no successful request of {total}{cause}")
    if succeeded < total * _MIN_SUCCESS:
        return TrialReading(failure=f"{total - succeeded} of {total} requests failed{cause}")
    figures = {"throughput": measured.throughput.value, "errors": 1 - succeeded / total}
    figures |= _times("", measured.latency)
    if measured.goodput is not None:
        figures["goodput"] = measured.goodput.value
    if (tokens := measured.tokens) is not None:
        figures["output_tokens"] = tokens.output_rate.value
        for name, times in (("ttft_", tokens.first_token), ("itl_", tokens.inter_token)):
            figures |= _times(name, times) if times is not None else {}
    if (responses := measured.responses) is not None:
        for name, times in (("ttft_", responses.first), ("itl_", responses.gap)):
            figures |= _times(name, times) if times is not None else {}
    if (server := measured.server) is not None and server.memory_bytes is not None:
        figures["cpu_memory"] = float(server.memory_bytes)
    figures |= _gpu_figures(measured, succeeded)
    notes = tuple(note.message for note in measured.notes if note.severity != "info")
    invalid = [note.message for note in measured.notes if note.code == "client-bottleneck"]
    return TrialReading(figures, notes=notes or tuple(invalid))


def _times(prefix: str, times: TimeDistribution) -> dict[str, float]:
    known = {f"{prefix}p{key}": times.percentiles[key].value for key in _PERCENTILES if key in times.percentiles}
    return known | {f"{prefix}avg": times.mean.value}


def _gpu_figures(measured: Measurement, succeeded: int) -> dict[str, float]:
    """Return memory and power of all GPUs together, and their mean utilization."""
    figures: dict[str, float] = {}
    for name, figure in (
        ("gpu_memory", "memory_used_bytes"),
        ("gpu_power", "power_watts"),
        ("energy", "energy_joules"),
    ):
        values = [value for gpu in measured.gpus if (value := getattr(gpu, figure)) is not None]
        if values:
            figures[name] = float(sum(values)) / (succeeded if name == "energy" else 1)
    if busy := [gpu.utilization_ratio for gpu in measured.gpus if gpu.utilization_ratio is not None]:
        figures["gpu_utilization"] = sum(busy) / len(busy)
    return figures


def _present(outcomes: dict[str, int]) -> list[str]:
    return [name for name, count in outcomes.items() if count and name != "unfinished"]


def _grpc_url(url: str) -> str:
    """Return the URL of gRPC beside that of HTTP: Triton's ports are neighbours."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    return f"grpcs://{host}:{int(port) + 1}" if scheme == "https" else f"grpc://{host}:{int(port) + 1}"


_MIN_FREE_MEMORY = 0.05  # share of a local machine's memory


class ServerGone(ConnectionError):
    """The server does not answer, and did not come back while the tuner waited."""


@dataclass(slots=True)
class TrialRunner:
    """Runs trials. `stages` are the composing models whose statistics are read, with their instance counts."""

    client: RepositoryClient
    deployment: Deployment
    meter: TrialMeter
    log: TrialLog
    keep_watch: Callable[[], None]
    wait_s: float
    stages: Sequence[str] = ()
    say: Callable[[str], None] = print
    reused: int = 0
    _unlogged: bool = False

    def run(self, settings: Mapping[str, Value], effort: float, purpose: str = "search") -> Trial:
        """Return the trial of an earlier run if there is one, else measure. A failure is a result.

        Raises ServerGone if the server does not come back.
        """
        if (earlier := self.log.earlier(settings, effort, purpose)) is not None:
            self.reused += 1
            return earlier
        started = time.monotonic()
        reading, stages = self._measured(settings, effort)
        trial = Trial(
            dict(settings),
            effort,
            reading.figures,
            reading.failure,
            reading.notes,
            stages,
            round(time.monotonic() - started, 3),
            purpose,
        )
        self._append(trial)
        return trial

    def _append(self, trial: Trial) -> None:
        """Keep the trial for a later run. A failure, as on a full disk, does not end this run."""
        try:
            self.log.append(trial)
        except OSError as error:
            if not self._unlogged:
                self.say(f"trials cannot be stored, an interrupted run would measure them again: {error}")
            self._unlogged = True
        else:
            self._unlogged = False

    def _measured(
        self, settings: Mapping[str, Value], effort: float
    ) -> tuple[TrialReading, dict[str, dict[str, float]]]:
        self.keep_watch()
        try:
            self.deployment.load(settings)
            if self.client.access.is_local and (free := free_memory_share()) < _MIN_FREE_MEMORY:
                self.deployment.load({})
                return TrialReading(failure=f"only {free:.0%} of the machine's memory is left"), {}
            before = self.client.statistics() if self.stages else {}
            started = time.monotonic()
            reading = self.meter.measure(settings[LOAD], effort)
            window_s = time.monotonic() - started
            after = self.client.statistics() if self.stages else {}
        except ServerRefusal as refusal:
            return TrialReading(failure=f"the server refused the configuration: {refusal}"), {}
        except ServerUnreachable as error:
            self.deployment.forget()
            if not self.client.wait_until_live(self.wait_s):
                raise ServerGone(str(error)) from error
            return TrialReading(failure=f"the server went away during the trial: {error}"), {}
        documents = self.deployment.documents(settings)
        counts = {name: instance_count(documents.get(name, {})) for name in self.stages}
        loads = stage_loads(before, after, counts, window_s)
        return reading, {
            load.model: {
                "queue_s": load.queue_s,
                "compute_s": load.compute_s,
                "busy_instances": load.busy_instances,
                "instances": load.instances,
                "requests": load.requests,
            }
            for load in loads
        }


def instance_count(document: Document) -> int:
    """Return the number of instances of a configuration."""
    return sum(int(group.get("count") or 1) for group in document.get("instance_group", [])) or 1
