"""`conch rules`: write rules for Prometheus and Alertmanager, list them, and prove those of users."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from conch.cli.command_parser import CommandParser
from conch.monitoring.rules.thresholds import Thresholds

_FAILURE = 1
_DEFAULT_JOBS = "conch|triton|gpu-exporter"
_DEFAULT_WEBHOOK = "http://127.0.0.1:9096/"
_PROVE = """\
Find alerts that can never fire, and say why: unknown metrics, labels that no series has, rates of gauges, raw
counters, thresholds out of reach. For the others, find series that make them fire; this needs promtool.
The exit status is 1 if an alert can never fire or a rule is wrong.
"""


def rules(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "prove":
            from conch.cli.rules.prove import prove

            return prove(given)
        text = _document(given)
    except ModuleNotFoundError as error:
        print(f"conch rules: {error.name} is not installed; pip install 'conch-server[monitoring]'", file=sys.stderr)
        return _FAILURE
    except OSError as error:
        print(f"conch rules: {error}", file=sys.stderr)
        return _FAILURE
    if given.output is None:
        sys.stdout.write(text)
    else:
        given.output.write_text(text, encoding="utf-8")
    return 0


def _document(given: Namespace) -> str:
    from conch.monitoring.rules.documents import alertmanager_file, prometheus_rule, rule_file
    from conch.monitoring.rules.groups import rule_groups
    from conch.monitoring.yaml_documents import dump_documents

    if given.command == "alertmanager":
        return dump_documents([alertmanager_file(given.webhook)])
    thresholds = Thresholds(**{name: getattr(given, name) for name, *_ in Thresholds.options()})
    groups = rule_groups(thresholds, given.jobs)
    if given.command == "list":
        from conch.cli.rules.listing import rule_table

        return rule_table(groups, as_json=given.json)
    if given.command == "operator":
        return dump_documents([prometheus_rule(groups, given.name, given.namespace, dict(given.label or _RELEASE))])
    return dump_documents([rule_file(groups)])


# The label by which the Prometheus of the chart kube-prometheus-stack selects rules, for a release of that name.
_RELEASE = [("release", "kube-prometheus-stack")]


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch rules",
        description="Write recording rules, alerts and Alertmanager routes; find alerts that can never fire.",
    )
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    prometheus = commands.add_parser("prometheus", help="write a rule file for Prometheus")
    operator = commands.add_parser("operator", help="write a PrometheusRule object for the Prometheus operator")
    operator.add_argument("--name", default="conch", help="name of the object (default: %(default)s)")
    operator.add_argument("--namespace", help="namespace of the object")
    operator.add_argument(
        "--label",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        help="label that the operator's ruleSelector matches; repeatable (default: release=kube-prometheus-stack)",
    )
    routes = commands.add_parser("alertmanager", help="write a configuration of Alertmanager with routes to a webhook")
    routes.add_argument(
        "--webhook",
        metavar="URL",
        default=_DEFAULT_WEBHOOK,
        help="address of conch alerts receive (default: %(default)s)",
    )
    listing = commands.add_parser("list", help="list the rules with their thresholds and proofs")
    listing.add_argument("--json", action="store_true", help="print JSON")
    proving = commands.add_parser("prove", help="find alerts that can never fire", description=_PROVE)
    proving.add_argument("files", metavar="FILE", nargs="+", type=Path, help="rule file or PrometheusRule, in YAML")
    proving.add_argument("--json", action="store_true", help="print JSON")
    proving.add_argument("--scrape-interval", metavar="SECONDS", type=_seconds, default=15.0, help="default: 15")
    proving.add_argument(
        "--target-label",
        metavar="NAME",
        action="append",
        default=[],
        help="label that your scrape configuration adds, besides the usual ones such as namespace and pod; repeatable",
    )
    proving.add_argument("--no-search", action="store_true", help="do not search for series that fire the alerts")
    for command in (prometheus, operator, listing):
        command.add_argument(
            "--jobs", metavar="REGEX", default=_DEFAULT_JOBS, help="scrape jobs of Conch (default: %(default)s)"
        )
        thresholds = command.add_argument_group("thresholds")
        for name, default, unit, text in Thresholds.options():
            thresholds.add_argument(
                f"--{name.replace('_', '-')}",
                dest=name,
                metavar=unit.upper(),
                type=_positive,
                default=default,
                help=f"{text} (default: {default:g})",
            )
    for command in (prometheus, operator, routes, listing):
        command.add_argument("--output", metavar="FILE", type=Path, help="write to a file instead of stdout")
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"'{text}' is not a number of 0 or more")
    return value


def _seconds(text: str) -> float:
    if (value := _positive(text)) == 0:
        raise ArgumentTypeError("must be more than 0 seconds")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value
