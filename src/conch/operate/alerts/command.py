"""`conch alerts`: receive webhooks of Alertmanager and deliver them to chat services."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.option_types import port_or_any
from conch.base.command_line.say import say

if TYPE_CHECKING:
    from conch.operate.alerts.configuration import ReceiverConfig

_FAILURE, _USAGE_ERROR = 1, 2
_DEFAULT_PORT = 9096


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """The flags of `conch alerts receive`."""

    queue: Path = flag_field(Path("alerts-queue"), "", "folder of the queue (alerts-queue)", value_kind("DIR", Path))
    address: str = flag_field("127.0.0.1", "", "address to listen on (127.0.0.1)", value_kind("ADDRESS"))
    port: int = flag_field(_DEFAULT_PORT, "", f"port; 0 for any ({_DEFAULT_PORT})", value_kind("PORT", port_or_any))
    log_format: str = flag_field("default", "", "form of log lines", one_of("default", "ISO8601", "json"))


def alerts(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 after a failure, 2 for an invalid configuration."""
    given = _parser().parse_args(arguments)
    from conch.base.errors import ConfigError
    from conch.operate.alerts.read_configuration import read_configuration

    try:
        config = read_configuration(given.config)
        if given.command == "receive":
            return _receive(config, settings_of(ReceiverOptions, given))
        if given.command == "test":
            return _test(config, given)
        return _config(config, given)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"conch alerts {given.command}: {line}", file=sys.stderr)
    return _USAGE_ERROR


def _receive(config: "ReceiverConfig", options: ReceiverOptions) -> int:
    from conch.operate.alerts.receiver import run_receiver

    try:
        run_receiver(config, options.queue, options.address, options.port, options.log_format)
    except OSError as error:
        place, reason = f"{options.address}:{options.port}", error.strerror or str(error)
        print(f"conch alerts receive: cannot listen on {place}: {reason}; --port chooses another", file=sys.stderr)
        return _FAILURE
    return 0


def _test(config: "ReceiverConfig", given: Namespace) -> int:
    from conch.operate.alerts.chat_services import Verdict
    from conch.operate.alerts.posting import HttpPoster, attempt
    from conch.operate.alerts.webhook import sample_alert

    names = given.target or list(config.targets)
    failed, verdicts = False, dict[str, dict[str, str]]()
    for name in names:
        target = config.targets.get(name)
        if target is None:
            print(f"conch alerts test: unknown target '{name}'; known are {', '.join(config.targets)}", file=sys.stderr)
            return _USAGE_ERROR
        outcome = attempt(target, [sample_alert()], HttpPoster(target.ca_file))
        verdicts[name] = {"verdict": outcome.verdict.value, "reason": outcome.reason}
        failed = failed or outcome.verdict is not Verdict.DELIVERED
        if given.json:
            continue
        if outcome.verdict is Verdict.DELIVERED:
            print(f"{name}: {target.service.name} accepted the test message")
        else:
            say(f"{name}: {outcome.verdict.value}: {outcome.reason}")
    if given.json:
        print(json.dumps(verdicts))
    return _FAILURE if failed else 0


def _config(config: "ReceiverConfig", given: Namespace) -> int:
    from conch.operate.alerts.alertmanager_config import alertmanager_snippet

    print(alertmanager_snippet(config, given.url), end="")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch alerts", description="Deliver alerts of Alertmanager to DingTalk, Feishu, WeCom, Slack and other URLs."
    )
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    receiving = commands.add_parser("receive", help="receive webhooks and deliver them", description=_RECEIVE)
    testing = commands.add_parser("test", help="send a test message to targets", description=_TEST)
    showing = commands.add_parser(
        "config", help="print the receiver for alertmanager.yml", description="Print the receiver for alertmanager.yml."
    )
    for command in (receiving, testing, showing):
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration in YAML")
    receiving.add_flags(ReceiverOptions)
    testing.add_argument("--target", action="append", metavar="NAME", help="only this target; repeatable")
    testing.add_argument("--json", action="store_true", help="print JSON: verdict and reason of each target")
    showing.add_argument(
        "--url", default=f"http://127.0.0.1:{_DEFAULT_PORT}/", help="where Alertmanager reaches the receiver"
    )
    return parser


_RECEIVE = (
    "Accept webhooks of Alertmanager (POST /), store their alerts in a queue on disk, and deliver them to the targets "
    "of the configuration, with retries. Serves /metrics and /-/healthy."
)
_TEST = "Send a test message to each target, without the queue, and print whether it was accepted."
