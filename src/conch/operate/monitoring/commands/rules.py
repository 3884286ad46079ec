"""`conch rules`: write rules for Prometheus and Alertmanager, list them, and prove those of users."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import write_text
from conch.base.command_line.flags import settings_of
from conch.base.command_line.option_types import count, label, namespace, object_name
from conch.base.command_line.say import say
from conch.base.errors import ConfigError, InvalidRequest
from conch.operate.monitoring.rules.thresholds import DEFAULT_JOBS, Thresholds, threshold

if TYPE_CHECKING:
    from conch.operate.monitoring.rules.rule import RuleGroup

_USAGE_ERROR = 2
_DEFAULT_WEBHOOK = "http://127.0.0.1:9096/"
_PROMETHEUS = "Write the recording rules and alerts as a rule file, which rule_files of prometheus.yml names."
_OPERATOR = (
    "Write the recording rules and alerts as a PrometheusRule object. The operator loads it only if it has the labels "
    "of its ruleSelector (--label)."
)
_ROUTES = (
    "Write a whole alertmanager.yml: urgent alerts sooner, informative ones rarely, and alerts that others explain "
    "suppressed. conch alerts config writes a minimal route to a receiver, with its credentials."
)
_LIST = "List the alerts with their conditions and near misses, for the thresholds that are given."
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
            from conch.operate.monitoring.commands.prove import prove

            return prove(given)
        text = _document(given)
    except (ConfigError, InvalidRequest) as error:
        say(f"conch rules {given.command}: {error}")
        return _USAGE_ERROR
    return write_text(f"conch rules {given.command}", given.output, text)


def _document(given: Namespace) -> str:
    from conch.base.yaml_documents import dump_documents
    from conch.operate.alerts.alertmanager_config import alertmanager_file, check_webhook_url
    from conch.operate.monitoring.promql import is_regular_expression
    from conch.operate.monitoring.rules.rule import prometheus_rule, rule_file
    from conch.operate.monitoring.rules.shipped_alerts import rule_groups

    if given.command == "alertmanager":
        check_webhook_url("--webhook", given.webhook)
        return dump_documents([alertmanager_file(given.webhook)])
    if not is_regular_expression(given.jobs):
        raise ConfigError(f"--jobs '{given.jobs}' is not a valid regular expression of RE2, such as {DEFAULT_JOBS}")
    groups = rule_groups(settings_of(Thresholds, given), given.jobs)
    if given.command == "list":
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
    prometheus = commands.add_parser("prometheus", help="write a rule file for Prometheus", description=_PROMETHEUS)
    operator = commands.add_parser(
        "operator", help="write a PrometheusRule object for the Prometheus operator", description=_OPERATOR
    )
    operator.add_argument("--name", type=object_name, default="conch", help="name of the object (default: %(default)s)")
    operator.add_argument("--namespace", type=namespace, help="namespace of the object")
    operator.add_argument(
        "--label",
        metavar="NAME=VALUE",
        type=label,
        action="append",
        help="label that the operator's ruleSelector matches; repeatable (default: release=kube-prometheus-stack)",
    )
    routes = commands.add_parser(
        "alertmanager", help="write a configuration of Alertmanager with routes to a webhook", description=_ROUTES
    )
    routes.add_argument(
        "--webhook",
        metavar="URL",
        default=_DEFAULT_WEBHOOK,
        help="address of conch alerts receive (default: %(default)s)",
    )
    listing = commands.add_parser("list", help="list the rules with their thresholds and proofs", description=_LIST)
    listing.add_argument("--json", action="store_true", help="print JSON")
    _add_prove(commands.add_parser("prove", help="find alerts that can never fire", description=_PROVE))
    for command in (prometheus, operator, listing):
        _add_thresholds(command)
    for command in (prometheus, operator, routes, listing):
        command.add_argument("--output", metavar="FILE", type=Path, help="write to a file instead of stdout")
    return parser


def _add_prove(proving: ArgumentParser) -> None:
    proving.add_argument("files", metavar="FILE", nargs="+", type=Path, help="rule file or PrometheusRule, in YAML")
    proving.add_argument("--json", action="store_true", help="print JSON")
    proving.add_argument(
        "--scrape-interval", metavar="SECONDS", type=threshold("seconds"), default=15.0, help="default: 15"
    )
    proving.add_argument(
        "--target-label",
        metavar="NAME",
        action="append",
        default=[],
        help="label that your scrape configuration adds, besides the usual ones such as namespace and pod; repeatable",
    )
    proving.add_argument(
        "--metric",
        metavar="NAME",
        action="append",
        default=[],
        help="metric that your exporters have though Conch does not know it; repeatable",
    )
    proving.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=threshold("seconds"),
        default=30.0,
        help="for the search for series of one rule (default: 30)",
    )
    proving.add_argument("--jobs", metavar="N", type=count, help="searches at a time (default: the number of CPUs)")
    proving.add_argument("--no-search", action="store_true", help="do not search for series that fire the alerts")


def _add_thresholds(command: CommandParser) -> None:
    command.add_argument(
        "--jobs", metavar="REGEX", default=DEFAULT_JOBS, help="scrape jobs of Conch (default: %(default)s)"
    )
    command.add_flags(Thresholds)


_WIDTH = 180


def rule_table(groups: "Sequence[RuleGroup]", *, as_json: bool) -> str:
    """Return the alerts as a table or as JSON."""
    from rich.console import Console
    from rich.table import Table

    from conch.operate.monitoring.promql import duration

    alerts: list[dict[str, Any]] = [
        {
            "group": group.name,
            "alert": alert.name,
            "severity": alert.severity,
            "expr": alert.expr,
            "for": duration(alert.for_s) if alert.for_s else "0s",
            "fires": [proof.what for proof in alert.proofs if proof.fires],
            "near_misses": [proof.what for proof in alert.proofs if not proof.fires],
        }
        for group in groups
        for alert in group.alerts
    ]
    if as_json:
        return json.dumps(alerts, indent=2) + "\n"
    table = Table("alert", "severity", "for", "fires if", "near misses", box=None, pad_edge=False, header_style="bold")
    for alert in alerts:
        near_misses = "; ".join(alert["near_misses"])
        table.add_row(alert["alert"], alert["severity"], alert["for"], alert["expr"], near_misses, end_section=True)
    stream = StringIO()
    Console(file=stream, width=_WIDTH, highlight=False).print(table)
    return stream.getvalue()
