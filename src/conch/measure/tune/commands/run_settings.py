"""The settings of a run of `conch tune`, from its flags."""

from argparse import Namespace
from dataclasses import replace

from conch.base.command_line.command_parser import CommandParser
from conch.measure.tune.config_fields import FIELD_PREFIX
from conch.measure.tune.knobs import KNOBS, KnobError, parse_values
from conch.measure.tune.objective import METRICS, Constraint, Goal, Objective
from conch.measure.tune.settings import SearchSettings, TrialSettings, TuneSettings
from conch.measure.tune.space import Value


def run_settings(parser: CommandParser, given: Namespace) -> TuneSettings:
    """Return the settings of a run. Exits with status 2 for wrong flags."""
    if given.model is None:
        parser.error("a model is needed, such as: conch tune densenet_onnx")
    settings = TuneSettings(given.model)
    return replace(
        settings,
        goal=_goal(parser, given),
        knobs=_knobs(given),
        max_instances=given.max_instances or settings.max_instances,
        composing=given.composing or settings.composing,
        trial=_trial(given, TrialSettings(protocol=given.protocol)),
        search=_search(given, settings.search),
    )


def _goal(parser: CommandParser, given: Namespace) -> Goal:
    objectives = []
    for names, rising in ((given.maximize, True), (given.minimize, False)):
        for name in names:
            if name not in METRICS:
                parser.error(f"unknown figure '{name}'; known: {', '.join(METRICS)}")
            if METRICS[name].rising is not rising:
                parser.error(f"'{name}' is {'minimized' if rising else 'maximized'}")
            objectives.append(Objective(name))
    if given.goodput:
        if not given.slo:
            parser.error("--goodput needs --slo, such as --slo latency:100ms")
        objectives.append(Objective("goodput"))
    constraints = [
        Constraint(name, maximum=limit)
        for name in ("avg", "p50", "p90", "p95", "p99")
        if (limit := getattr(given, f"max_{name}")) is not None
    ]
    if given.min_throughput is not None:
        constraints.append(Constraint("throughput", minimum=given.min_throughput))
    for name, limit in (("cpu_memory", given.max_memory), ("gpu_memory", given.max_gpu_memory)):
        if limit is not None:
            constraints.append(Constraint(name, maximum=limit))
    return Goal(tuple(objectives) or Goal().objectives, tuple(constraints))


def _knobs(given: Namespace) -> dict[str, dict[str, tuple[Value, ...] | None]]:
    found: dict[str, dict[str, tuple[Value, ...] | None]] = {}
    for text in given.knob:
        path, _, values = text.partition("=")
        model, _, name = path.rpartition("/")
        is_field = name.startswith(FIELD_PREFIX)
        if name not in KNOBS and not is_field:
            raise KnobError(f"unknown knob '{name}'; known: {', '.join(KNOBS)}, and {FIELD_PREFIX}PATH for any field")
        if is_field and not values:
            raise KnobError(f"knob '{name}' needs values, such as {name}=0,1")
        found.setdefault(model, {})[name] = parse_values(name, values) if values else None
    return found


def _trial(given: Namespace, trial: TrialSettings) -> TrialSettings:
    changes = {
        "concurrency": given.concurrency,
        "rates": given.rate,
        "batch_size": given.batch_size,
        "window_s": given.window,
        "warm_up_s": given.warm_up,
        "slo": given.slo,
        "shapes": dict(given.shape),
        "input_data": given.input_data,
        "images": given.images,
        "prompt_tokens": given.prompt_tokens,
        "output_tokens": given.output_tokens,
        "grpc_url": given.grpc_url,
        "metrics_url": given.metrics_url,
        "gpu_metrics_url": given.gpu_metrics_url,
        "seed": given.seed,
    }
    return replace(trial, **{name: value for name, value in changes.items() if value})


def _search(given: Namespace, search: SearchSettings) -> SearchSettings:
    changes = {
        "strategy": given.search,
        "share": 1.0 if given.search == "grid" and given.share is None else given.share,
        "time_budget_s": given.time_budget,
        "finalists": given.finalists,
        "rounds": given.rounds,
        "seed": given.seed,
    }
    search = replace(search, **{name: value for name, value in changes.items() if value is not None})
    return replace(search, max_trials=100_000) if given.search == "grid" else search
