"""Check Dockerfiles: images FROM scratch, versions of base images, secrets, and misplaced configurations."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from conch.check.deployment.plain_text import is_secret, secret_message
from conch.check.finding import Finding, Place
from conch.check.source import SourceFile

NAMES = ("Dockerfile", "Containerfile")
_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_SETTING = re.compile(r"([A-Za-z_][\w-]*)=(\"[^\"]*\"|'[^']*'|\S+)")
_PROGRAM_FOLDERS = ("/bin", "/usr/bin", "/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction with its continuation lines joined."""

    name: str  # in upper case
    text: str
    place: Place


@dataclass(slots=True)
class Stage:
    """A stage: its base image and its instructions."""

    image: str
    begin: Place
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def destinations(self) -> list[str]:
        """The paths that COPY and ADD write to."""
        return [
            _words(instruction.text)[-1]
            for instruction in self.instructions
            if instruction.name in ("COPY", "ADD") and _words(instruction.text)
        ]

    @property
    def has_programs(self) -> bool:
        """Whether anything that a command can run was copied into it, as far as paths show that."""
        paths = [PurePosixPath(destination) for destination in self.destinations]
        return any(
            str(path) == "/"
            or str(path).startswith(_PROGRAM_FOLDERS)
            or path.name in ("bin", "app", "busybox", "server")
            for path in paths
        ) or any("--from=" in instruction.text for instruction in self.instructions if instruction.name == "COPY")


def is_dockerfile(source: SourceFile) -> bool:
    """Whether the name of a file is that of a Dockerfile."""
    return source.path.name.startswith(NAMES) or source.path.suffix.lower() in (".dockerfile", ".containerfile")


def check_dockerfile(source: SourceFile) -> Iterator[Finding]:
    """Check one file."""
    stages = stages_of(source)
    names = {_stage_name(named_stage) for named_stage in stages}
    for stage in stages:
        yield from _base(stage, names)
        for instruction in stage.instructions:
            if instruction.name in ("ENV", "ARG"):
                yield from _secrets(instruction)
            elif instruction.name in ("COPY", "ADD"):
                yield from _configuration(instruction)
        if stage.image == "scratch":
            yield from _scratch(stage)


def stages_of(source: SourceFile) -> list[Stage]:
    """Return the stages of a file."""
    stages: list[Stage] = []
    for instruction in _instructions(source):
        if instruction.name == "FROM":
            image = next((word for word in instruction.text.split() if not word.startswith("--")), "")
            stages.append(Stage(image, instruction.place))
        if stages:
            stages[-1].instructions.append(instruction)
    return stages


def _instructions(source: SourceFile) -> Iterator[Instruction]:
    parts: list[str] = []
    begin, end = 0, ""
    for number, line in enumerate(source.text.split("\n"), 1):
        if end:  # inside a here-document
            end = "" if line.strip() == end else end
            continue
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        begin = begin if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if line.rstrip().endswith("\\"):
            continue
        match = _INSTRUCTION.match(" ".join(parts))
        if match:
            column = len(parts[0]) - len(parts[0].lstrip()) + 1
            yield Instruction(match[1].upper(), match[2].strip(), Place(source.path, begin, column))
            document = re.search(r"<<-?[\"']?(\w+)", match[2]) if match[1].upper() in ("RUN", "COPY", "ADD") else None
            end = document[1] if document else ""
        parts = []


def _base(stage: Stage, names: set[str]) -> Iterator[Finding]:
    image = stage.image
    if image in ("scratch", *names) or "$" in image or "@" in image:
        return
    tag = image.rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        yield Finding("image-latest", stage.begin, f"the image begins with {image}")


def _scratch(stage: Stage) -> Iterator[Finding]:
    if stage.has_programs:
        return
    for instruction in stage.instructions:
        is_shell = instruction.name == "RUN" or (
            instruction.name in ("CMD", "ENTRYPOINT") and not _is_json(instruction.text)
        )
        if is_shell:
            message = f"{instruction.name} needs a shell, which an image FROM scratch does not have"
            yield Finding("image-scratch-command", instruction.place, message)
            return
    if any(instruction.name in ("COPY", "ADD") for instruction in stage.instructions):
        copied = ", ".join(stage.destinations)
        yield Finding("image-scratch", stage.begin, f"the image contains only {copied}")


def _secrets(instruction: Instruction) -> Iterator[Finding]:
    settings = _SETTING.findall(instruction.text)
    if not settings and instruction.name == "ENV" and len(words := instruction.text.split(None, 1)) == 2:
        settings = [(words[0], words[1])]
    for name, value in settings:
        if is_secret(name, value.strip("\"'")):
            message = secret_message(f"{instruction.name} {name}")
            yield Finding("secret-text", instruction.place, message)


def _configuration(instruction: Instruction) -> Iterator[Finding]:
    words = _words(instruction.text)
    if words and any(word.rpartition("/")[2] == "config.pbtxt" for word in words[:-1]):
        target = words[-1]
        if is_outside_of_models(target):
            message = f"{instruction.name} writes config.pbtxt to {target}"
            yield Finding("config-elsewhere", instruction.place, message)


def is_outside_of_models(target: str) -> bool:
    """Whether a path for a config.pbtxt is inside the server's installation, which is never a model repository."""
    return target.startswith(("/opt/tritonserver/", "/etc/")) and "/models/" not in target


def _stage_name(stage: Stage) -> str:
    words = stage.instructions[0].text.split()
    return words[-1] if len(words) > 2 and words[-2].upper() == "AS" else ""


def _words(text: str) -> list[str]:
    try:
        words = json.loads(text)
        return [str(word) for word in words] if isinstance(words, list) else []
    except ValueError:
        return [word for word in text.split() if not word.startswith("--")]


def _is_json(text: str) -> bool:
    return text.startswith("[") and bool(_words(text))
