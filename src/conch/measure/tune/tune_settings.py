"""What to tune, and how: the flags of `conch tune`, and the settings of a run that they make together."""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_field, settings_of
from conch.base.command_line.option_types import concurrencies, duration, rate_list, slo
from conch.base.errors import InvalidRequest
from conch.base.http.credentials import KEY_HELP
from conch.measure.bench.input_settings import REQUESTS, InputSettings
from conch.measure.tune.knobs import FIELD_PREFIX, KNOBS, KnobError, parse_values
from conch.measure.tune.objective import METRICS, Constraint, Goal
from conch.measure.tune.repository_client import ServerAccess
from conch.measure.tune.search import DEFAULT_STRATEGY, STRATEGIES
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import default_state_directory

DEFAULT_CONCURRENCY = (1, 4, 16)
_DEFAULT_SHARE = 0.2
_DEFAULT_URL = "http://localhost:8000"
_MAX_GRID = 100_000
_RESTORE_WAIT_S = 60.0

# Groups of flags.
GOAL, LOAD, SEARCH, RESULT, ACCESS = "goal", "load", "search", "result", "access"

_NUMBER, _TIME, _URL = value_kind("N", int), value_kind("TIME", duration), value_kind("URL")


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ArgumentTypeError(f"'{text}' must be above 0 and at most 100 %")
    return share


def _concurrencies(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(concurrencies(text)))


def _rates(text: str) -> tuple[float, ...]:
    from conch.domain.arrivals import parse_rates  # imports numpy

    try:
        return tuple(dict.fromkeys(parse_rates(rate_list(text))))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How one configuration is measured."""

    # fmt: off
    slo: Mapping[str, float] = flag_field(
        {}, GOAL, "such as ttft:200ms,itl:30ms,latency:1s", value_kind("LIST", slo))
    protocol: str = flag_field("http", LOAD, "", one_of("http", "grpc", "grpc-stream", "openai", "generate"))
    concurrency: tuple[int, ...] = flag_field(
        DEFAULT_CONCURRENCY, LOAD,
        f"concurrent users, tried each (default: {','.join(map(str, DEFAULT_CONCURRENCY))})",
        value_kind("LIST", _concurrencies))
    rates: tuple[float, ...] = flag_field(
        (), LOAD, "requests per second in place of users", value_kind("LIST", _rates), name="rate")
    inputs: InputSettings = settings_field(InputSettings)
    window_s: float = flag_field(3.0, LOAD, "of a measurement (default: 3s)", _TIME, name="window")
    warm_up_s: float = flag_field(1.0, LOAD, "before a measurement (default: 1s)", _TIME, name="warm-up")
    grpc_url: str | None = flag_field(None, ACCESS, "default: the port after that of --url", _URL)
    metrics_url: str | None = flag_field(None, ACCESS, "metrics of the server, for memory", _URL)
    gpu_metrics_url: str | None = flag_field(None, ACCESS, "of conch gpu-exporter or dcgm-exporter", _URL)
    # fmt: on
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the space is searched. `share` of the grid is measured, at most; `max_trials` bounds the number."""

    # fmt: off
    strategy: str = flag_field(
        DEFAULT_STRATEGY, SEARCH, f"strategy (default: {DEFAULT_STRATEGY})", one_of(*STRATEGIES), name="search")
    share: float | None = flag_field(
        None, SEARCH, f"of the grid, at most (default: {_DEFAULT_SHARE * 100:.0f})", value_kind("PERCENT", _share))
    time_budget_s: float | None = flag_field(
        None, SEARCH, "of the whole run, such as 10m", _TIME, name="time-budget")
    finalists: int = flag_field(3, SEARCH, "measured beside the current one (default: 3)", _NUMBER)
    rounds: int = flag_field(5, SEARCH, "of interleaved measurements (default: 5)", _NUMBER)
    seed: int = flag_field(0, SEARCH, "", _NUMBER)
    # fmt: on
    min_trials: int = 8
    max_trials: int = 200

    def trials(self, size: int) -> int:
        """Return how many of `size` configurations are measured, at most."""
        return min(size, max(self.min_trials, min(self.max_trials, int(size * (self.share or _DEFAULT_SHARE)))))


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """One run. `knobs`: model → knob → values, None for those tried by default; model "" is the tuned one.

    Without knobs for a model, those tuned by default are.
    """

    model: str
    goal: Goal = field(default_factory=Goal)
    knobs: Mapping[str, Mapping[str, tuple[Value, ...] | None]] = field(default_factory=dict)
    max_instances: int | None = None
    composing: tuple[str, ...] | None = None  # None: found by the server's configuration and statistics
    trial: TrialSettings = field(default_factory=TrialSettings)
    search: SearchSettings = field(default_factory=SearchSettings)


