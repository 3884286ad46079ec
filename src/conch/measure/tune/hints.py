"""What to measure first: configurations ranked by forecasts from the server's event log (`conch whatif`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conch.base.errors import ConchError
from conch.domain.config.document import from_document
from conch.domain.config.from_proto import to_model_config
from conch.domain.events.log import EventLog
from conch.measure.tune.deployment import SEPARATOR
from conch.measure.tune.knobs import LOAD, Document
from conch.measure.tune.space import Point, Space, Value
from conch.measure.tune.tune_settings import TuneSettings
from conch.measure.twin.forecast import Change, Forecast, Forecaster, Load
from conch.measure.twin.learning import configured_instances, learn
from conch.measure.why.source import fetch_log

# What the simulation knows; other knobs change the executions themselves.
_KNOWN = {LOAD, "instances", "max_batch_size", "queue_delay_us", "preferred_batch_sizes"}
_MAX_POINTS = 32
_RUNS = 2  # a rank needs no interval


@dataclass(frozen=True, slots=True)
class HintSource:
    """A server, and how long ago its first measurement began."""

    url: str
    api_key_file: str | None
    last_s: float


def hints(
    source: HintSource,
    settings: TuneSettings,
    space: Space,
    current: Mapping[str, Value],
    documents: Callable[[Mapping[str, Value]], Mapping[str, Document]],
) -> list[Point]:
    """Return points by their forecasts, the best first; none where the server has no event log, as Triton.

    `current` is the configuration that was measured, and `documents` returns the configurations for settings.
    """
    try:
        return ranked(fetch_log(source.url, source.last_s, source.api_key_file), settings, space, current, documents)
    except ConchError:
        return []


def ranked(
    log: EventLog,
    settings: TuneSettings,
    space: Space,
    current: Mapping[str, Value],
    documents: Callable[[Mapping[str, Value]], Mapping[str, Document]],
) -> list[Point]:
    """Return points by their forecasts from a log. Raises NotFound, InvalidRequest and ConfigError."""
    learnt = learn(log, settings.model, documents(current))
    forecaster = Forecaster(learnt)
    points = [point for point in space.points() if _is_known(space.settings(point), current)]
    step = max(len(points) // _MAX_POINTS, 1)
    scores: dict[Point, float] = {}
    for point in points[::step]:
        chosen = space.settings(point)
        configs = {
            name: to_model_config(from_document(document, name))
            for name, document in documents(chosen).items()
            if name in learnt.models
        }
        changes = {
            name: Change(instances=None if config.is_ensemble else configured_instances(config), replaced=config)
            for name, config in configs.items()
        }
        level = float(str(chosen[LOAD]))
        load = Load(rate=level) if settings.trial.rates else Load(clients=int(level))
        score = settings.goal.score(_figures(forecaster.forecast(changes, load, _RUNS)))
        if score is not None:
            scores[point] = score
    return sorted(scores, key=lambda point: scores[point], reverse=True)


def _is_known(settings: Mapping[str, Value], current: Mapping[str, Value]) -> bool:
    """Whether the simulation knows what distinguishes settings from the current ones."""
    return all(
        name.rpartition(SEPARATOR)[2] in _KNOWN or value == current.get(name) for name, value in settings.items()
    )


def _figures(forecast: Forecast) -> dict[str, float]:
    latencies = {"p50": forecast.p50, "p95": forecast.p95, "p99": forecast.p99}
    return {name: latency.value / 1e9 for name, latency in latencies.items()} | {
        "throughput": forecast.throughput.value
    }
