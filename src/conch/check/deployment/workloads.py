"""Check workloads: selectors, probes, GPUs, shared memory, volumes, ports, images, environment; services of compose."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from conch.base.kubernetes.objects import items, mapping
from conch.check.deployment.command_lines import Word, check_conch_command
from conch.check.deployment.dockerfiles import is_outside_of_models, stages_of
from conch.check.deployment.objects import CheckedObject, Container, PodOwner
from conch.check.deployment.plain_text import is_secret, secret_message
from conch.check.finding import Finding, Place, Related
from conch.check.source import SourceFile

# Name, value and place of a variable of the environment.
Variable: TypeAlias = tuple[str, str, Place]
_GPU = re.compile(r"nvidia\.com/(?:gpu|mig-.*)$")
_MIN_LOAD_S = 120  # a liveness probe that waits as long is taken as meant for a slow start
_SHM_VARIABLE = re.compile(r"^(?:NCCL_.*|shm[-_]size)$", re.IGNORECASE)
_DEFAULT_GRACE_S = 30
_UNVERSIONED = re.compile(r"^[\w./-]+(?::\d+/[\w./-]+)?(?::latest)?$")
_COPIES = ("cp", "sh", "bash", "/bin/cp", "/bin/sh", "/bin/bash", "rsync", "tar")


def check_workload(workload: PodOwner) -> Iterator[Finding]:
    """Check one workload."""
    yield from _selector(workload)
    volumes = {str(volume.get("name")) for volume in items(workload.pod, "volumes")}
    volumes |= {
        str(mapping(template, "metadata").get("name"))
        for template in items(workload.source.value, "spec", "volumeClaimTemplates")
    }
    for key in ("initContainers", "containers"):
        for container in workload.containers(key):
            yield from _volumes(container, volumes)
            yield from _ports(container)
            yield from _gpus(container)
            variables = (
                (str(variable.get("name", "")), variable["value"], container.place("env", index))
                for index, variable in enumerate(container.environment)
                if isinstance(variable.get("value"), str)
            )
            yield from check_program(container, f"container '{container.name}'", ("command", "args"), variables)
    for server in workload.servers:
        yield from _probes(server)
        yield from _shared_memory(server)
        yield from _grace_period(server, workload)


def check_program(
    container: Container, what: str, parts: Sequence[str], variables: Iterable[Variable]
) -> Iterator[Finding]:
    """Check the image, the environment and the command of a container of a pod, or of a service of a compose file.

    `parts` are the keys of what replaces the image's entry point and of its arguments; () leaves the command out.
    """
    if container.image and _UNVERSIONED.match(container.image):
        yield Finding("image-latest", container.place("image"), f"{what} runs {container.image}")
    for name, value, place in variables:
        if is_secret(name, value):
            yield Finding("secret-text", place, secret_message(f"variable {name} of {what}"))
    if parts:
        yield from check_conch_command(container.image, *(_words(container, part) for part in parts))


def _words(container: Container, part: str) -> list[Word]:
    given = container.value.get(part)
    if isinstance(given, str):
        return [Word(word, container.place(part)) for word in given.split()]
    words = given if isinstance(given, list) else ()
    return [Word(str(word), container.place(part, index)) for index, word in enumerate(words)]


def _selector(workload: PodOwner) -> Iterator[Finding]:
    if workload.source.kind in ("Pod", "Job", "CronJob"):
        return
    wanted = mapping(workload.source.value, "spec", "selector", "matchLabels")
    absent = {name: value for name, value in wanted.items() if workload.labels.get(str(name)) != str(value)}
    if absent:
        name, value = next(iter(absent.items()))
        has = ", ".join(f"{key}={label}" for key, label in workload.labels.items()) or "no labels"
        message = f"{workload.what} selects {name}={value}, but its pods have {has}"
        yield Finding("selector-mismatch", workload.source.place("spec", "selector"), message)


def _volumes(container: Container, volumes: set[str]) -> Iterator[Finding]:
    for index, mount in enumerate(items(container.value, "volumeMounts")):
        name = str(mount.get("name"))
        if name not in volumes:
            message = f"container '{container.name}' mounts volume '{name}'; the pod has {_listed(volumes)}"
            yield Finding("volume-unknown", container.place("volumeMounts", index), message)


def _ports(container: Container) -> Iterator[Finding]:
    named = {str(named_port["name"]) for named_port in container.ports if "name" in named_port}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        for how in ("httpGet", "tcpSocket", "grpc"):
            port = mapping(container.value, probe, how).get("port")
            if isinstance(port, str) and not port.isdecimal() and port not in named:
                message = f"{probe} of container '{container.name}' uses port '{port}'; it names {_listed(named)}"
                yield Finding("port-unknown", container.place(probe), message)


def _gpus(container: Container) -> Iterator[Finding]:
    limits, requests = (
        mapping(container.value, "resources", "limits"),
        mapping(container.value, "resources", "requests"),
    )
    for name, number in requests.items():
        if _GPU.match(str(name)) and str(limits.get(name)) != str(number):
            limit = f"limits {limits[name]}" if name in limits else "sets no limit"
            message = f"container '{container.name}' requests {number} {name} and {limit}"
            yield Finding("gpu-request", container.place("resources"), message)
    visible = next(
        (variable for variable in container.environment if variable.get("name") == "NVIDIA_VISIBLE_DEVICES"), None
    )
    value = str((visible or {}).get("value", ""))
    if value and value not in ("none", "void") and not any(_GPU.match(str(name)) for name in (*limits, *requests)):
        index = container.environment.index(visible or {})
        message = f"NVIDIA_VISIBLE_DEVICES={value} gives container '{container.name}' GPUs, but it has no limit of them"
        yield Finding("gpu-unlimited", container.place("env", index), message)


def _probes(server: Container) -> Iterator[Finding]:
    liveness = mapping(server.value, "livenessProbe")
    if liveness and not mapping(server.value, "startupProbe"):
        patience = _patience_s(liveness)
        if patience < _MIN_LOAD_S:
            message = (
                f"livenessProbe of container '{server.name}' ends it {patience:g} s after its start; without a "
                "startupProbe, that is all the time it has to load models"
            )
            yield Finding("probe-kills-loading", server.place("livenessProbe"), message)
    path = str(mapping(liveness, "httpGet").get("path", ""))
    if path.rstrip("/").endswith("/ready"):
        message = f"livenessProbe of container '{server.name}' asks {path}"
        yield Finding("probe-liveness-ready", server.place("livenessProbe"), message)
    if not mapping(server.value, "readinessProbe"):
        yield Finding("probe-missing", server.place(), f"container '{server.name}' has no readinessProbe")


def _patience_s(probe: dict[str, Any]) -> float:
    """Return how long after its start a container is ended at the earliest."""

    def number(key: str, default: int) -> float:
        value = probe.get(key, default)
        return value if isinstance(value, int | float) else default

    return number("initialDelaySeconds", 0) + number("periodSeconds", 10) * number("failureThreshold", 3)


def _shared_memory(server: Container) -> Iterator[Finding]:
    """Find servers that evidently use shared memory and have the default size."""
    mounts = {str(mount.get("mountPath", "")).rstrip("/") for mount in items(server.value, "volumeMounts")}
    if "/dev/shm" in mounts:  # noqa: S108 - a path in a manifest
        return
    reasons = [
        str(variable.get("name"))
        for variable in server.environment
        if _SHM_VARIABLE.match(str(variable.get("name", "")))
    ]
    parallel = server.flag("tensor-parallel-size") or server.flag("tp-size") or ""
    if parallel.isdecimal() and int(parallel) > 1:
        reasons.append(f"--tensor-parallel-size={parallel}")
    if reasons:
        message = f"container '{server.name}' needs shared memory ({reasons[0]}), but mounts nothing at /dev/shm"
        yield Finding("shm-small", server.place(), message)


def _grace_period(server: Container, workload: PodOwner) -> Iterator[Finding]:
    timeout = server.flag("exit-timeout-secs") or ""
    grace = workload.pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
    if timeout.isdecimal() and isinstance(grace, int) and int(timeout) > grace:
        message = f"--exit-timeout-secs={timeout} of container '{server.name}' exceeds the grace period of {grace} s"
        yield Finding("grace-period", workload.place("terminationGracePeriodSeconds"), message)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def check_init_containers(dockerfiles: Iterable[SourceFile], workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    """Find init containers that copy files out of an image FROM scratch.

    The image is recognised by the path that is copied: the Dockerfile writes to it.
    """
    final = [stages[-1] for source in dockerfiles if (stages := stages_of(source))]
    data = [last_stage for last_stage in final if last_stage.image == "scratch" and not last_stage.has_programs]
    for workload in workloads:
        for container in workload.containers("initContainers"):
            words = container.words
            if not words or PurePosixPath(words[0]).name not in _COPIES:
                continue
            for stage in data:
                folders = [path.rstrip("/") for path in stage.destinations if path.rstrip("/")]
                copied = next((folder for folder in folders if any(_below(word, folder) for word in words[1:])), None)
                if copied:
                    message = (
                        f"init container '{container.name}' runs {words[0]} to copy {copied}, but its image is built "
                        "FROM scratch and contains no program"
                    )
                    related = Related(stage.begin, f"the image with {copied} is built FROM scratch")
                    place = container.place()
                    yield Finding("init-container-scratch", place, message, related=(related,))


def _below(word: str, folder: str) -> bool:
    return word.rstrip("/.*") == folder or word.startswith(f"{folder}/")


# Services of compose files.


def is_compose(file: CheckedObject) -> bool:
    """Whether a document is a compose file: it has services, of which each has an image or a build."""
    services = mapping(file.value, "services")
    return bool(services) and all(
        isinstance(service, dict) and {"image", "build"} & service.keys() for service in services.values()
    )


def check_compose(file: CheckedObject) -> Iterator[Finding]:
    """Check one file."""
    volumes = mapping(file.value, "volumes")
    for name, service in mapping(file.value, "services").items():
        yield from _service_resources(file, name, service)
        # With a build, the image is what is built here, and so is what it runs.
        is_built = "build" in service or not isinstance(service.get("image"), str)
        container = Container(file, ("services", name), {**service, "image": ""} if is_built else service)
        parts = () if is_built else ("entrypoint", "command")
        yield from check_program(container, f"service '{name}'", parts, _variables(container))
        yield from _service_volumes(file, name, service, set(volumes))


def _service_resources(file: CheckedObject, name: str, service: dict[str, Any]) -> Iterator[Finding]:
    limits = mapping(service, "deploy", "resources", "limits")
    if "devices" in limits:
        place = file.place("services", name, "deploy", "resources", "limits", "devices")
        yield Finding("compose-gpu", place, f"service '{name}' has devices in deploy.resources.limits")
    devices = mapping(service, "deploy", "resources", "reservations").get("devices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        place = file.place("services", name, "deploy", "resources", "reservations", "devices", index)
        if isinstance(device, dict) and "capabilities" not in device:
            message = f"a device of service '{name}' has no capabilities"
            yield Finding("compose-invalid", place, message, "Add `capabilities: [gpu]`.")
        elif isinstance(device, dict) and "count" in device and "device_ids" in device:
            message = f"a device of service '{name}' has count and device_ids"
            yield Finding("compose-invalid", place, message, "Keep one of the two.")


def _variables(service: Container) -> Iterator[Variable]:
    environment = service.value.get("environment")
    if isinstance(environment, list):
        for index, setting in enumerate(environment):
            name, _, value = str(setting).partition("=")
            yield name, value, service.place("environment", index)
    for name, value in mapping(environment).items():
        yield str(name), "" if value is None else str(value), service.place("environment", name)


def _service_volumes(file: CheckedObject, name: str, service: dict[str, Any], named: set[str]) -> Iterator[Finding]:
    volumes = service.get("volumes")
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        place = file.place("services", name, "volumes", index)
        source, target = (
            (str(volume.get("source", "")), str(volume.get("target", "")))
            if isinstance(volume, dict)
            else (*str(volume).split(":"), "")[:2]
        )
        if source.rpartition("/")[2] == "config.pbtxt" and is_outside_of_models(target):
            yield Finding("config-elsewhere", place, f"service '{name}' mounts config.pbtxt at {target}")
        is_bind = isinstance(volume, dict) and volume.get("type", "volume") != "volume"
        if target and not is_bind and re.fullmatch(r"[A-Za-z0-9][\w.-]*", source) and source not in named:
            message = f"service '{name}' uses volume '{source}', which the file does not define"
            cure = f"Define it: `volumes: {{{source}: }}`; a folder begins with ./ or /."
            yield Finding("compose-invalid", place, message, cure)
