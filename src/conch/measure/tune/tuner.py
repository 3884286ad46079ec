"""One run of the tuner: current configuration, search, finalists in interleaved rounds, outcome."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from conch.measure.bench.input_settings import DEFAULT_INPUT_DATA
from conch.measure.bench.targets.server_api import server_name
from conch.measure.tune.deployment import Deployment
from conch.measure.tune.hints import HintSource, hints
from conch.measure.tune.knobs import LOAD, Document, backend_of, composing_models
from conch.measure.tune.outcome import (
    Contestant,
    Finalist,
    Gain,
    StageLoad,
    TuneOutcome,
    bottleneck,
    called_models,
    compare,
    knob_effects,
    winner,
)
from conch.measure.tune.planning import FINALS_SHARE, current_point_settings, plan_space
from conch.measure.tune.repository_client import RepositoryClient
from conch.measure.tune.search import STRATEGIES, Proposal
from conch.measure.tune.space import Space, Value
from conch.measure.tune.state.folder import StateFolder, Trial, TrialLog
from conch.measure.tune.state.session import ModelSession
from conch.measure.tune.trials import ServerGone, TrialMeter, TrialRunner
from conch.measure.tune.tune_settings import TuneSettings

CURRENT = "current"
_EFFECT_METRICS = ("throughput", "p99")
_MIN_ROUNDS = 2  # without which a gain has no interval
_ENGINE_FILE = "model.json"
_OUT_OF_TIME = "time budget"


class TuneError(RuntimeError):
    """The run cannot begin; the message says what to change."""


class TuneView(ABC):
    """Shows a run. Methods are called in the tuner's thread."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show one line."""

    @abstractmethod
    def begin(self, settings: Mapping[str, Value], number: int, expected: int, purpose: str) -> None:
        """Show that a trial begins; `expected` is how many there will be at most."""

    @abstractmethod
    def end(self, trial: Trial, *, best: bool) -> None:
        """Show the result of a trial."""


@dataclass(slots=True)
class TuneContext:
    """What a run works with. `repository` is the local folder of the model repository, if there is one.

    Setting `interrupted` ends the run before the next trial.
    """

    client: RepositoryClient
    folder: StateFolder
    meter: TrialMeter
    view: TuneView
    cores: int
    repository: Path | None = None
    fresh: bool = False
    wait_s: float = 60.0
    interrupted: bool = False


@dataclass(slots=True)
class _Progress:
    """What is known so far."""

    started: float
    trials: list[Trial] = field(default_factory=list)
    contestants: list[Contestant] = field(default_factory=list)
    settings: dict[str, Mapping[str, Value]] = field(default_factory=dict)
    ended: str = ""