_DESCRIPTION = "Finds the configuration of a model that serves best, by measuring on a running server."
_EPILOG = """
The server must run with --model-control-mode=explicit. Configurations are loaded through the repository API and the
previous one is restored after any end of the run; --apply keeps the best.

  conch tune densenet_onnx                                        throughput at 1, 4 and 16 users
  conch tune detect --maximize throughput --max-p99 200ms         an ensemble: the stage to widen is found
  conch tune detector --knob instances=1:4 --knob backend=onnxruntime,openvino
  conch tune detector --repository models --apply                 writes config.pbtxt; --rollback undoes it

exit status: 0 measured, whether or not something better was found; 1 nothing measured, or the model could not be
restored; 2 usage; 130 ended by Ctrl-C, with a report of the trials until then
"""


def _bytes(text: str) -> float:
    units = {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20}
    for unit, size in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    raise ArgumentTypeError(f"'{text}' needs a unit: {', '.join(units)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_BARE, _FIGURE, _SIZE = value_kind(""), value_kind("FIGURE"), value_kind("SIZE", _bytes)
_DIR, _FILE = value_kind("DIR", Path), value_kind("FILE", Path)


@dataclass(frozen=True, slots=True)
class TuneFlags:
    """What the flags say."""

    # fmt: off
    model: str | None = None
    url: str | None = flag_field(
        None, "", f"URL of the server (default: {_DEFAULT_URL})", _URL, aliases=("u",))

    maximize: tuple[str, ...] = flag_field((), GOAL, "default: throughput", _FIGURE, repeatable=True)
    minimize: tuple[str, ...] = flag_field((), GOAL, "", _FIGURE, repeatable=True)
    max_avg: float | None = flag_field(None, GOAL, "avg of latency, such as 50ms", _TIME)
    max_p50: float | None = flag_field(None, GOAL, "p50 of latency, such as 50ms", _TIME)
    max_p90: float | None = flag_field(None, GOAL, "p90 of latency, such as 50ms", _TIME)
    max_p95: float | None = flag_field(None, GOAL, "p95 of latency, such as 50ms", _TIME)
    max_p99: float | None = flag_field(None, GOAL, "p99 of latency, such as 50ms", _TIME)
    min_throughput: float | None = flag_field(None, GOAL, "requests per second", value_kind("N", float))
    max_memory: float | None = flag_field(None, GOAL, "of the server's processes, such as 4GB", _SIZE)
    max_gpu_memory: float | None = flag_field(None, GOAL, "of all GPUs together", _SIZE)
    goodput: bool = flag_field(False, GOAL, "maximize requests per second that meet --slo", _BARE, bare=True)

    trial: TrialSettings = settings_field(TrialSettings)

    knob: tuple[str, ...] = flag_field(
        (), SEARCH,
        "tune this knob, with values such as 1,2,4 or 1:4; MODEL is a composing model. See --list-knobs",
        value_kind("[MODEL/]NAME[=VALUES]"), repeatable=True)
    list_knobs: bool = flag_field(False, SEARCH, "list the knobs and exit", _BARE, bare=True)
    composing: tuple[str, ...] | None = flag_field(
        None, SEARCH, "models that a BLS model calls", value_kind("LIST", _names))
    max_instances: int | None = flag_field(None, SEARCH, "default: twice the cores", _NUMBER)
    search: SearchSettings = settings_field(SearchSettings)
    fresh: bool = flag_field(False, SEARCH, "ignore the trials of an interrupted run", _BARE, bare=True)

    repository: Path | None = flag_field(None, RESULT, "local folder of the server's repository", _DIR)
    apply: bool = flag_field(
        False, RESULT, "keep the best: in --repository, or on the server only", _BARE, bare=True)
    rollback: bool = flag_field(False, RESULT, "undo the last --apply", _BARE, bare=True)
    restore: bool = flag_field(
        False, RESULT, "restore models that a killed run has left changed", _BARE, bare=True)
    json: Path | None = flag_field(None, RESULT, "write the report as JSON", _FILE)
    html: Path | None = flag_field(None, RESULT, "write the report as a page", _FILE)

    api_key_file: str | None = flag_field(None, ACCESS, KEY_HELP, value_kind("FILE"))
    ca_file: str | None = flag_field(None, ACCESS, "certificates to trust", value_kind("FILE"))
    server_wait: float = flag_field(_RESTORE_WAIT_S, ACCESS, "for a server that is gone", _TIME)
    state_dir: Path | None = flag_field(None, ACCESS, "default: $XDG_STATE_HOME/conch/tune", _DIR)
    # fmt: on

    def access(self) -> ServerAccess:
        """Return URL, key and certificates; a URL without a scheme is HTTP."""
        url = self.url or _DEFAULT_URL
        key_file = None if self.api_key_file is None else str(Path(self.api_key_file).resolve())
        return ServerAccess(url if "://" in url else f"http://{url}", key_file, self.ca_file)

    def state_directory(self) -> Path:
        """Return the folder for the state of all models."""
        return self.state_dir or default_state_directory()

    def settings(self) -> TuneSettings:
        """Return the settings of a run. Raises FlagError, KnobError."""
        if self.model is None:
            raise FlagError("a model is needed, such as: conch tune densenet_onnx")
        search = self.search
        if search.strategy == "grid":
            search = replace(search, share=search.share or 1.0, max_trials=_MAX_GRID)
        return TuneSettings(
            self.model,
            goal=self._goal(),
            knobs=self._knobs(),
            max_instances=self.max_instances or None,
            composing=self.composing or None,
            trial=replace(self.trial, inputs=replace(self.trial.inputs, seed=search.seed)),
            search=search,
        )

    def _goal(self) -> Goal:
        objectives = []
        for names, rising in ((self.maximize, True), (self.minimize, False)):
            for name in names:
                if name not in METRICS:
                    raise FlagError(f"unknown figure '{name}'; known: {', '.join(METRICS)}")
                if METRICS[name].rising is not rising:
                    raise FlagError(f"'{name}' is {'minimized' if rising else 'maximized'}")
                objectives.append(name)
        if self.goodput:
            if not self.trial.slo:
                raise FlagError("--goodput needs --slo, such as --slo latency:100ms")
            objectives.append("goodput")
        constraints = [
            Constraint(name, maximum=limit)
            for name in ("avg", "p50", "p90", "p95", "p99")
            if (limit := getattr(self, f"max_{name}")) is not None
        ]
        if self.min_throughput is not None:
            constraints.append(Constraint("throughput", minimum=self.min_throughput))
        for name, limit in (("cpu_memory", self.max_memory), ("gpu_memory", self.max_gpu_memory)):
            if limit is not None:
                constraints.append(Constraint(name, maximum=limit))
        return Goal(tuple(objectives) or Goal().objectives, tuple(constraints))

    def _knobs(self) -> dict[str, dict[str, tuple[Value, ...] | None]]:
        knobs: dict[str, dict[str, tuple[Value, ...] | None]] = {}
        for text in self.knob:
            path, _, values = text.partition("=")
            model, _, name = path.rpartition("/")
            is_field = name.startswith(FIELD_PREFIX)
            if name not in KNOBS and not is_field:
                raise KnobError(
                    f"unknown knob '{name}'; known: {', '.join(KNOBS)}, and {FIELD_PREFIX}PATH for any field"
                )
            if is_field and not values:
                raise KnobError(f"knob '{name}' needs values, such as {name}=0,1")
            knobs.setdefault(model, {})[name] = parse_values(name, values) if values else None
        return knobs


class FlagError(Exception):
    """A flag is wrong, or missing. The message says which."""


def tune_parser() -> CommandParser:
    """Return the parser of all flags."""
    parser = CommandParser("conch tune", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=LaidOutHelp)
    parser.add_argument("model", nargs="?", help="the model; optional with --restore")
    figures = f"figures: {', '.join(METRICS)}"
    parser.add_flags(TuneFlags, {GOAL: figures, LOAD: "", REQUESTS: "", SEARCH: "", RESULT: "", ACCESS: ""})
    return parser


def read_flags(parser: CommandParser, arguments: Sequence[str]) -> TuneFlags:
    """Parse the flags; exit with status 2 for wrong ones, or after the list of knobs."""
    try:
        given = parser.parse_args(arguments)
    except InvalidRequest as error:  # of a flag that conch bench has too
        parser.error(error.message)
    flags = settings_of(TuneFlags, given, model=given.model)
    if flags.list_knobs:
        for knob in KNOBS.values():
            default = "default" if knob.default else ""
            print(
                f"{knob.name:22} {default:8} {', '.join(knob.backends or ('all',)):40} {knob.fields}\n    {knob.help}"
            )
        parser.exit()
    return flags
