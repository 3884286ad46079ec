"""Check the services of compose files."""

import re
from collections.abc import Iterator
from typing import Any

from conch.base.kubernetes.objects import mapping
from conch.check.deployment.command_lines import Word, check_conch_command
from conch.check.deployment.dockerfiles import is_outside_of_models
from conch.check.deployment.objects import CheckedObject
from conch.check.deployment.plain_text import is_secret, secret_message
from conch.check.finding import Finding

_UNVERSIONED = re.compile(r"^[\w./-]+(?::\d+/[\w./-]+)?(?::latest)?$")


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
        yield from _image(file, name, service)
        yield from _command(file, name, service)
        yield from _environment(file, name, service)
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


def _image(file: CheckedObject, name: str, service: dict[str, Any]) -> Iterator[Finding]:
    image = service.get("image")
    # With a build, the name is that of what is built here.
    if isinstance(image, str) and _UNVERSIONED.match(image) and "build" not in service:
        yield Finding("image-latest", file.place("services", name, "image"), f"service '{name}' runs {image}")


def _command(file: CheckedObject, name: str, service: dict[str, Any]) -> Iterator[Finding]:
    image = service.get("image")
    if isinstance(image, str) and "build" not in service:
        words = [_words(file, name, service, part) for part in ("entrypoint", "command")]
        yield from check_conch_command(image, *words)


def _words(file: CheckedObject, name: str, service: dict[str, Any], part: str) -> list[Word]:
    found = service.get(part)
    if isinstance(found, str):
        return [Word(word, file.place("services", name, part)) for word in found.split()]
    parts = found if isinstance(found, list) else ()
    return [Word(str(word), file.place("services", name, part, index)) for index, word in enumerate(parts)]


def _environment(file: CheckedObject, name: str, service: dict[str, Any]) -> Iterator[Finding]:
    environment = service.get("environment")
    if isinstance(environment, list):
        settings = [(*str(setting).partition("=")[::2], index) for index, setting in enumerate(environment)]
    elif isinstance(environment, dict):
        settings = [(str(key), "" if value is None else str(value), key) for key, value in environment.items()]
    else:
        return
    for variable, value, key in settings:
        if is_secret(variable, value):
            place = file.place("services", name, "environment", key)
            message = secret_message(f"variable {variable} of service '{name}'")
            yield Finding("secret-text", place, message)


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