class Tuner:
    """One run on a protected model: use it within an open session, which restores the models afterwards."""

    def __init__(self, settings: TuneSettings, context: TuneContext, session: ModelSession) -> None:
        self._settings = settings
        self._context = context
        self._session = session
        self._client = context.client
        self._view = context.view
        self._progress = _Progress(time.monotonic())
        self._documents: dict[str, Document] = {}
        self._runner: TrialRunner
        self._space = Space(())
        self._current: dict[str, Value] = {}
        self._stages: tuple[StageLoad, ...] = ()

    @property
    def documents(self) -> dict[str, Document]:
        """The configurations before the run, by model."""
        return self._documents

    @property
    def deployment(self) -> Deployment:
        """What is loaded; known once the run has begun."""
        return self._runner.deployment

    def run(self) -> TuneOutcome:
        """Search and compare. Ends early, with what was measured, on Ctrl-C, and if the server goes away.

        Raises TuneError, KnobError, ServerRefusal, ServerUnreachable before the first trial.
        """
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        server = self._client.server()
        self._client.check_explicit()
        self._begin(server)
        try:
            self._search()
            self._compare()
        except KeyboardInterrupt:
            self._progress.ended = "interrupted"
        except ServerGone as error:
            self._progress.ended = f"the server is gone: {error}"
        name, version = (str(server.get(field, "?")) for field in ("name", "version"))
        return self._outcome(started_at, f"{server_name(name, version)} {version}")

    # Before the search

    def _begin(self, server: Mapping[str, object]) -> None:
        model, view = self._settings.model, self._view
        if not self._client.is_ready(model):
            self._session.protect([model])
            view.say(f"model '{model}' is not loaded; loading it for the run")
            self._client.load(model)
        document = self._client.config(model)
        stages = list(self._settings.composing or self._all_composing(document))
        self._documents = {name: self._client.config(name) for name in (model, *stages)}
        log = TrialLog(self._context.folder, self._environment(server), fresh=self._context.fresh)
        log.read()
        if log.count:
            view.say(f"{log.count} trials of an earlier run are reused; --fresh measures again")
        self._runner = TrialRunner(
            self._client,
            Deployment(self._client, model, self._documents),
            self._context.meter,
            log,
            self._session.keep_watch,
            self._context.wait_s,
            stages,
            view.say,
        )
        self._measure_current()
        self._protect()
        narrow = bottleneck(self._stages)
        if narrow is not None:
            view.say(f"the bottleneck is '{narrow.model}': {_stage_text(narrow)}")
        self._space = plan_space(
            self._settings,
            self._documents,
            self._context.cores,
            narrow.model if narrow else None,
            tuple(self._engine_files()),
        )
        if self._space.size == len(self._space.dimensions[0].values):
            raise TuneError(
                f"model '{model}' has no knob that is tuned by default; --knob NAME=VALUES chooses some of "
                "--list-knobs, with --repository those of engines"
            )

    def _all_composing(self, document: Document) -> list[str]:
        """Return the models of an ensemble, also of ensembles within it."""
        composing: list[str] = []
        waiting = composing_models(document)
        while waiting:
            name = waiting.pop(0)
            if name not in composing:
                composing.append(name)
                waiting.extend(composing_models(self._client.config(name)))
        return composing

    def _environment(self, server: Mapping[str, object]) -> dict[str, object]:
        trial = self._settings.trial
        return {
            "server": [server.get("name"), server.get("version"), self._client.access.url],
            "models": self._documents,
            "cores": self._context.cores,
            "load": [trial.protocol, trial.window_s, trial.warm_up_s, dict(trial.slo), asdict(trial.inputs)],
        }

    def _measure_current(self) -> None:
        """Measure the current configuration at each level of load; find stages of a BLS model by their requests."""
        levels = self._settings.trial.rates or self._settings.trial.concurrency
        before = self._client.statistics() if not self._runner.stages else {}
        for level in levels:
            if level != levels[0] and not self._fits(self._trial_s(1.0)):
                self._progress.ended = _OUT_OF_TIME
                break
            trial = self._trial({LOAD: level}, 1.0)
            if trial.failure and level == levels[0]:
                raise TuneError(
                    f"the current configuration of '{self._settings.model}' does not work: {trial.failure}"
                    f"{self._inputs_hint()}"
                )
            if trial.stages:
                self._stages = tuple(
                    StageLoad(name, int(v["requests"]), v["queue_s"], v["compute_s"], v["busy_instances"],
                              int(v["instances"]))
                    for name, v in trial.stages.items()
                )  # fmt: skip
            if trial.figures and (missing := self._settings.goal.unknown(trial.figures)):
                raise TuneError(
                    f"no figures for {', '.join(missing)}: the server does not report them; "
                    "--metrics-url and --gpu-metrics-url name their sources"
                )
        is_python = backend_of(self._documents[self._settings.model]) == "python"
        if before and is_python and (called := called_models(self._settings.model, before, self._client.statistics())):
            self._view.say(f"model '{self._settings.model}' calls {', '.join(called)}; they are tuned with it")
            self._runner.stages = called
            self._documents |= {name: self._client.config(name) for name in called}
            self._runner.deployment = Deployment(self._client, self._settings.model, self._documents)
            if self._fits(self._trial_s(0.5)):
                self._trial({LOAD: levels[-1]}, 0.5)

    def _inputs_hint(self) -> str:
        inputs = self._settings.trial.inputs
        is_random = not inputs.images and inputs.input_data == DEFAULT_INPUT_DATA
        return "" if not is_random else "; inputs were random: --images or --input-data name others"

    def _engine_files(self) -> dict[str, Path]:
        """Return the model.json of each engine in the local repository, of the newest version."""
        if self._context.repository is None:
            return {}
        files = {}
        for name in self._documents:
            versions = [p for p in (self._context.repository / name).glob("[0-9]*") if p.name.isdecimal()]
            if versions:
                files[name] = max(versions, key=lambda path: int(path.name)) / _ENGINE_FILE
        return files

    def _protect(self) -> None:
        files = self._engine_files()
        self._session.protect(list(self._documents), list(files.values()))
        self._runner.deployment = Deployment(self._client, self._settings.model, self._documents, files)

    # Search

    def _search(self) -> None:
        levels = self._settings.trial.rates or self._settings.trial.concurrency
        known = {
            trial.settings[LOAD]: self._score(trial) for trial in self._progress.trials if len(trial.settings) == 1
        }
        best_load = max(levels, key=lambda level: -1e9 if known.get(level) is None else float(known[level] or 0))
        self._current = current_point_settings(self._space, self._settings.model, self._documents, best_load)
        search_settings = self._settings.search
        random = Random(search_settings.seed)  # noqa: S311 - reproducible
        limit = float(search_settings.trials(self._space.size))
        start = self._space.nearest(self._current)
        search = STRATEGIES[search_settings.strategy](self._space, start, limit, random)
        search.hints = self._hints()
        for level in levels:
            if level in known:
                point = self._space.nearest({**self._current, LOAD: level})
                search.tell(Proposal(point), known[level])
        measured = {self._runner.deployment.key({}) + repr(level): score for level, score in known.items()}
        while (proposal := search.propose()) is not None:
            if not self._has_time(proposal.effort):
                self._progress.ended = _OUT_OF_TIME
                break
            settings = self._space.settings(proposal.point)
            key = self._runner.deployment.key(settings) + repr(settings[LOAD])
            if key not in measured or proposal.effort < 1:
                measured[key] = self._score(self._trial(settings, proposal.effort, int(limit)))
            search.tell(proposal, measured[key])
        self._choose(search.best(self._settings.search.finalists * 4), best_load)

    def _hints(self) -> list[tuple[int, ...]]:
        """Return the points that forecasts from the server's event log rank first."""
        access = self._client.access
        points = hints(
            HintSource(access.url, access.api_key_file, time.monotonic() - self._progress.started),
            self._settings,
            self._space,
            self._current,
            self._runner.deployment.documents,
        )
        if points:
            self._view.say(
                f"forecasts from the server's event log rank {len(points)} configurations; the best go first"
            )
        return points

    def _choose(self, points: Sequence[tuple[int, ...]], load: Value) -> None:
        """Choose the finalists: different configurations, none of them the current one at its best load."""
        self._progress.settings[CURRENT] = {LOAD: load}
        seen = {self._runner.deployment.key({}) + repr(load)}
        for point in points:
            settings = self._space.settings(point)
            key = self._runner.deployment.key(settings) + repr(settings[LOAD])
            if key not in seen and len(self._progress.settings) <= self._settings.search.finalists:
                seen.add(key)
                is_current = self._runner.deployment.key(settings) == self._runner.deployment.key({})
                name = chr(ord("A") + len(self._progress.settings) - 1)
                self._progress.settings[name] = {LOAD: settings[LOAD]} if is_current else settings

    def _has_time(self, effort: float) -> bool:
        limit = self._settings.search.time_budget_s
        if limit is None:
            return True
        trial_s = self._trial_s(1.0)
        finals = (self._settings.search.finalists + 1) * self._settings.search.rounds * trial_s
        if all(len(trial.settings) == 1 for trial in self._progress.trials):
            finals = 2 * trial_s  # without another configuration there is nothing to compare
        return self._fits(self._trial_s(effort) + min(finals, limit * FINALS_SHARE))

    def _trial_s(self, effort: float) -> float:
        """Return how long a trial takes, from those before."""
        longest = [trial.duration_s / trial.effort for trial in self._progress.trials[-5:] if trial.figures]
        mean = sum(longest) / len(longest) * effort if longest else 0.0
        return max(mean, self._context.meter.expected_s(effort))

    def _score(self, trial: Trial) -> float | None:
        return self._settings.goal.score(trial.figures) if trial.figures else None

    def _trial(self, settings: Mapping[str, Value], effort: float, expected: int = 0, purpose: str = "search") -> Trial:
        if self._context.interrupted:
            raise KeyboardInterrupt
        self._view.begin(settings, len(self._progress.trials) + 1, expected, purpose)
        trial = self._runner.run(settings, effort, purpose)
        score = self._score(trial)
        earlier = [known for before in self._progress.trials if (known := self._score(before)) is not None]
        self._progress.trials.append(trial)
        self._view.end(trial, best=score is not None and (not earlier or score > max(earlier)))
        return trial

    # Finalists

    def _compare(self) -> None:
        """Measure the finalists beside the current configuration, in rounds of changing order."""
        search = self._settings.search
        names = list(self._progress.settings)
        while len(names) > 1 and not self._fits(len(names) * min(search.rounds, _MIN_ROUNDS) * self._trial_s(1.0)):
            if len(names) == 2 and self._fits(2 * self._trial_s(1.0)):
                break
            del self._progress.settings[names.pop()]
            self._progress.ended = _OUT_OF_TIME
        if len(names) < 2:
            return
        random = Random(search.seed + 1)  # noqa: S311 - reproducible
        rounds: dict[str, list[Mapping[str, float] | None]] = {name: [] for name in names}
        schedule = []
        for number in range(search.rounds):
            random.shuffle(names)
            schedule += [(number, name) for name in names]
        for index, (number, name) in enumerate(schedule):
            needed = len(names) if index % len(names) == 0 else 1  # a round begins only if all of it fits
            if index and not self._fits(needed * self._trial_s(1.0)):
                self._progress.ended = self._progress.ended or _OUT_OF_TIME
                break
            settings = {**self._progress.settings[name], "round": number}
            trial = self._trial(settings, 1.0, len(schedule), "final")
            rounds[name].append(trial.figures or None)
        self._progress.contestants = [Contestant(name, tuple(rounds[name])) for name in self._progress.settings]

    def _fits(self, seconds: float) -> bool:
        """Return whether the time budget has these seconds left."""
        limit = self._settings.search.time_budget_s
        return limit is None or time.monotonic() - self._progress.started + seconds <= limit

    def _outcome(self, started_at: str, server: str) -> TuneOutcome:
        progress, goal = self._progress, self._settings.goal
        finalists = tuple(
            Finalist(
                contestant.name,
                progress.settings[contestant.name],
                typical,
                bool(typical) and goal.is_feasible(typical),
            )
            for contestant in progress.contestants
            for typical in (contestant.typical(),)
        )
        gains: list[Gain] = []
        best: Gain | None = None
        if progress.contestants:
            current, others = progress.contestants[0], progress.contestants[1:]
            gains = compare(current, others, goal)
            best = winner(gains, current_feasible=finalists[0].feasible)
        searched = [trial for trial in progress.trials if trial.purpose == "search"]
        filled = [self._with_current(trial) for trial in searched]
        narrow = bottleneck(self._stages)
        return TuneOutcome(
            model=self._settings.model,
            server=server,
            url=self._client.access.url,
            goal=str(goal),
            started_at=started_at,
            duration_s=round(time.monotonic() - progress.started, 3),
            space={dimension.name: dimension.values for dimension in self._space.dimensions},
            space_size=self._space.size,
            strategy=self._settings.search.strategy,
            trials=tuple(progress.trials),
            reused=self._runner.reused,
            finalists=finalists,
            gains=tuple(gains),
            winner=best.name if best else None,
            effects=knob_effects(self._space, filled, self._current, _EFFECT_METRICS),
            stages=self._stages,
            bottleneck=narrow.model if narrow else None,
            current=self._current,
            ended=progress.ended,
        )

    def _with_current(self, trial: Trial) -> Trial:
        """Return a trial of the current configuration with the values of all knobs, for the effects."""
        return replace(trial, settings={**self._current, **trial.settings})


def _stage_text(stage: StageLoad) -> str:
    return (
        f"{stage.queue_s * 1e3:.1f} ms queue, {stage.compute_s * 1e3:.1f} ms compute a request, "
        f"{stage.busy_instances:.1f} of {stage.instances} instances busy"
    )
