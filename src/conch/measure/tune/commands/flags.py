"""The flags of `conch tune`."""

from argparse import Action, ArgumentParser, ArgumentTypeError
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import duration, slo
from conch.base.http.api_key import KEY_HELP
from conch.measure.tune.knobs import KNOBS
from conch.measure.tune.objective import METRICS
from conch.measure.tune.search.strategies import DEFAULT_STRATEGY, STRATEGIES
from conch.measure.tune.settings import DEFAULT_CONCURRENCY, DEFAULT_SHARE

DEFAULT_URL = "http://localhost:8000"
_RESTORE_WAIT_S = 60.0

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


def tune_parser() -> CommandParser:
    """Return the parser of all flags."""
    from argparse import RawDescriptionHelpFormatter

    parser = CommandParser(
        "conch tune", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="the model; optional with --restore")
    parser.add_argument("--url", "-u", help=f"URL of the server (default: {DEFAULT_URL})")
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
    access.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
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
