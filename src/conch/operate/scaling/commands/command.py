"""`conch autoscale`: compare autoscalers by a simulated day, and explain one that does not scale."""

import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import amount, count, duration, fraction, slo
from conch.base.errors import ConchError

_FAILURE, _USAGE_ERROR = 1, 2
DEFAULT_POLICIES = ("ratio", "utilization", "utilization+ratio", "pending", "predict")

_DESCRIPTION = "Simulates autoscalers of Kubernetes and KEDA over a day of traffic, and compares them."
_EPILOG = """
  conch autoscale simulate --traffic diurnal:200:1000 --service-time 20ms --instances 4 --cold-start 40s
  conch autoscale simulate --traffic burst:100:800:10m/2h --policy ratio:500m --policy predict --policy counter:1000
  conch autoscale simulate --traffic requests.csv --service-time bench.json --hpa hpa.yaml --scaled-object keda.yaml
  conch autoscale simulate --traffic diurnal:5:40 --llm 500/200 --slots 32 --slo ttft:2s --policy kv --policy waiting
  conch autoscale simulate --traffic diurnal:200:1000 --service-time 20ms --fault prometheus-down:12h:30m

traffic: steady:RATE, diurnal:LOW:HIGH[:PEAK HOUR], burst:BASE:BURST:ON/PERIOD, ramp:START:END:TIME,
counts:TIME:FILE (numbers of requests per TIME), or a recorded load as of conch bench --trace
policies: ratio, utilization, rps, pending, kv, waiting, or several of them as utilization+ratio; predict, keda, ttft,
counter, fixed. :TARGET sets the target, as in ratio:500m
faults: prometheus-down:AT:TIME, metric-missing:AT:TIME, kill:AT[:N], drain:AT[:N], never-ready:AT[:N]
"""

_DOCTOR = """\
Follow the metrics of a HorizontalPodAutoscaler from the pods through Prometheus, rules and adapter to the autoscaler,
and name the link that is broken. Reads manifests, the output of kubectl get --output yaml, or the cluster through
kubectl proxy. The exit status is 1 if a link is broken.
"""
_DOCTOR_EPILOG = """
  conch autoscale doctor hpa.yaml deployment.yaml monitor.yaml rules.yaml
  conch k8s render gpt2 -f gpt2_values.yaml | conch autoscale doctor -
  kubectl proxy & conch autoscale doctor --api http://127.0.0.1:8001 --namespace default --prometheus http://127.0.0.1:9090
"""


