"""`conch gpu-exporter`: metrics of GPUs and other accelerators for Prometheus, in place of dcgm-exporter."""

import logging
import os
import socket
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.errors import ConfigError
from conch.machine.accelerators.collectors import vendors
from conch.machine.accelerators.nvidia_views import DCGM_NAMES
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.metrics_page import MetricsHttp
from conch.protocols.http.reply import HttpReply

_TEXT = content_type(b"text/plain; charset=utf-8")
_HEALTH = "/health"


class ExporterHttp:
    """Handler of an exporter's port. `healthy` is whether the last samples are good; /health is 503 otherwise."""

    def __init__(self, metrics: MetricsHttp, healthy: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._healthy = healthy

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if it is answered."""
        if request.path == _HEALTH and request.method in (b"GET", b"HEAD"):
            return None
        return self._metrics.refusal(request)

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if request.path != _HEALTH or request.method not in (b"GET", b"HEAD"):
            self._metrics(request, reply)
        elif self._healthy():
            reply.send(200, _TEXT, b"OK\n")
        else:
            reply.send(503, _TEXT, b"no fresh sample; see conch_accelerator_collector_up and the log\n")


if TYPE_CHECKING:
    from conch.machine.accelerators.monitor import AcceleratorMonitor
    from conch.machine.accelerators.pod_attribution import PodAttribution

_USAGE_ERROR = 2
_START_FAILURE = 1
_PORT = 9400
_KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
# Between questions to the kubelet: a pod has its labels that long after it got its device.
_KUBELET_INTERVAL_S = 10.0
_STOP_TIMEOUT_S = 5.0
_TRUE = frozenset({"1", "t", "true", "yes"})
_log = logging.getLogger(__name__)


def gpu_exporter(arguments: Sequence[str]) -> int:
    """Serve metrics until SIGTERM or SIGINT; return the exit status."""
    options = _parser(os.environ).parse_args(arguments)
    try:
        monitor = _monitor(options, os.environ)
    except ConfigError as error:
        print(f"conch gpu-exporter: {error}", file=sys.stderr)
        return _USAGE_ERROR
    import uvloop

    _configure_log()
    status: int = uvloop.run(_serve(monitor, *options.address))
    return status


def _parser(environment: Mapping[str, str]) -> CommandParser:
    """Return the parser. Environment variables of dcgm-exporter set defaults."""
    parser = CommandParser(
        "conch gpu-exporter",
        description="Export metrics of NVIDIA GPUs under DCGM's names, and of other accelerators in normal form.",
    )
    listen = environment.get("DCGM_EXPORTER_LISTEN") or f"127.0.0.1:{_PORT}"
    parser.add_argument(
        "-a",
        "--address",
        type=_address,
        default=listen,
        metavar="HOST:PORT",
        help=f"address to listen on; :{_PORT} is every address of the machine (default: {listen})",
    )
    parser.add_argument(
        "-f",
        "--collectors",
        type=Path,
        default=environment.get("DCGM_EXPORTER_COLLECTORS") or None,
        metavar="FILE",
        help="counter file of dcgm-exporter: the fields to expose, with type and help",
    )
    parser.add_argument(
        "-c",
        "--collect-interval",
        type=_milliseconds,
        default=environment.get("DCGM_EXPORTER_INTERVAL") or "5000",
        metavar="MS",
        help="milliseconds between samples (default: 5000)",
    )
    parser.add_argument(
        "--dcgm-names",
        choices=DCGM_NAMES,
        help="names and units before DCGM 4.7, since then, or both (default: legacy, or as the counter file has them)",
    )
    parser.add_argument(
        "-n",
        "--no-hostname",
        action="store_true",
        default=_is_true(environment.get("DCGM_EXPORTER_NO_HOSTNAME")),
        help="omit the label of the host's name",
    )
    _add_kubernetes(parser, environment)
    parser.add_argument(
        "--vendor",
        action="append",
        choices=vendors(),
        help="sample only this vendor's accelerators; repeatable (default: all that are present)",
    )
    parser.add_argument(
        "--sample-timeout",
        type=_milliseconds,
        metavar="MS",
        help="milliseconds after which a driver that does not respond counts as hanging "
        "(default: three intervals, at least 5000)",
    )
    return parser


def _add_kubernetes(parser: CommandParser, environment: Mapping[str, str]) -> None:
    parser.add_argument(
        "-k",
        "--kubernetes",
        action="store_true",
        default=_is_true(environment.get("DCGM_EXPORTER_KUBERNETES")),
        help="label metrics with the pod that has the device, from the kubelet",
    )
    parser.add_argument(
        "--pod-resources-kubelet-socket",
        type=Path,
        default=environment.get("DCGM_POD_RESOURCES_KUBELET_SOCKET") or _KUBELET_SOCKET,
        metavar="PATH",
        help=f"socket of the kubelet's PodResources service (default: {_KUBELET_SOCKET})",
    )


def _monitor(options: Namespace, environment: Mapping[str, str]) -> "AcceleratorMonitor":
    """Return the monitor that the options describe. Raises ConfigError."""
    from conch.machine.accelerators.monitor import AcceleratorMonitor
    from conch.machine.accelerators.nvidia_views import DcgmView, read_counter_file

    counters = None if options.collectors is None else read_counter_file(Path(options.collectors))
    if counters is not None and counters.unavailable:
        names = ", ".join(counters.unavailable)
        print(f"conch gpu-exporter: {options.collectors}: NVML has no value for {names}", file=sys.stderr)
    hostname = "" if options.no_hostname else environment.get("NODE_NAME") or socket.gethostname()
    return AcceleratorMonitor(
        options.vendor or vendors(),  # also those that are absent: a driver or tool may be installed later
        options.collect_interval / 1000,
        dcgm=DcgmView(options.dcgm_names, hostname, counters),
        timeout_s=None if options.sample_timeout is None else options.sample_timeout / 1000,
        pods=_pods(Path(options.pod_resources_kubelet_socket)) if options.kubernetes else None,
        expected="each" if options.vendor else "any",
    )


def _pods(socket_path: Path) -> "PodAttribution":
    """Return the attribution to pods. Raises ConfigError if grpcio is not installed."""
    from conch.machine.accelerators.pod_attribution import PodAttribution

    try:
        from conch.machine.accelerators.kubelet import PodResources
    except ModuleNotFoundError as error:
        raise ConfigError("--kubernetes needs grpcio: pip install 'conch-server[kubernetes]'") from error
    return PodAttribution(PodResources(socket_path), _KUBELET_INTERVAL_S)


async def _serve(monitor: "AcceleratorMonitor", host: str, port: int) -> int:
    from conch.base.process.stop_signals import stop_signals
    from conch.operate.exporter.command import ExporterHttp
    from conch.protocols.connections.listener import raise_file_limit
    from conch.protocols.http.metrics_page import MetricsHttp
    from conch.protocols.http.server import HttpServer

    stopping = stop_signals()
    raise_file_limit()
    handler = ExporterHttp(MetricsHttp(lambda: _pieces(monitor)), lambda: monitor.healthy)
    server = HttpServer(handler, host, port, refusal=handler.refusal)
    try:
        await server.start()
    except OSError as error:
        _log.error("cannot listen on %s:%d: %s; --address chooses another", host, port, error.strerror)
        return _START_FAILURE
    _log.info("Started GPU exporter at %s:%d", host, server.port)
    monitor.start()
    await stopping.wait()
    await server.stop(_STOP_TIMEOUT_S)
    await monitor.stop()
    return 0


def _pieces(monitor: "AcceleratorMonitor") -> Iterator[bytes]:
    from conch.domain.exposition import pieces

    for family in monitor.families():
        yield from pieces(family)


def _configure_log() -> None:
    from conch.base.logs import LineFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, :PORT for all addresses, or HOST. IPv6 addresses are in brackets."""
    host, separator, port = text.rpartition(":")
    if not separator or port.endswith("]"):
        host, port = text, str(_PORT)
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise ArgumentTypeError(f"'{text}' is not a valid address: expected HOST:PORT or :PORT, such as :{_PORT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - as in dcgm-exporter


def _milliseconds(text: str) -> int:
    if not text.isdecimal() or not 100 <= int(text) <= 3_600_000:
        raise ArgumentTypeError(f"'{text}' is not a valid number of milliseconds: expected 100 to 3600000")
    return int(text)


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in _TRUE
