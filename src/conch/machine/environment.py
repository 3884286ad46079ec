"""The machine and the software that this process runs on, read from /proc and /sys. Unknown is None or ""."""

import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from conch.base.build_info import build_line

# Packages that have a part in a measurement.
_PACKAGES = ("numpy", "orjson", "uvloop", "httptools", "hpack", "tritonclient", "protobuf", "onnxruntime", "openvino",
             "openvino-genai", "torch", "vllm", "tensorrt", "treelite")  # fmt: skip
# What hypervisors write into the product name or vendor of their machines.
_HYPERVISORS = ("KVM", "QEMU", "VMware", "VirtualBox", "Xen", "Amazon EC2", "Google", "Microsoft", "OpenStack", "Bochs")


@dataclass(frozen=True, slots=True)
class Environment:
    """Of this machine."""

    cpu_model: str
    cpus: int  # logical, of the machine
    usable_cpus: int  # that this process may run on
    cpu_quota: float | None  # CPUs that the cgroup grants
    governor: str  # of frequency scaling
    cpu_mhz: float | None  # mean at the time of reading
    cpu_max_mhz: float | None
    memory_bytes: int | None
    kernel: str
    os: str
    virtualization: str  # name of the hypervisor, "none", or ""
    container: str  # "docker", "podman", "kubernetes", "none", …
    python: str
    conch: str  # version and whether it is compiled
    packages: dict[str, str] = field(default_factory=dict)
    load_average: tuple[float, ...] = ()  # over 1, 5 and 15 minutes, when it was read
    clock: str = ""  # implementation and resolution of the monotonic clock
    clock_source: str = ""  # of the kernel


def read_environment(root: Path = Path("/")) -> Environment:
    """Read the environment. It takes a few milliseconds and never fails."""
    cpuinfo = _text(root / "proc/cpuinfo")
    clock = time.get_clock_info("monotonic")
    return Environment(
        cpu_model=_field(cpuinfo, "model name") or _field(cpuinfo, "Model") or platform.machine(),
        cpus=os.cpu_count() or 1,
        usable_cpus=len(os.sched_getaffinity(0)),
        cpu_quota=_cpu_quota(root),
        governor=_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        cpu_mhz=_mean(float(frequency) for frequency in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.MULTILINE)),
        cpu_max_mhz=_max_mhz(root),
        memory_bytes=_memory_bytes(root),
        kernel=platform.release(),
        os=_os_name(root),
        virtualization=_virtualization(root, cpuinfo),
        container=_container(root),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        conch=build_line(),
        packages=_package_versions(),
        load_average=_load_average(),
        clock=f"{clock.implementation}, {clock.resolution * 1e9:g} ns",
        clock_source=_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(cpuinfo: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return round(sum(numbers) / len(numbers), 1) if numbers else None


def _cpu_quota(root: Path) -> float | None:
    words = _text(root / "sys/fs/cgroup/cpu.max").split()
    return float(words[0]) / float(words[1]) if len(words) == 2 and words[0] != "max" else None


def _max_mhz(root: Path) -> float | None:
    khz = _text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return float(khz) / 1000 if khz.isdigit() else None


def _memory_bytes(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _os_name(root: Path) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    return match[1] if match else ""


def _virtualization(root: Path, cpuinfo: str) -> str:
    names = [_text(root / f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    hypervisor = next((hypervisor for hypervisor in _HYPERVISORS if any(hypervisor in name for name in names)), "")
    if hypervisor or re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE):
        return hypervisor or "hypervisor"
    return "none" if "flags" in cpuinfo else ""  # other architectures have no such flag


def _container(root: Path) -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return os.environ.get("container", "none")  # noqa: SIM112 systemd and podman name it so


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _load_average() -> tuple[float, ...]:
    try:
        return tuple(round(load, 2) for load in os.getloadavg())
    except OSError:
        return ()