def autoscale(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "doctor":
            from conch.operate.scaling.commands.doctor import doctor

            return doctor(given)
        from conch.operate.scaling.commands.simulate import run_simulations

        return run_simulations(given)
    except ModuleNotFoundError as error:
        print(
            f"conch autoscale: {error.name} is not installed; pip install 'conch-server[deploy]'",
            file=sys.stderr,
        )
        return _FAILURE
    except (ConchError, ValueError) as error:
        print(f"conch autoscale {given.command}: {error}", file=sys.stderr)
        return _USAGE_ERROR


def _parser() -> CommandParser:
    parser = CommandParser("conch autoscale", description="Choose how the number of replicas follows the load.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    simulate = commands.add_parser(
        "simulate",
        help="simulate autoscalers over a day of traffic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    _add_policies(simulate)
    _add_load(simulate)
    _add_environment(simulate)
    _add_result(simulate)
    examine = commands.add_parser(
        "doctor",
        help="find out why an autoscaler shows <unknown>, or only scales up",
        description=_DOCTOR,
        epilog=_DOCTOR_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    _add_doctor(examine)
    return parser


def _add_policies(parser: CommandParser) -> None:
    policies = parser.add_argument_group("policies")
    policies.add_argument(
        "--hpa", type=Path, action="append", default=[], metavar="FILE", help="HorizontalPodAutoscaler"
    )
    policies.add_argument("--scaled-object", type=Path, action="append", default=[], metavar="FILE", help="of KEDA")
    policies.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME[:TARGET]",
        help=f"built-in policy, repeatable (default: {', '.join(DEFAULT_POLICIES)})",
    )
    policies.add_argument(
        "--min-replicas", type=count, default=1, metavar="N", help="of built-in policies (default: 1)"
    )
    policies.add_argument("--max-replicas", type=count, metavar="N", help="default: three times what the peak needs")


def _add_load(parser: CommandParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--traffic", required=True, metavar="LOAD", help="such as diurnal:200:1000; see below")
    load.add_argument("--duration", type=duration, default=86400.0, metavar="TIME", help="of synthetic loads (24h)")
    load.add_argument("--scale", type=_positive, default=1.0, metavar="FACTOR", help="of the rates (default: 1)")
    load.add_argument("--noise", type=_share, default=0.05, metavar="PERCENT", help="of synthetic loads (default: 5%%)")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="of the noise (default: 0)")
    load.add_argument("--service-time", metavar="TIME|FILE", help="of one request, or a report of conch bench as JSON")
    load.add_argument("--variation", type=_not_negative, default=0.5, help="standard deviation / mean of times (0.5)")
    load.add_argument("--instances", type=count, metavar="N", help="of a replica (default: 1, or as the report shows)")
    load.add_argument(
        "--batch", default="1", metavar="SIZE[:COST]", help="largest batch; COST of one more request, 0 to 1"
    )
    load.add_argument("--llm", type=_tokens, metavar="PROMPT/OUTPUT", help="tokens of a request to a language model")
    load.add_argument("--prefill-rate", type=_positive, default=5000.0, metavar="N", help="tokens/s (default: 5000)")
    load.add_argument(
        "--decode-rate", type=_positive, default=40.0, metavar="N", help="tokens/s of a sequence (default: 40)"
    )
    load.add_argument("--slots", type=count, default=32, metavar="N", help="sequences at a time (default: 32)")
    load.add_argument("--kv-tokens", type=float, default=0.0, metavar="N", help="of the KV cache (default: full slots)")


def _add_environment(parser: CommandParser) -> None:
    environment = parser.add_argument_group("environment")
    environment.add_argument(
        "--slo", type=slo, default={"latency": 0.2}, metavar="TARGET", help="latency:200ms or ttft:1s"
    )
    environment.add_argument("--objective", type=fraction, default=0.99, metavar="SHARE", help="that meets it (99%%)")
    environment.add_argument(
        "--cold-start", type=duration, default=40.0, metavar="TIME", help="until ready (default: 40s)"
    )
    environment.add_argument(
        "--image-pull", type=duration, default=0.0, metavar="TIME", help="before that (default: 0s)"
    )
    environment.add_argument("--initial-replicas", type=count, metavar="N", help="default: as the first load needs")
    environment.add_argument(
        "--max-queue", type=count, metavar="N", help="waiting requests of a replica; more are rejected"
    )
    environment.add_argument("--scrape-interval", type=duration, default=15.0, metavar="TIME", help="default: 15s")
    environment.add_argument("--rule-interval", type=duration, default=15.0, metavar="TIME", help="default: 15s")
    environment.add_argument("--adapter-lag", type=duration, default=0.0, metavar="TIME", help="default: 0s")
    environment.add_argument("--sync-period", type=duration, default=15.0, metavar="TIME", help="of the HPA (15s)")
    environment.add_argument(
        "--fault", action="append", default=[], metavar="FAULT", help="such as kill:3h:2; see below"
    )


def _add_result(parser: CommandParser) -> None:
    result = parser.add_argument_group("result")
    result.add_argument(
        "--name", default="conch", help="of the Deployment that built-in policies scale (default: conch)"
    )
    result.add_argument("--namespace", "-n", default="default", help="default: default")
    result.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="write the winner's YAML, instead of printing it"
    )
    result.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    result.add_argument("--html", type=Path, metavar="FILE", help="write plots as one page")


def _share(text: str) -> float:
    return 0.0 if text in {"0", "0%"} else fraction(text)


def _positive(text: str) -> float:
    if (value := _number(text)) > 0:
        return value
    raise ArgumentTypeError(f"'{text}' is not a number above 0")


def _not_negative(text: str) -> float:
    if (value := _number(text)) >= 0:
        return value
    raise ArgumentTypeError(f"'{text}' is not a number of at least 0")


def _number(text: str) -> float:
    """Return a finite number, or -1."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if isfinite(value) else -1.0


def _tokens(text: str) -> tuple[int, int]:
    prompt, slash, output = text.partition("/")
    if not slash:
        raise ArgumentTypeError(f"'{text}' is not PROMPT/OUTPUT in tokens, such as 500/200")
    return amount(prompt)[0], amount(output)[0]


def _add_doctor(parser: CommandParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="manifests, rule files, values of the adapter; - is stdin"
    )
    parser.add_argument("--api", metavar="URL", help="API server without a login: what kubectl proxy prints")
    parser.add_argument("--prometheus", metavar="URL", help="Prometheus, such as http://127.0.0.1:9090")
    parser.add_argument("--namespace", "-n", default="default", help="of the autoscaler (default: default)")
    parser.add_argument("--name", default="", help="of the autoscaler (default: each)")
    parser.add_argument("--json", action="store_true", help="print JSON")
