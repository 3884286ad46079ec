"""`conch autoscale`: compare autoscalers by a simulated day, and explain one that does not scale."""

from collections.abc import Sequence

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.flags import settings_of
from conch.base.command_line.say import say
from conch.base.errors import ConchError
from conch.operate.scaling.commands.flags import GROUPS, DoctorSettings, SimulationSettings

_USAGE_ERROR = 2

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

            return doctor(settings_of(DoctorSettings, given, files=tuple(given.files)))
        from conch.operate.scaling.commands.simulate import run_simulations

        return run_simulations(settings_of(SimulationSettings, given))
    except (ConchError, ValueError) as error:
        say(f"conch autoscale {given.command}: {error}")
        return _USAGE_ERROR


def _parser() -> CommandParser:
    parser = CommandParser("conch autoscale", description="Choose how the number of replicas follows the load.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    simulate = commands.add_parser(
        "simulate",
        help="simulate autoscalers over a day of traffic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=LaidOutHelp,
    )
    simulate.add_flags(SimulationSettings, dict.fromkeys(GROUPS, ""))
    examine = commands.add_parser(
        "doctor",
        help="find out why an autoscaler shows <unknown>, or only scales up",
        description=_DOCTOR,
        epilog=_DOCTOR_EPILOG,
        formatter_class=LaidOutHelp,
    )
    examine.add_argument(
        "files", nargs="*", metavar="FILE", help="manifests, rule files, values of the adapter; - is stdin"
    )
    examine.add_flags(DoctorSettings)
    return parser
