"""`conch tunnel`: metrics across a WAN through OpenSSH; `conch tunnel manifests`: the Kubernetes objects for it."""

import asyncio
import logging
import re
import shutil
from argparse import Action, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from random import random
from typing import TypeVar

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import write_text
from conch.base.command_line.flags import settings_of
from conch.base.command_line.option_types import port, port_or_any
from conch.base.suggestion import closest
from conch.operate.tunnel.manifests import ScrapedTunnel, manifests
from conch.operate.tunnel.ssh_command import Forward, TunnelSettings, parse_target

_FAILURE = 1
_STOP_TIMEOUT_S = 2.0
_MIN_SIMILARITY = 0.8  # of a misspelt command, which would otherwise be a host
DEFAULT_METRICS_PORT = 9405

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


def tunnel(arguments: Sequence[str]) -> int:
    """Run the tunnel until SIGTERM or SIGINT, or write manifests. Returns the exit status."""
    if arguments[:1] == ["manifests"]:
        return _write_manifests(arguments[1:])
    parser = _parser()
    forwards = {"--forward", "--reverse"} & {argument.partition("=")[0] for argument in arguments}
    if not forwards and closest("".join(arguments[:1]), ["manifests"], _MIN_SIMILARITY):
        parser.error(f"unknown command '{arguments[0]}'; did you mean 'manifests'?")
    given = parser.parse_args(arguments)
    settings = _settings(parser, given)
    from conch.base import logs

    logs.configure(logs.LogSettings(log_format=given.log_format))
    for forward in settings.forwards:
        if not forward.loopback:
            _log.warning("%s listens on a network: other hosts can read the metrics without authentication", forward)
    return asyncio.run(_run(settings, given.metrics_address, given.metrics_port))


async def _run(settings: TunnelSettings, address: str, port: int) -> int:
    from conch.base.process.stop_signals import stop_signals
    from conch.operate.tunnel.supervisor import Tunnel, TunnelState
    from conch.protocols.connections.listener import raise_file_limit
    from conch.protocols.http.metrics_page import MetricsPage, metrics_router
    from conch.protocols.http.server import HttpServer

    stopping = asyncio.ensure_future(stop_signals().wait())
    raise_file_limit()
    state = TunnelState(settings.name)
    handler = metrics_router(MetricsPage(state.exposition))
    server = HttpServer(handler, address, port, refusal=handler.refusal)
    try:
        await server.start()
    except OSError as error:
        _log.error("cannot listen on %s:%d: %s; --metrics-port chooses another", address, port, error.strerror)
        return _FAILURE
    _log.info("Started metrics of the tunnel at %s:%d", address, server.port)
    running = asyncio.ensure_future(Tunnel(settings, state, random).run())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if running.done() and (cause := running.exception()) is not None:
            _log.error("cannot start %s: %s", settings.ssh, cause)
            return _FAILURE
        return 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop(_STOP_TIMEOUT_S)


def _settings(parser: CommandParser, given: Namespace) -> TunnelSettings:
    """Check the arguments together. Exits with status 2 if ssh would refuse them."""
    name = given.name or given.target.rpartition("@")[2]
    settings = settings_of(TunnelSettings, given, target=given.target, forwards=tuple(given.forwards), name=name)
    if not settings.forwards:
        parser.error("--forward or --reverse is missing, such as --forward=9400:localhost:9400")
    for forward in settings.forwards:
        if not forward.loopback and not given.allow_remote_bind:
            parser.error(f"{forward} would listen on a network; bind to 127.0.0.1, or add --allow-remote-bind")
    if settings.max_backoff_s < settings.min_backoff_s:
        parser.error("--max-backoff-secs is less than --min-backoff-secs")
    if shutil.which(settings.ssh) is None:
        parser.error(f"the program '{settings.ssh}' is missing: apt-get install openssh-client, or --ssh=PATH")
    if (identity := settings.identity) is not None:
        if not identity.is_file():
            parser.error(f"--identity: the file {identity} does not exist")
        if identity.stat().st_mode & 0o077:
            parser.error(f"--identity: {identity} is readable by others, so that ssh ignores it; chmod 600 {identity}")
    if settings.known_hosts is not None and not settings.known_hosts.is_file():
        parser.error(
            f"--known-hosts: the file {settings.known_hosts} does not exist; write it with "
            f"ssh-keyscan -p {settings.ssh_port} {settings.host}, after comparing the fingerprint"
        )
    return settings


