"""Check the services of compose files."""

import re
from collections.abc import Iterator
from typing import Any

from conch.base.kubernetes.objects import mapping
from conch.check.deployment.dockerfiles import is_outside_of_models
from conch.check.deployment.objects import CheckedObject, Container
from conch.check.deployment.workloads import Variable, check_program
from conch.check.finding import Finding


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
        yield from _resources(file, name, service)
        # With a build, the image is what is built here, and so is what it runs.
        is_built = "build" in service or not isinstance(service.get("image"), str)
        container = Container(file, ("services", name), {**service, "image": ""} if is_built else service)
        parts = () if is_built else ("entrypoint", "command")
        yield from check_program(container, f"service '{name}'", parts, _variables(container))
        yield from _volumes(file, name, service, set(volumes))


def _resources(file: CheckedObject, name: str, service: dict[str, Any]) -> Iterator[Finding]:
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


def _volumes(file: CheckedObject, name: str, service: dict[str, Any], named: set[str]) -> Iterator[Finding]:
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
