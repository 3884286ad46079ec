"""`conch fleet`: replicas as local processes behind a real proxy and a real Prometheus, scaled by a shipped HPA."""

import asyncio
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import read_text
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field, settings_of
from conch.base.command_line.option_types import count, port_or_any
from conch.base.errors import ConchError, ConfigError, Unavailable

if TYPE_CHECKING:
    from conch.operate.fleet.fleet import Fleet, FleetSettings, ProxyName
    from conch.operate.fleet.load_generator import ClientProtocol, LoadProfile
    from conch.operate.fleet.report import FleetView
    from conch.operate.fleet.scaling_loop import FleetPolicy


_FAILURE = 1
_INTERRUPTED = 130
_POLL_S = 0.2
_NAME = "conch"  # of the release without a policy that names one
_DEMO_LOAD = "15s:1,60s:10,15s:1"
_NOTE = (
    "conch fleet shows and tests scaling policies on one machine. It is not a deployment: replicas share the machine's "
    "processors, and its autoscaler replaces Kubernetes' for the demonstration only."
)
_DEMO_MODEL = "steady"
_DEMO_CONFIG = """# Takes requests one at a time: dynamic_batching would hide the queue.
name: "steady"
backend: "python"
max_batch_size: 0
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "seconds" value { string_value: "0.1" } }
"""
_DEMO_CODE = '''import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Returns its input after a fixed time."""

    def initialize(self, args):
        self.seconds = float(json.loads(args["model_config"])["parameters"]["seconds"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(self.seconds)
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", values)]))
        return responses
'''


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 60:
        raise ArgumentTypeError(f"'{text}' is not a number from 1 to 60")
    return value


_FOLDER = value_kind("DIR", Path)
_HPA = value_kind("FILE", Path)
_PORT = value_kind("PORT", port_or_any)
_SPEED = value_kind("X", _speed)
_PROFILE = value_kind("PROFILE")
_SPEED_HELP = "how much shorter than in a cluster all intervals and windows are"
_LOAD_HELP = f"clients over time, such as {_DEMO_LOAD}"


@dataclass(frozen=True, slots=True)
class FleetFlags:
    """The flags of `conch fleet up`."""

    model_repository: tuple[Path, ...] = flag_field(MISSING, "", "repeatable", _FOLDER, repeatable=True)
    hpa: Path | None = flag_field(MISSING, "", "a HorizontalPodAutoscaler or ScaledObject in YAML", _HPA)
    replicas: int = flag_field(1, "", "at the start (default: 1)", value_kind("N", count))
    proxy: "ProxyName" = flag_field("haproxy", "", "default: haproxy", one_of("haproxy", "nginx"))
    http_port: int = flag_field(8000, "", "default: 8000", _PORT)
    grpc_port: int = flag_field(8001, "", "default: 8001", _PORT)
    prometheus_port: int = flag_field(0, "", "default: any free port", _PORT)
    api_port: int = flag_field(0, "", "default: any free port", _PORT)
    speed: float = flag_field(1.0, "", f"{_SPEED_HELP} (default: 1)", _SPEED)
    load: str = flag_field("", "", f"{_LOAD_HELP} (default: none)", _PROFILE)
    model: str | None = flag_field(None, "", "for --load (default: the only one)", value_kind("NAME"))
    client: "ClientProtocol" = flag_field("grpc", "", "for --load (default: grpc)", one_of("grpc", "http"))
    exit_timeout_secs: int = flag_field(30, "", "for requests in flight (default: 30)", value_kind("S", count))
    output: Path | None = flag_field(None, "", "for plot and report (default: none)", _FOLDER)


@dataclass(frozen=True, slots=True)
class DemoFlags(FleetFlags):
    """The flags of `conch fleet demo`: the same, with a model, a policy and a load."""

    model_repository: tuple[Path, ...] = flag_field(
        (), "", "default: a model that takes 0.1 s", _FOLDER, repeatable=True
    )
    hpa: Path | None = flag_field(None, "", "default: the one of the chart, on the ratio alone", _HPA)
    http_port: int = flag_field(0, "", "default: any free port", _PORT)
    grpc_port: int = flag_field(0, "", "default: any free port", _PORT)
    speed: float = flag_field(6.0, "", f"{_SPEED_HELP} (default: 6)", _SPEED)
    load: str = flag_field(_DEMO_LOAD, "", f"{_LOAD_HELP} (default: {_DEMO_LOAD})", _PROFILE)
    output: Path | None = flag_field(Path("fleet-output"), "", "for plot and report (default: fleet-output)", _FOLDER)