def _parser() -> CommandParser:
    parser = CommandParser(
        "conch tunnel",
        description="Forward a metrics port over SSH and keep the forward up. "
        "conch tunnel manifests writes the Kubernetes objects that scrape it.",
    )
    parser.add_argument("target", type=_target, metavar="[USER@]HOST", help="host that runs sshd")
    forwards = parser.add_argument_group("forwards", "[BIND:]PORT:HOST:PORT; BIND is 127.0.0.1 by default")
    forwards.add_argument(
        "--forward",
        action=_AddForward,
        dest="forwards",
        default=[],
        metavar="FORWARD",
        help="listen on this side, connect on the other (ssh -L); repeatable",
    )
    forwards.add_argument(
        "--reverse",
        action=_AddForward,
        dest="forwards",
        metavar="FORWARD",
        help="listen on the other side, connect on this one (ssh -R); repeatable",
    )
    forwards.add_argument(
        "--allow-remote-bind", action="store_true", help="allow a BIND that other hosts reach; metrics are then public"
    )
    parser.add_flags(TunnelSettings)
    own = parser.add_argument_group("state of the tunnel")
    own.add_argument("--name", default="", metavar="NAME", help="value of the label target (default: HOST)")
    own.add_argument("--metrics-address", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    own.add_argument(
        "--metrics-port",
        type=port_or_any,
        default=DEFAULT_METRICS_PORT,
        metavar="PORT",
        help=f"port of the tunnel's own metrics; 0 for any (default: {DEFAULT_METRICS_PORT})",
    )
    own.add_argument(
        "--log-format", choices=("default", "ISO8601", "json"), default="default", help="format of the log"
    )
    return parser


class _AddForward(Action):
    """Appends to one list for --forward and --reverse."""

    def __call__(self, parser: object, namespace: Namespace, values: object, option_string: str | None = None) -> None:
        reverse = bool(option_string) and str(option_string).startswith("--r")
        try:
            forward = Forward.parse(str(values), reverse=reverse)
        except ValueError as error:
            assert isinstance(parser, CommandParser)
            parser.error(f"argument {option_string}: {error}")
        namespace.forwards = [*namespace.forwards, forward]


def _write_manifests(arguments: Sequence[str]) -> int:
    parser = _manifests_parser()
    given = parser.parse_args(arguments)
    from conch.base.yaml_documents import dump_documents

    try:
        objects = manifests(
            settings_of(ScrapedTunnel, given, name=given.name, addresses=tuple(given.address), port=given.port)
        )
    except ValueError as error:
        parser.error(str(error))
    return write_text("conch tunnel manifests", given.output, dump_documents(objects))


def _manifests_parser() -> CommandParser:
    parser = CommandParser(
        "conch tunnel manifests",
        description="Write the headless Service, the EndpointSlice and the ServiceMonitor for the port of a tunnel.",
    )
    parser.add_argument("name", type=_object_name, metavar="NAME", help="name of the objects")
    parser.add_argument(
        "--address",
        action="append",
        required=True,
        metavar="IP",
        help="address of the node on which the tunnel listens; repeatable",
    )
    parser.add_argument("--port", type=port, required=True, metavar="PORT", help="port of the tunnel")
    parser.add_flags(ScrapedTunnel)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    return parser


def _target(text: str) -> str:
    try:
        return parse_target(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _object_name(text: str) -> str:
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,56}[a-z0-9])?", text):
        raise ArgumentTypeError(
            f"'{text}' is not a valid name: lower-case letters, digits and -, beginning with a letter"
        )
    return text
