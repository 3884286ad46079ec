"""`conch gpu-exporter`: metrics of GPUs and other accelerators for Prometheus, in place of dcgm-exporter."""

import logging
import os
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import BOOLEAN, one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.errors import ConfigError
from conch.base.extras import install_command
from conch.machine.accelerators.collectors import vendors
from conch.machine.accelerators.nvidia_views import DCGM_NAMES, DcgmNames
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply

if TYPE_CHECKING:
    from conch.machine.accelerators.monitor import AcceleratorMonitor
    from conch.machine.accelerators.pod_attribution import PodAttribution

_TEXT = content_type(b"text/plain; charset=utf-8")


_USAGE_ERROR = 2
_START_FAILURE = 1
_PORT = 9400
_KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
# Between questions to the kubelet: a pod has its labels that long after it got its device.
_KUBELET_INTERVAL_S = 10.0
_STOP_TIMEOUT_S = 5.0
# Variables of dcgm-exporter that set flags; a flag on the command line has precedence.
_VARIABLES = {
    "DCGM_EXPORTER_LISTEN": "--address",
    "DCGM_EXPORTER_COLLECTORS": "--collectors",
    "DCGM_EXPORTER_INTERVAL": "--collect-interval",
    "DCGM_POD_RESOURCES_KUBELET_SOCKET": "--pod-resources-kubelet-socket",
}
_SWITCHES = {"DCGM_EXPORTER_NO_HOSTNAME": "--no-hostname", "DCGM_EXPORTER_KUBERNETES": "--kubernetes"}
_TRUE = frozenset({"1", "t", "true", "yes"})
_log = logging.getLogger(__name__)


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


def _vendor(text: str) -> str:
    if text not in vendors():
        raise ArgumentTypeError(f"'{text}' is not a vendor; expected one of {', '.join(vendors())}")
    return text


_MILLISECONDS = value_kind("MS", _milliseconds)


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """The flags of `conch gpu-exporter`."""

    address: tuple[str, int] = flag_field(
        ("127.0.0.1", _PORT),
        "",
        f"address to listen on; :{_PORT} is every address of the machine (default: 127.0.0.1:{_PORT})",
        value_kind("HOST:PORT", _address),
        aliases=("a",),
    )
    collectors: Path | None = flag_field(
        None,
        "",
        "counter file of dcgm-exporter: the fields to expose, with type and help",
        value_kind("FILE", Path),
        aliases=("f",),
    )
    collect_interval: int = flag_field(
        5000, "", "milliseconds between samples (default: 5000)", _MILLISECONDS, aliases=("c",)
    )
    dcgm_names: DcgmNames | None = flag_field(
        None,
        "",
        "names and units before DCGM 4.7, since then, or both (default: legacy, or as the counter file has them)",
        one_of(*DCGM_NAMES),
    )
    no_hostname: bool = flag_field(False, "", "omit the label of the host's name", BOOLEAN, bare=True, aliases=("n",))
    kubernetes: bool = flag_field(
        False,
        "",
        "label metrics with the pod that has the device, from the kubelet",
        BOOLEAN,
        bare=True,
        aliases=("k",),
    )
    pod_resources_kubelet_socket: Path = flag_field(
        _KUBELET_SOCKET,
        "",
        f"socket of the kubelet's PodResources service (default: {_KUBELET_SOCKET})",
        value_kind("PATH", Path),
    )
    vendor: tuple[str, ...] = flag_field(
        (),
        "",
        "sample only this vendor's accelerators; repeatable (default: all that are present)",
        value_kind("VENDOR", _vendor),
        repeatable=True,
    )
    sample_timeout: int | None = flag_field(
        None,
        "",
        "milliseconds after which a driver that does not respond counts as hanging "
        "(default: three intervals, at least 5000)",
        _MILLISECONDS,
    )


def gpu_exporter(arguments: Sequence[str]) -> int:
    """Serve metrics until SIGTERM or SIGINT; return the exit status."""
    parser = CommandParser(
        "conch gpu-exporter",
        description="Export metrics of NVIDIA GPUs under DCGM's names, and of other accelerators in normal form.",
    )
    parser.add_flags(ExporterSettings)
    settings = settings_of(ExporterSettings, parser.parse_args([*_flags_of(os.environ), *arguments]))
    try:
        monitor = _monitor(settings, os.environ)
    except ConfigError as error:
        print(f"conch gpu-exporter: {error}", file=sys.stderr)
        return _USAGE_ERROR
    import uvloop

    _configure_log()
    status: int = uvloop.run(_serve(monitor, *settings.address))
    return status


def _flags_of(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the flags that variables of dcgm-exporter stand for."""
    for variable, flag in _VARIABLES.items():
        if text := environment.get(variable):
            yield f"{flag}={text}"
    for variable, flag in _SWITCHES.items():
        if environment.get(variable, "").lower() in _TRUE:
            yield flag


def _monitor(settings: ExporterSettings, environment: Mapping[str, str]) -> "AcceleratorMonitor":
    """Return the monitor that the settings describe. Raises ConfigError."""
    from conch.machine.accelerators.monitor import AcceleratorMonitor
    from conch.machine.accelerators.nvidia_views import DcgmView, read_counter_file

    counters = None if settings.collectors is None else read_counter_file(settings.collectors)
    if counters is not None and counters.unavailable:
        names = ", ".join(counters.unavailable)
        print(f"conch gpu-exporter: {settings.collectors}: NVML has no value for {names}", file=sys.stderr)
    hostname = "" if settings.no_hostname else environment.get("NODE_NAME") or socket.gethostname()
    return AcceleratorMonitor(
        settings.vendor or vendors(),  # also those that are absent: a driver or tool may be installed later
        settings.collect_interval / 1000,
        dcgm=DcgmView(settings.dcgm_names, hostname, counters),
        timeout_s=None if settings.sample_timeout is None else settings.sample_timeout / 1000,
        pods=_pods(settings.pod_resources_kubelet_socket) if settings.kubernetes else None,
        expected="each" if settings.vendor else "any",
    )


def _pods(socket_path: Path) -> "PodAttribution":
    """Return the attribution to pods. Raises ConfigError if grpcio is not installed."""
    from conch.machine.accelerators.pod_attribution import PodAttribution

    try:
        from conch.machine.accelerators.kubelet import PodResources
    except ModuleNotFoundError as error:
        raise ConfigError(f"--kubernetes needs grpcio: {install_command('kubernetes')}") from error
    return PodAttribution(PodResources(socket_path), _KUBELET_INTERVAL_S)


def _answer_health(monitor: "AcceleratorMonitor", _request: HttpRequest, reply: HttpReply) -> None:
    """Answer whether the last samples are good: 503 if they are not."""
    if monitor.healthy:
        reply.send(200, _TEXT, b"OK\n")
    else:
        reply.send(503, _TEXT, b"no fresh sample; see conch_accelerator_collector_up and the log\n")


async def _serve(monitor: "AcceleratorMonitor", host: str, port: int) -> int:
    from conch.base.process.stop_signals import stop_signals
    from conch.protocols.connections.listener import raise_file_limit
    from conch.protocols.http.errors import V2
    from conch.protocols.http.metrics_page import METHODS, MetricsPage, metrics_router
    from conch.protocols.http.router import Route
    from conch.protocols.http.server import HttpServer

    stopping = stop_signals()
    raise_file_limit()
    health = Route(METHODS, "/health", "health", V2, partial(_answer_health, monitor), 0)
    handler = metrics_router(MetricsPage(lambda: _pieces(monitor)), health)
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