def fleet(arguments: Sequence[str]) -> int:
    """Run a fleet, or the demonstration. Returns the exit status."""
    own, serve_flags = _split(arguments)
    words = _parser().parse_args(own)
    given = settings_of(DemoFlags if words.command == "demo" else FleetFlags, words)
    try:
        if given.load and find_spec("grpc" if given.client == "grpc" else "geventhttpclient") is None:
            raise ConfigError(f"the official client is missing: pip install 'tritonclient[{given.client}]'")
        with TemporaryDirectory(prefix="conch-fleet-") as folder:
            return asyncio.run(_run(given, serve_flags, Path(folder)))
    except ConchError as error:
        print(f"conch fleet: {error}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:  # before stop_signals handles it: nothing runs yet
        return _INTERRUPTED


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after `--`."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


async def _run(given: FleetFlags, serve_flags: Sequence[str], folder: Path) -> int:
    from conch.base.process.stop_signals import stop_signals
    from conch.operate.fleet.fleet import Fleet
    from conch.operate.fleet.load_generator import parse_profile
    from conch.operate.fleet.report import fleet_view

    stopping = stop_signals()
    profile = parse_profile(given.load) if given.load else None
    settings, policy_text = _settings(given, serve_flags, folder)
    model = _model(given, settings) if profile is not None else ""
    view = fleet_view()
    running = Fleet(settings, view.event)
    print(_NOTE)
    print(_timing_line(given.speed), flush=True)
    working = asyncio.ensure_future(_work(given, running, profile, model))
    refreshing = asyncio.ensure_future(_refresh(running, view))
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    except (OSError, Unavailable) as error:
        raise Unavailable(f"{error}; logs: {_kept_logs(given, folder)}") from None
    finally:
        for task in (working, refreshing, stopped):
            task.cancel()
        await asyncio.gather(working, refreshing, stopped, return_exceptions=True)
        view.close()
        await running.stop()
    return _report(given, running, policy_text, complete=not stopping.is_set())


async def _work(given: FleetFlags, running: "Fleet", profile: "LoadProfile | None", model: str) -> None:
    await running.start()
    print(
        f"proxy: HTTP {running.address['http']}, gRPC {running.address['grpc']}; Prometheus: {running.prometheus.url}"
    )
    print(f"custom metrics and state: {running.api.url}; logs: {running.settings.folder}", flush=True)
    if profile is not None:
        await running.run_load(profile, given.client, model)
    if isinstance(given, DemoFlags):
        await running.settle()
        await asyncio.sleep(1.0)  # a last sample
        await running.stop_load()
        return
    await running.run()


async def _refresh(running: "Fleet", view: "FleetView") -> None:
    while True:
        view.refresh(running)
        await asyncio.sleep(_POLL_S)


def _timing_line(speed: float) -> str:
    if speed == 1:
        return "time: all intervals are those of a cluster"
    return (
        f"time: compressed {speed:g}×: scrapes, rule windows, syncs and stabilization windows are {speed:g} times "
        "shorter than in a cluster; replicas start and answer in real time"
    )


def _settings(given: FleetFlags, serve_flags: Sequence[str], folder: Path) -> "tuple[FleetSettings, str]":
    """Return the settings and the text of the HorizontalPodAutoscaler. Raises ConchError."""
    from conch.operate.deployment.chart import adapter_rules
    from conch.operate.fleet.child import find_programs
    from conch.operate.fleet.custom_metrics import read_rules
    from conch.operate.fleet.fleet import FleetPorts, FleetSettings
    from conch.operate.fleet.replicas import ReplicaSettings
    from conch.operate.fleet.timing import Timing

    policy_text = read_text(given.hpa) if given.hpa else _shipped_hpa()
    policy = _read_policy(policy_text, given.hpa)
    name = policy.release or _NAME
    repositories = given.model_repository or [write_demo_repository(folder / "models")]
    if missing := [repository for repository in repositories if not repository.is_dir()]:
        raise ConfigError(f"--model-repository: '{missing[0]}' is not a folder")
    settings = FleetSettings(
        name=name,
        namespace=policy.namespace,
        labels={"app": name, "app.kubernetes.io/component": "server"},
        folder=folder,
        programs=find_programs(("prometheus", given.proxy)),
        policy=policy,
        adapter_rules=read_rules(adapter_rules()),
        replica=ReplicaSettings(
            [repository.resolve() for repository in repositories], serve_flags, given.exit_timeout_secs
        ),
        replicas=given.replicas,
        proxy=given.proxy,
        ports=FleetPorts(given.http_port, given.grpc_port, given.prometheus_port, given.api_port),
        timing=Timing(given.speed),
    )
    return settings, policy_text


def _shipped_hpa() -> str:
    """Return the chart's object on the ratio alone: by utilization, one busy client would keep two replicas."""
    from conch.base.yaml_documents import dump_documents
    from conch.operate.deployment.chart import shipped_autoscaler

    autoscaler = shipped_autoscaler("HorizontalPodAutoscaler", _NAME, "default")
    del autoscaler["spec"]["metrics"][1:]
    return dump_documents([autoscaler])


def _read_policy(text: str, path: Path | None) -> "FleetPolicy":
    from conch.base.command_line.files import parse_yaml
    from conch.operate.fleet.scaling_loop import read_policy

    documents = parse_yaml(text, path)
    try:
        return read_policy(documents)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _model(given: FleetFlags, settings: "FleetSettings") -> str:
    """Return the model that the load is for. Raises ConfigError."""
    from conch.operate.fleet.fleet import model_names

    names = model_names(settings.replica.repositories)
    if given.model:
        if given.model not in names:
            raise ConfigError(f"--model: no model '{given.model}' in the repository; it has {', '.join(names)}")
        return given.model
    if len(names) != 1:
        raise ConfigError(f"--model is missing: the repository has {', '.join(names) or 'no models'}")
    return names[0]


def _kept_logs(given: FleetFlags, folder: Path) -> Path:
    """Copy the logs to the output folder, else to a temporary one, and return it."""
    logs = Path(given.output or mkdtemp(prefix="conch-fleet-")) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.log"):
        (logs / path.name).write_bytes(path.read_bytes())
    return logs


def _report(given: FleetFlags, running: "Fleet", policy_text: str, *, complete: bool) -> int:
    """Write the report; print the verdict of a complete demonstration. Returns the exit status."""
    from conch.base.report.chart import svg_file
    from conch.operate.fleet.journal import judge
    from conch.operate.fleet.report import document, fleet_charts, to_json, to_page

    load, journal, policy = running.load, running.journal, running.settings.policy
    verdict = None
    if load is not None and complete:
        limits = (policy.min_replicas, policy.hpa.max_replicas)
        verdict = judge(journal.samples, limits, sent=load.sent, lost=load.lost, errors=load.errors)
    if given.output is None or not journal.samples:
        return 0
    given.output.mkdir(parents=True, exist_ok=True)
    metric = policy.hpa.metrics[0]
    drawn = fleet_charts(journal.samples, metric.name, metric.target)
    settings = {"speed": given.speed, "proxy": given.proxy, "client": given.client, "load": given.load}
    report = document(settings, journal, verdict)
    lines = verdict.lines() if verdict else []
    title = f"Fleet of {running.settings.name}"
    page = to_page(title, f"{_NOTE} {_timing_line(given.speed)}.", report, journal, lines, drawn)
    files = {
        "fleet.svg": svg_file(drawn),
        "fleet.json": to_json(report),
        "fleet.html": page,
        "policy.yaml": policy_text,
    }
    for name, text in files.items():
        (given.output / name).write_text(text)
    _kept_logs(given, running.settings.folder)
    for line in lines:
        print(line)
    print(f"plot: {given.output / 'fleet.svg'}, report: {given.output / 'fleet.html'}")
    if verdict is not None:
        print("passed: the replicas followed the load, and no request was lost" if verdict.passed else "failed")
    return 0 if verdict is None or verdict.passed or not isinstance(given, DemoFlags) else _FAILURE


def _parser() -> CommandParser:
    parser = CommandParser("conch fleet", description=_NOTE, epilog="Flags after -- are those of conch serve.")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="command", required=True)
    up = commands.add_parser("up", help="run a fleet until Ctrl-C", description=_NOTE)
    up.add_flags(FleetFlags)
    demo = commands.add_parser(
        "demo", help="show the loop in three minutes: load rises, 1 → 4 replicas, load falls", description=_NOTE
    )
    demo.add_flags(DemoFlags)
    return parser


def write_demo_repository(folder: Path) -> Path:
    """Write the model repository into a folder, and return it."""
    version = folder / _DEMO_MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    (folder / _DEMO_MODEL / "config.pbtxt").write_text(_DEMO_CONFIG)
    (version / "model.py").write_text(_DEMO_CODE)
    return folder
