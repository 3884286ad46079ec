"""`conch tune`: find the configuration of a model on a running server that serves best, by measuring."""

import signal
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from conch.cli.bench.values import duration, slo
from conch.cli.command_parser import CommandParser
from conch.cli.text_files import read_text, write_text
from conch.errors import ConchError
from conch.tuning.knobs import KNOBS, KnobError, parse_values, usable_cores
from conch.tuning.objective import METRICS, Constraint, Goal, Objective
from conch.tuning.repository_client import RepositoryClient, ServerAccess, ServerRefusal, ServerUnreachable
from conch.tuning.search.strategies import DEFAULT_STRATEGY, STRATEGIES
from conch.tuning.session import ModelSession, TuningInProgress
from conch.tuning.settings import DEFAULT_CONCURRENCY, DEFAULT_SHARE, SearchSettings, TrialSettings, TuneSettings
from conch.tuning.space import Value
from conch.tuning.state.folder import StateFolder, default_state_directory

if TYPE_CHECKING:
    from conch.tuning.outcome import TuneOutcome
    from conch.tuning.state.applied import FileChange
    from conch.tuning.tuner import Tuner

_FAILURE, _USAGE_ERROR, _INTERRUPTED = 1, 2, 130
_DEFAULT_URL = "http://localhost:8000"
_RESTORE_WAIT_S = 60.0
_REMOTE_CORES = 4

_DESCRIPTION = "Finds the configuration of a model that serves best, by measuring on a running server."
_EPILOG = """
The server must run with --model-control-mode=explicit. Configurations are loaded through the repository API and the
previous one is restored after any end of the run; --apply keeps the best.

  conch tune densenet_onnx                                        throughput at 1, 4 and 16 users
  conch tune detect --maximize throughput --max-p99 200ms         an ensemble: the stage to widen is found
  conch tune detector --knob instances=1:4 --knob backend=onnxruntime,openvino
  conch tune detector --repository models --apply                 writes config.pbtxt; --rollback undoes it
  conch tune -f profile.yml                                       Model Analyzer's configuration
"""


