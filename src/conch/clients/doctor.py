"""`conch doctor`: inspect machine, installation and a running server; say what is wrong, what it costs, and the cure.

`CHECKS` is the list of checks; each returns its diagnoses. Costs and cures of degradations are those of the registry,
others are in `doctor.csv`.
"""

import ctypes
import json
import os
import platform
import resource
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

from rich.console import Console
from rich.text import Text

from conch import __version__
from conch.base.build_info import is_compiled
from conch.base.command_line.command_parser import CommandParser, LaidOutHelp
from conch.base.command_line.say import folded
from conch.base.control_characters import printable
from conch.base.errors import ConchError, Unavailable
from conch.base.extras import DISTRIBUTION, install_command
from conch.base.files.tables import table_rows
from conch.base.http.credentials import client_key
from conch.base.process.running_servers import running_servers
from conch.clients.server_view import ServerAddress, ServerReader, all_reasons, find_addresses
from conch.clients.top import add_server_flags
from conch.domain.degradations import reasons
from conch.machine import condition
from conch.machine.accelerators.collectors import has_nvidia_driver
from conch.machine.cores import usable_cores
from conch.machine.memory import free_memory, size_text, total_memory
from conch.server.backends.child.conch_child.ipc.sandbox import landlock_abi

_PROBLEMS, _USAGE_ERROR = 1, 2
_PORTS = {"HTTP": 8000, "gRPC": 8001, "metrics": 8002}
_MIN_FREE_BYTES = 1 << 30
_MIN_PROCESSES = 1024
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies")
_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex
_TIMEX_BYTES = 512  # more than struct timex
# Module → extra that installs it, and what needs it.
_EXTRAS = {
    "onnxruntime": ("onnxruntime", "models of onnxruntime"),
    "openvino": ("openvino", "models of openvino"),
    "torch": ("pytorch", "models of pytorch"),
    "treelite": ("fil", "forests of XGBoost, LightGBM and scikit-learn"),
    "openvino_genai": ("openvino-genai", "language models on the CPU"),
    "vllm": ("vllm", "language models of vllm in this environment"),
    "obstore": ("remote", "repositories in object stores"),
    "huggingface_hub": ("hub", "models of the Hugging Face Hub"),
    "grpc": ("client", "conch client"),
    "yaml": ("monitoring", "rules, alerts, dashboards, limits"),
    "opentelemetry.sdk": ("opentelemetry", "export to a collector"),
    "cryptography": ("verify", "signatures of model images"),
}
_EPILOG = """
Exit status: 0 nothing to fix; 1 a problem was found; 2 invalid arguments.
"""

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check found. `cure` is a command, or what to change; a note costs little or concerns an option."""

    area: str
    check: str
    level: Level
    found: str
    costs: str = ""
    cure: str = ""


def doctor(arguments: Sequence[str]) -> int:
    """Print what the checks find; return the exit status."""
    parser = CommandParser(
        "conch doctor",
        description="Inspect this machine, the installation and running servers, and name the cure of each problem.",
        epilog=_EPILOG,
        formatter_class=LaidOutHelp,
    )
    add_server_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the diagnoses as JSON")
    parser.add_argument("--quiet", action="store_true", help="print problems only")
    given = parser.parse_args(arguments)
    try:
        addresses = find_addresses(given.url, given.metrics_url, client_key(given.api_key_file))
    except ConchError as error:
        print(f"conch doctor: {printable(str(error))}", file=sys.stderr)
        return _USAGE_ERROR
    diagnoses = [diagnosis for check in CHECKS for diagnosis in check()]
    for address in addresses:
        diagnoses += server_diagnoses(address, required=given.url is not None)
    if given.json:
        print(json.dumps([asdict(diagnosis) for diagnosis in diagnoses]))
    else:
        _print([diagnosis for diagnosis in diagnoses if diagnosis.level == "problem" or not given.quiet])
    return _PROBLEMS if any(diagnosis.level == "problem" for diagnosis in diagnoses) else 0


def _print(diagnoses: Sequence[Diagnosis]) -> None:
    """Print a line for each diagnosis, with costs and cure below problems."""
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "note": "cyan", "problem": "bold red"}
    area = ""
    for diagnosis in diagnoses:
        if diagnosis.area != area:
            area = diagnosis.area
            console.print(Text(area, "bold"))
        line = folded(printable(f"  {diagnosis.level:<8}{diagnosis.check}: {diagnosis.found}"), sys.stdout, 10)
        console.print(Text.assemble((line[:10], styles[diagnosis.level]), line[10:]))
        if diagnosis.costs:
            console.print(Text(folded(printable(f"          costs {diagnosis.costs}"), sys.stdout, 10)))
        if diagnosis.cure:  # unbroken, to be copied
            console.print(Text(printable(f"          cure  {diagnosis.cure}")))
    count = sum(diagnosis.level == "problem" for diagnosis in diagnoses)
    console.print(Text(f"{count} problem{'' if count == 1 else 's'} found", "bold red" if count else "bold green"))


def _condition(area: str, check: str, reason: str, detail: str, well: str) -> Diagnosis:
    """Return a diagnosis about a degradation of the registry: a problem if `detail`, otherwise `well`."""
    if not detail:
        return Diagnosis(area, check, "ok", well)
    return Diagnosis(area, check, "problem", detail, reasons()[reason].costs, reasons()[reason].cure)


def _finding(check: str, detail: str) -> Diagnosis:
    """Return a diagnosis whose area, level, costs and cure the table has."""
    row = _findings()[check]
    return Diagnosis(row["area"], check, cast("Level", row["level"]), detail, row["costs"], row["cure"])


@cache
def _findings() -> Mapping[str, Mapping[str, str]]:
    return {row["check"]: row for row in table_rows(__file__, "doctor.csv")}


# ---- the installation


def _versions() -> Iterator[Diagnosis]:
    where = f"conch {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Diagnosis("install", "versions", "ok", f"{where}, {platform.machine()}")
    yield _condition("install", "build", "interpreted_build", condition.interpreted_build(), "compiled")
    if not is_compiled():
        compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
        headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
        missing = [name for name, path in (("a C compiler", compiler), ("Python.h", headers)) if not path]
        if missing:
            text = f"{' and '.join(missing)} not found"
            yield _finding("compiler", text)
        else:
            yield Diagnosis("install", "compiler", "ok", str(compiler))


def _requirements() -> Iterator[Diagnosis]:
    """Compare installed packages with the versions that Conch requires."""
    try:
        from packaging.requirements import Requirement

        lines = distribution(DISTRIBUTION).requires or []
    except (ImportError, PackageNotFoundError):
        return
    wrong: dict[str, str] = {}
    for line in lines:
        requirement = Requirement(line)
        with suppress(PackageNotFoundError):
            if not requirement.specifier.contains(installed := version(requirement.name), prereleases=True):
                wrong[requirement.name] = f"{requirement.name} is {installed}, required is {requirement.specifier}"
    for name, text in wrong.items():
        cure = f"pip install --upgrade '{name}{text.rpartition(' ')[2]}'"
        yield Diagnosis("install", "packages", "problem", text, "What uses this package may fail.", cure)
    if not wrong:
        yield Diagnosis("install", "packages", "ok", "installed packages have the required versions")


def _extras() -> Iterator[Diagnosis]:
    present = [module for module in _EXTRAS if _has(module)]
    yield Diagnosis(
        "install", "extras", "ok", f"installed: {', '.join(_EXTRAS[module][0] for module in present) or 'none'}"
    )
    backends = {"onnxruntime", "openvino", "torch", "treelite", "openvino_genai", "vllm"}
    if not backends & set(present):
        yield Diagnosis(
            "install",
            "backends",
            "problem",
            "no framework is installed",
            "Only Python models can be served.",
            install_command("onnxruntime"),
        )
    for module, (extra, purpose) in _EXTRAS.items():
        if module not in present and module not in backends:
            cure = install_command(extra)
            yield Diagnosis("install", extra, "note", f"not installed, needed for {purpose}", "", cure)


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


# ---- the machine


def _processor() -> Iterator[Diagnosis]:
    cores, present = usable_cores(), os.cpu_count() or 1
    yield _condition("machine", "cores", "one_core", condition.one_core(), f"{cores} of {present} usable")
    periods, stopped = condition.throttled_periods()
    throttled = stopped / max(periods, 1)
    text = f"{throttled:.0%} of the periods of the CPU quota were throttled" if throttled > 0.05 else ""
    yield _condition("machine", "CPU quota", "cpu_throttled", text, "not throttled")


def _memory() -> Iterator[Diagnosis]:
    with suppress(OSError):
        free, total = free_memory(), total_memory()
        text = f"{size_text(free)} of {size_text(total)} free"
        if free < _MIN_FREE_BYTES:
            yield _finding("memory", text)
        else:
            yield Diagnosis("machine", "memory", "ok", text)
    yield _condition("machine", "shared memory", "shared_memory_small", condition.shared_memory_small(), "large enough")
    yield _condition("machine", "huge pages", "huge_pages_off", condition.huge_pages_off(), "on, on request, or hidden")


def _limits() -> Iterator[Diagnosis]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    well = "no limit" if hard < 0 else f"up to {hard}"
    yield _condition("machine", "open files", "file_descriptors_low", condition.file_descriptors_low(), well)
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    with suppress(OSError, ValueError):
        limit = min(int(Path("/sys/fs/cgroup/pids.max").read_text()), limit if limit >= 0 else sys.maxsize)
    if 0 <= limit < _MIN_PROCESSES:
        yield _finding("processes", f"at most {limit} processes and threads")
    else:
        yield Diagnosis("machine", "processes", "ok", "enough allowed")


def _clock() -> Iterator[Diagnosis]:
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _UNSYNCHRONIZED:
            yield _finding("clock", "the kernel does not know whether the clock is synchronized")
        else:
            yield Diagnosis("machine", "clock", "ok", "synchronized")
    with suppress(OSError):
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
        if source in _SLOW_CLOCKS:
            yield _finding("clock source", source)


def _sandbox() -> Iterator[Diagnosis]:
    if abi := landlock_abi():
        yield Diagnosis("machine", "Landlock", "ok", f"ABI {abi}")
    else:
        yield _finding("Landlock", "not available")


def _gpu() -> Iterator[Diagnosis]:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not has_nvidia_driver():
        if devices:
            yield _finding("GPU", f"{len(devices)} devices, but libnvidia-ml is missing")
        else:
            yield Diagnosis("machine", "GPU", "ok", "no NVIDIA driver; models run on the CPU")
        return
    yield Diagnosis("machine", "GPU", "ok", f"NVIDIA driver, {len(devices)} devices")
    if _has("onnxruntime") and not _is_installed("onnxruntime-gpu"):
        costs, cure = reasons()["kind_gpu_on_cpu"].costs, "pip uninstall onnxruntime; pip install onnxruntime-gpu"
        yield Diagnosis("machine", "onnxruntime", "problem", "its build has no CUDA", costs, cure)


def _ports() -> Iterator[Diagnosis]:
    ours = {address for server in running_servers() for address in (server.http, server.grpc, server.metrics)}
    for name, port in _PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - the server's default
            except OSError as error:
                own = any(address.endswith(f":{port}") for address in ours)
                owner = "used by a server of this user" if own else f"not available: {error.strerror}"
                yield Diagnosis(
                    "machine",
                    f"port {port}",
                    "note" if own else "problem",
                    owner,
                    "" if own else f"conch serve cannot listen for {name} there.",
                    "" if own else f"ss -ltnp 'sport = :{port}'; conch serve --{name.lower()}-port=0",
                )
            else:
                yield Diagnosis("machine", f"port {port}", "ok", f"free for {name}")


CHECKS: tuple[Callable[[], Iterator[Diagnosis]], ...] = (
    *(_versions, _requirements, _extras),
    *(_processor, _memory, _limits, _clock, _sandbox, _gpu, _ports),
)


# ---- a running server


def server_diagnoses(address: ServerAddress, *, required: bool) -> Iterator[Diagnosis]:
    """Inspect a server; one that does not answer is a problem only if it is `required`."""
    area = f"server {address.url}"
    reader = ServerReader(address)
    try:
        metadata, reading = reader.metadata(), reader.read()
    except Unavailable as error:
        costs = "Its state and degradations are not known." if required else ""
        cure = "conch serve --model-repository=models, or --url of another server"
        yield Diagnosis("server", "answer", "problem" if required else "note", str(error), costs, cure)
        return
    running = str(metadata.get("version", ""))
    yield Diagnosis(area, "answer", "ok", f"{metadata.get('name', '')} {running}".strip())
    for problem in reading.problems:
        yield Diagnosis(
            area,
            "metrics",
            "problem",
            problem,
            "Degradations and rates of this server are not known.",
            "start it with --allow-metrics=true, or name the port by --metrics-url",
        )
    for model in reading.models:
        if model.state != "READY":
            yield Diagnosis(
                area,
                f"model {model.name}",
                "problem",
                f"{model.state}: {model.reason}".strip(": "),
                "Requests for it are refused.",
                f"conch check MODELS/{model.name}",
            )
    ready = sum(model.state == "READY" for model in reading.models)
    yield Diagnosis(area, "models", "ok", f"{ready} of {len(reading.models)} ready")
    for model_name, reason in all_reasons(reading):
        known = reasons().get(reason)
        name = f"{reason} ({model_name})" if model_name else reason
        text = "degraded" if known is None else f"degraded {'at load' if known.refusable else 'while running'}"
        yield Diagnosis(area, name, "problem", text, known.costs if known else "", known.cure if known else "")