def tune(arguments: Sequence[str]) -> int:
    """Tune a model, or restore, or roll back. Returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.restore:
            return _restore(given)
        if given.repository is not None and not given.repository.is_dir():
            parser.error(f"--repository: '{given.repository}' is not a folder; expected the server's model repository")
        runs = _runs(parser, given)
        if given.rollback:
            return _roll_back(given, runs[0].model)
        statuses = [_run(given, settings) for settings in runs]
        return max(statuses)
    except KnobError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ConchError, ServerRefusal, ServerUnreachable, TuningInProgress, RuntimeError, ValueError, OSError) as error:
        print(f"conch tune: {error}", file=sys.stderr)
        return _FAILURE


def _parser() -> CommandParser:
    from argparse import RawDescriptionHelpFormatter

    parser = CommandParser(
        "conch tune", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="the model; optional with a configuration file")
    parser.add_argument("--url", "-u", help=f"URL of the server (default: {_DEFAULT_URL})")
    parser.add_argument("--config-file", "-f", type=Path, metavar="FILE", help="YAML of Model Analyzer's profile")
    _add_goal(parser)
    _add_load(parser)
    _add_search(parser)
    _add_result(parser)
    _add_access(parser)
    return parser


def _add_goal(parser: CommandParser) -> None:
    goal = parser.add_argument_group("goal", f"figures: {', '.join(METRICS)}")
    goal.add_argument("--maximize", metavar="FIGURE", action="append", default=[], help="default: throughput")
    goal.add_argument("--minimize", metavar="FIGURE", action="append", default=[])
    for name in ("avg", "p50", "p90", "p95", "p99"):
        goal.add_argument(f"--max-{name}", type=duration, metavar="TIME", help=f"{name} of latency, such as 50ms")
    goal.add_argument("--min-throughput", type=float, metavar="N", help="requests per second")
    goal.add_argument("--max-memory", type=_bytes, metavar="SIZE", help="of the server's processes, such as 4GB")
    goal.add_argument("--max-gpu-memory", type=_bytes, metavar="SIZE", help="of all GPUs together")
    goal.add_argument("--goodput", action="store_true", help="maximize requests per second that meet --slo")
    goal.add_argument("--slo", type=slo, default={}, metavar="LIST", help="such as ttft:200ms,itl:30ms,latency:1s")


def _add_load(parser: CommandParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--protocol", choices=("http", "grpc", "grpc-stream", "openai", "generate"), default="http")
    levels = ",".join(map(str, DEFAULT_CONCURRENCY))
    load.add_argument(
        "--concurrency", type=_integers, metavar="LIST", help=f"concurrent users, tried each (default: {levels})"
    )
    load.add_argument("--rate", type=_numbers, metavar="LIST", help="requests per second in place of users")
    load.add_argument("--batch-size", "-b", type=int, metavar="N", help="of each request (default: 1)")
    load.add_argument("--input-data", metavar="WHAT", help="random, zero, or a file; see conch bench")
    load.add_argument("--images", metavar="DIR", help="folder of images to send")
    load.add_argument("--shape", type=_shape, action="append", default=[], metavar="NAME:DIMS", help="of an input")
    load.add_argument("--prompt-tokens", type=int, metavar="N")
    load.add_argument("--output-tokens", type=int, metavar="N")
    load.add_argument("--window", type=duration, metavar="TIME", help="of a measurement (default: 3s)")
    load.add_argument("--warm-up", type=duration, metavar="TIME", help="before a measurement (default: 1s)")


def _add_search(parser: CommandParser) -> None:
    search = parser.add_argument_group("search")
    search.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="[MODEL/]NAME[=VALUES]",
        help="tune this knob, with values such as 1,2,4 or 1:4; MODEL is a composing model. See --list-knobs",
    )
    search.add_argument("--list-knobs", action=_ListKnobs, nargs=0, help="list the knobs and exit")
    search.add_argument("--composing", type=_names, metavar="LIST", help="models that a BLS model calls")
    search.add_argument("--max-instances", type=int, metavar="N", help="default: twice the cores")
    search.add_argument(
        "--search", choices=tuple(STRATEGIES), default=None, help=f"strategy (default: {DEFAULT_STRATEGY})"
    )
    search.add_argument(
        "--share", type=_share, metavar="PERCENT", help=f"of the grid, at most (default: {DEFAULT_SHARE * 100:.0f})"
    )
    search.add_argument("--time-budget", type=duration, metavar="TIME", help="of the whole run, such as 10m")
    search.add_argument("--finalists", type=int, metavar="N", help="measured beside the current one (default: 3)")
    search.add_argument("--rounds", type=int, metavar="N", help="of interleaved measurements (default: 5)")
    search.add_argument("--seed", type=int, default=0, metavar="N")
    search.add_argument("--fresh", action="store_true", help="ignore the trials of an interrupted run")


def _add_result(parser: CommandParser) -> None:
    result = parser.add_argument_group("result")
    result.add_argument("--repository", type=Path, metavar="DIR", help="local folder of the server's repository")
    result.add_argument("--apply", action="store_true", help="keep the best: in --repository, or on the server only")
    result.add_argument("--rollback", action="store_true", help="undo the last --apply")
    result.add_argument("--restore", action="store_true", help="restore models that a killed run has left changed")
    result.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    result.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")


def _add_access(parser: CommandParser) -> None:
    access = parser.add_argument_group("access")
    access.add_argument("--grpc-url", metavar="URL", help="default: the port after that of --url")
    access.add_argument("--metrics-url", metavar="URL", help="metrics of the server, for memory")
    access.add_argument("--gpu-metrics-url", metavar="URL", help="of conch gpu-exporter or dcgm-exporter")
    access.add_argument("--api-key-file", metavar="FILE", help="default: the variable CONCH_API_KEY")
    access.add_argument("--ca-file", metavar="FILE", help="certificates to trust")
    access.add_argument(
        "--server-wait", type=duration, default=_RESTORE_WAIT_S, metavar="TIME", help="for a server that is gone"
    )
    access.add_argument("--state-dir", type=Path, metavar="DIR", help="default: $XDG_STATE_HOME/conch/tune")


class _ListKnobs(Action):
    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        for knob in KNOBS.values():
            default = "default" if knob.default else ""
            print(
                f"{knob.name:22} {default:8} {', '.join(knob.backends or ('all',)):40} {knob.fields}\n    {knob.help}"
            )
        parser.exit()


# Values


def _bytes(text: str) -> float:
    units = {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20}
    for unit, size in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    raise ArgumentTypeError(f"'{text}' needs a unit: {', '.join(units)}")


def _integers(text: str) -> tuple[int, ...]:
    if not all(part.strip().isdecimal() and int(part) > 0 for part in text.split(",")):
        raise ArgumentTypeError(f"'{text}' is not a list of whole numbers above 0, such as 1,4,16")
    return tuple(dict.fromkeys(int(part) for part in text.split(",")))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a list of numbers, such as 100,200") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ArgumentTypeError(f"'{text}' must be above 0 and at most 100 %")
    return share


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition(":")
    if not name:
        raise ArgumentTypeError(f"'{text}' must be NAME:DIMS, such as INPUT:3,224,224")
    return name, _integers(dims)


# Settings


def _runs(parser: CommandParser, given: Namespace) -> list[TuneSettings]:
    """Return the settings of each model, from the file and then the flags. Exits with status 2 for wrong flags."""
    if given.config_file is None:
        if given.model is None:
            parser.error("a model is needed, such as: conch tune densenet_onnx")
        return [_with_flags(parser, given, TuneSettings(given.model, trial=TrialSettings(protocol=given.protocol)))]
    from conch.tuning.model_analyzer import read_profile

    profile = read_profile(read_text(given.config_file), str(given.config_file))
    for notice in profile.notices:
        print(notice, file=sys.stderr)
    given.url = given.url or profile.url
    runs = [each for each in profile.runs if given.model in (None, each.model)]
    if not runs:
        known = ", ".join(each.model for each in profile.runs)
        parser.error(f"'{given.config_file}' has no model '{given.model}'; it has {known}")
    return [_with_flags(parser, given, each) for each in runs]


def _with_flags(parser: CommandParser, given: Namespace, settings: TuneSettings) -> TuneSettings:
    return replace(
        settings,
        goal=_goal(parser, given, settings.goal),
        knobs=_knobs(given) or settings.knobs,
        max_instances=given.max_instances or settings.max_instances,
        composing=given.composing or settings.composing,
        trial=_trial(given, settings.trial),
        search=_search(given, settings.search),
    )


def _goal(parser: CommandParser, given: Namespace, default: Goal) -> Goal:
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
    return Goal(tuple(objectives) or default.objectives, (*default.constraints, *constraints))


def _knobs(given: Namespace) -> dict[str, dict[str, tuple[Value, ...] | None]]:
    found: dict[str, dict[str, tuple[Value, ...] | None]] = {}
    for text in given.knob:
        path, _, values = text.partition("=")
        model, _, name = path.rpartition("/")
        if name not in KNOBS:
            raise KnobError(f"unknown knob '{name}'; known: {', '.join(KNOBS)}")
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


# Actions


def _access(given: Namespace) -> ServerAccess:
    url = given.url or _DEFAULT_URL
    key_file = None if given.api_key_file is None else str(Path(given.api_key_file).resolve())
    return ServerAccess(url if "://" in url else f"http://{url}", key_file, given.ca_file)


def _state_directory(given: Namespace) -> Path:
    return given.state_dir or default_state_directory()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(given: Namespace, settings: TuneSettings) -> int:
    from conch.cli.tune.view import tune_view
    from conch.tuning.trials.bench_meter import BenchMeter
    from conch.tuning.trials.observers import trial_observers
    from conch.tuning.trials.runner import is_local
    from conch.tuning.tuner import TuneContext, Tuner

    access = _access(given)
    client = RepositoryClient(access)
    client.server()
    folder = StateFolder.of(_state_directory(given), access.url, settings.model)
    view = tune_view(settings.goal)
    observers = trial_observers(access, settings)
    context = TuneContext(
        client,
        folder,
        BenchMeter(access, settings.model, settings.trial, observers),
        view,
        usable_cores() if is_local(access.url) else _REMOTE_CORES,
        given.repository,
        given.fresh,
        given.server_wait,
    )
    session = ModelSession(client, folder, settings.model, _say)
    session.open()
    failures: list[str] = []
    try:
        with _interruptible():
            tuner = Tuner(settings, context, session)
            outcome = tuner.run()
        view.close()
        outcome = _with_differences(given, tuner, outcome)
        _report(given, outcome)
        if given.apply and outcome.winner is not None:
            _apply(given, client, folder, session, tuner, outcome)
    finally:
        view.close()
        with _uninterruptible():
            failures = session.restore(given.server_wait)
            for failure in failures:
                _say(failure)
            session.close()
    if failures or outcome.ended.startswith("the server is gone"):
        return _FAILURE
    return _INTERRUPTED if outcome.ended == "interrupted" else 0


def _file_changes(
    given: Namespace, tuner: "Tuner", settings: Mapping[str, Value], model: str
) -> list[tuple[str, "FileChange"]]:
    """Return the files of the local repository that settings change, each with its model."""
    from conch.tuning.state.applied import FileChange, file_change
    from conch.tuning.trials.deployment import split_settings

    found = []
    for name, own in split_settings(model, settings).items():
        if (change := file_change(given.repository, name, tuner.documents[name], own)) is not None:
            found.append((name, change))
    texts = tuner.deployment.engine_texts(settings)
    return [*found, *((name, FileChange(str(path), old, new)) for name, (path, old, new) in texts.items())]


def _with_differences(given: Namespace, tuner: "Tuner", outcome: "TuneOutcome") -> "TuneOutcome":
    """Return the outcome with the differences of the files that the winner changes."""
    from conch.tuning.state.applied import fields_difference, file_difference
    from conch.tuning.trials.deployment import split_settings

    finalist = outcome.finalist(outcome.winner or "")
    if finalist is None:
        return outcome
    diffs: dict[str, str] = {}
    if given.repository is not None:
        for name, change in _file_changes(given, tuner, finalist.settings, outcome.model):
            diffs[name] = diffs.get(name, "") + file_difference(change)
    else:
        for name, own in split_settings(outcome.model, finalist.settings).items():
            if text := fields_difference(name, tuner.documents[name], own):
                diffs[name] = text
    return replace(outcome, diffs=diffs)


def _apply(
    given: Namespace,
    client: RepositoryClient,
    folder: StateFolder,
    session: ModelSession,
    tuner: "Tuner",
    outcome: "TuneOutcome",
) -> None:
    """Keep the winner, if it changes the model and not only the load.

    Raises ServerRefusal, ServerUnreachable, OSError; then the models are restored.
    """
    from conch.tuning.state.applied import apply_to_repository, apply_to_server
    from conch.tuning.state.saved_state import SavedModel

    finalist = outcome.finalist(outcome.winner or "")
    if finalist is None or not outcome.diffs:
        return
    saved = tuple(SavedModel(name, tuner.documents[name]) for name in outcome.diffs)
    with _uninterruptible():
        failures = session.restore(given.server_wait)
        if failures:
            raise RuntimeError("; ".join(failures))
        if given.repository is None:
            documents = tuner.deployment.documents(finalist.settings)
            apply_to_server(client, folder, {name: documents[name] for name in outcome.diffs}, saved)
            where = "on the server, until the model is loaded again; --repository DIR --apply writes config.pbtxt"
        else:
            changes = _file_changes(given, tuner, finalist.settings, outcome.model)
            apply_to_repository(client, folder, changes, saved)
            where = f"to {', '.join(change.path for _, change in changes)}; --rollback undoes it"
    _say(f"applied {where}")


def _report(given: Namespace, outcome: "TuneOutcome") -> None:
    from rich.console import Console

    from conch.tuning.report.document import to_json
    from conch.tuning.report.page import page
    from conch.tuning.report.terminal import print_outcome

    print_outcome(outcome, Console(width=None if sys.stdout.isatty() else 160, highlight=False))
    if given.json is not None:
        write_text("conch tune", given.json, to_json(outcome))
    if given.html is not None:
        write_text("conch tune", given.html, page(outcome))


def _restore(given: Namespace) -> int:
    """Restore all models that killed runs have left, or those of one model and URL."""
    from conch.tuning.state.saved_state import restore, saved_state

    directory = _state_directory(given)
    failures: list[str] = []
    found = 0
    for path in sorted(directory.glob("*/restore.json")):
        folder = StateFolder(path.parent)
        saved = saved_state(folder)
        if saved is None or (given.model is not None and saved.model != given.model):
            continue
        found += 1
        if not folder.lock():
            failures.append(f"model '{saved.model}': process {saved.pid} works on it")
            continue
        access = saved.access if given.url is None else _access(given)
        try:
            failures += restore(RepositoryClient(access), folder, saved, _say)
        except ServerUnreachable as error:
            failures.append(f"model '{saved.model}': {error}")
        finally:
            folder.unlock()
    for failure in failures:
        _say(failure)
    if not found:
        _say(f"nothing to restore in {directory}")
    return _FAILURE if failures else 0


def _roll_back(given: Namespace, model: str) -> int:
    from conch.tuning.state.applied import read_applied, roll_back

    access = _access(given)
    folder = StateFolder.of(_state_directory(given), access.url, model)
    change = read_applied(folder)
    if change is None:
        _say(f"nothing was applied to model '{model}' of {access.url}")
        return _FAILURE
    for line in roll_back(RepositoryClient(access), folder, change):
        _say(line)
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C: the run ends, and the models are restored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), interrupt)):
        yield


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """Finish what must not be left half done; SIGKILL remains."""

    def refuse(_number: int, _frame: FrameType | None) -> None:
        _say("restoring the models; this ends by itself")

    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), refuse)):
        yield


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
