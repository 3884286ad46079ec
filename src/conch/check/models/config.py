"""Check a model's configuration with the server's code, so that both agree, and repair its syntax to find more."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError, ConfigError, ModelLoadError
from conch.base.extras import install_command
from conch.check.finding import Edit, Finding, Place
from conch.check.models.checked_model import CheckedModel, ModelFolder
from conch.check.source import SourceFile, before
from conch.domain.config.document import to_document
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.resolve import resolve
from conch.domain.config.unsupported import refuse_unsupported
from conch.domain.config.validate import validate_configuration
from conch.server.backends.registry import requirement
from conch.server.repository.agents import run_agents
from conch.server.repository.override import Override
from conch.server.repository.store import ModelFiles, Repository

_CONFIG_FILE = "config.pbtxt"
_PLACE = re.compile(r"^.*?:(?P<line>\d+):(?P<column>\d+): (?P<text>.*)$", re.DOTALL)
_PLATFORM_ERROR = "unexpected platform type"
_PLATFORM = re.compile(r"^[ \t]*(platform)[ \t]*:[ \t]*[\"'](\w+)[\"']", re.MULTILINE)
_MAX_MISTAKES = 20  # in one file

# Optional fields: they are removed after an error, so that the remaining errors can be found.
_SEPARABLE = (
    "dynamic_batching",
    "instance_group",
    "model_warmup",
    "model_metrics",
    "model_repository_agents",
    "response_cache",
    "sequence_batching",
    "default_model_filename",
    "optimization",
)
_DID_YOU_MEAN = re.compile(
    r"unknown (?:field|value) ['\"]?(?P<wrong>[^'\" ]+)['\"]? .*did you mean '?(?P<right>\w+)'?\?"
)
_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w.+-]+|[^\s\w]")


def check_config(directory: Path) -> tuple[CheckedModel | None, list[Finding]]:
    """Read a configuration; return the model, None if it cannot be identified, and the findings."""
    path = directory / _CONFIG_FILE
    folder = ModelFolder(directory, SourceFile.read(path) if path.is_file() else None)
    repository = Repository([directory.parent], agents=partial(run_agents, static=True))
    try:
        files = repository.read(folder.name)
    except ConchError as error:
        if folder.source is None:
            return None, [Finding("config-invalid", Place(path if path.is_file() else directory), error.message)]
        return _all_mistakes(folder, folder.source, repository)
    return _resolved(folder, files, [])


def _all_mistakes(
    folder: ModelFolder, source: SourceFile, repository: Repository
) -> tuple[CheckedModel | None, list[Finding]]:
    """Find as many mistakes as possible in a configuration, of which the server reports only the first."""
    message, mistakes = _parsed(source)
    while message is not None:
        try:
            files = repository.read(folder.name, Override(config=json.dumps(to_document(message))))
        except ConchError as error:
            text = error.message.removesuffix(f" ('config' of the load of '{folder.name}')")  # the override above
            edits = _platform_edits(source, text)
            cure = f'Write backend: "{message.platform}".' if edits else ""
            mistakes.append(Finding(_rule(error), folder.locate(text), text, cure, edits=edits))
            if not _remove_cause(message, text):
                break
        else:
            return _resolved(folder, files, mistakes)
    return None, mistakes


def _parsed(source: SourceFile) -> tuple[Any, list[Finding]]:
    """Return the message of a text, None if it cannot be repaired, and the syntax errors."""
    mistakes: list[Finding] = []
    repaired, history = source, list[tuple[Edit, ...]]()
    while len(mistakes) < _MAX_MISTAKES:
        try:
            return parse_pbtxt(repaired.text, str(source.path)), mistakes
        except ConfigError as error:
            match = _PLACE.match(error.message)
            assert match is not None  # parse_pbtxt promises the place
            text, offset = match["text"], repaired.offset(int(match["line"]), int(match["column"]))
            repair = find_repair(repaired, offset, text)
            rule = "config-unknown" if text.startswith("unknown ") else "config-syntax"
            edits = tuple(_in_file(edit, history) for edit in repair.edits) if repair and repair.certain else ()
            place = source.at(_before_all(offset, history))
            mistakes.append(Finding(rule, place, text, "Run `conch check --fix`." if edits else "", edits=edits))
            if repair is None:
                break
            repaired = repaired.edited(repair.edits)
            history.append(repair.edits)
    return None, mistakes


def _in_file(edit: Edit, history: Sequence[tuple[Edit, ...]]) -> Edit:
    """Convert an edit of the repaired text to one of the text in the file."""
    return Edit(_before_all(edit.start, history), _before_all(edit.end, history), edit.replacement)


def _before_all(offset: int, history: Sequence[tuple[Edit, ...]]) -> int:
    for edits in reversed(history):
        offset = before(offset, edits)
    return offset


def _rule(error: ConchError) -> str:
    if "is not supported by this version" in error.message:
        return "config-unsupported"
    if "directory name must equal model name" in error.message:
        return "model-name"
    if "needs --model-namespacing" in error.message:
        return "config-namespace"
    return "config-invalid"


def _remove_cause(message: Any, error: str) -> bool:
    """Remove the field that causes an error from a message, and return whether that was possible."""
    if "directory name must equal model name" in error:
        message.name = ""
        return True
    if _PLATFORM_ERROR in error and is_known(message.platform):
        message.backend, message.platform = message.platform, ""
        return True
    if "needs --model-namespacing" in error:
        for step in message.ensemble_scheduling.step:
            step.model_namespace = ""
        return True
    for field in _SEPARABLE:
        if field not in {descriptor.name for descriptor, _ in message.ListFields()}:
            continue
        without = type(message)()
        without.CopyFrom(message)
        without.ClearField(field)
        if _first_error(without) != error:
            message.ClearField(field)
            return True
    return False


def _platform_edits(source: SourceFile, error: str) -> tuple[Edit, ...]:
    """Return the edit that makes the platform a backend, if a backend has its name: `platform: "python"`."""
    match = _PLATFORM.search(source.text) if _PLATFORM_ERROR in error else None
    if match is None or not is_known(match[2]):
        return ()
    return (Edit(match.start(1), match.end(1), "backend"),)


def _first_error(message: Any) -> str:
    try:
        validate_configuration(message)
        refuse_unsupported(message)
    except ConfigError as error:
        return error.message
    return ""


def _resolved(folder: ModelFolder, files: ModelFiles, mistakes: list[Finding]) -> tuple[CheckedModel, list[Finding]]:
    """Fill in the defaults and check the tensors, as the server does before it loads the model."""
    try:
        resolved = resolve(files.document, backend=None, gpus=named_gpus(files))
    except ConfigError as error:
        mistake = Finding(_rule(error), folder.locate(error.message), error.message)
        return CheckedModel(folder, files, files.config), [*mistakes, mistake]
    notices = [Finding("config-no-effect", folder.locate(notice), notice) for _, notice in resolved.notices]
    return CheckedModel(folder, files, resolved.config), [*mistakes, *_backend(folder, files), *notices]


def _backend(folder: ModelFolder, files: ModelFiles) -> Iterator[Finding]:
    """Check that the backend exists and its package is installed, without importing it."""
    name = files.config.backend
    if files.config.is_ensemble:
        return
    try:
        needed = requirement(name)
    except ModelLoadError as error:
        yield Finding("backend-unknown", folder.locate(f"'{name}'"), error.message)
        return
    if needed and find_spec(needed[0]) is None:
        message = f"backend '{name}' needs the package '{needed[0]}': {install_command(needed[1])}"
        yield Finding("backend-not-installed", folder.locate(f"'{name}'"), message)


def is_known(backend: str) -> bool:
    """Whether the backend exists; if not, `backend-unknown` is already a finding."""
    try:
        requirement(backend)
    except ModelLoadError:
        return False
    return True


def named_gpus(files: ModelFiles) -> list[int]:
    """Return the GPUs that a configuration names: a check assumes them, because the server's machine may have them."""
    return sorted({0, *(gpu for group in files.config.instance_groups for gpu in group.gpus)})


@dataclass(frozen=True, slots=True)
class Repair:
    """Edits that make a text parseable. `certain`: no other interpretation is possible, so `--fix` may write them."""

    edits: tuple[Edit, ...]
    certain: bool


def find_repair(source: SourceFile, offset: int, error: str) -> Repair | None:
    """Return a repair of the mistake at a place, by the parser's error message; None if none is obvious."""
    if "is one message, not a list" in error:
        return _unwrapped(source.text, offset)
    if source.text[offset : offset + 1] == "]" and source.text[:offset].rstrip().endswith(","):
        comma = source.text.rfind(",", 0, offset)
        return Repair((Edit(comma, comma + 1, ""),), certain=True)
    if "is a string: write it in quotes" in error:
        word = re.compile(r"[\w.+-]+").match(source.text, offset)
        return Repair((Edit(offset, word.end(), f'"{word[0]}"'),), certain=True) if word else None
    if match := re.search(r"write it without quotes: (\w+)", error):
        quoted = re.compile(r"[\"'][^\"'\n]*[\"']").search(source.text, max(offset - 1, 0))
        return Repair((Edit(quoted.start(), quoted.end(), match[1]),), certain=True) if quoted else None
    if match := _DID_YOU_MEAN.search(error):
        start = source.text.find(match["wrong"], max(offset - 1, 0))
        edit = Edit(start, start + len(match["wrong"]), match["right"])
        # A missing TYPE_ is certain; a similar name is not.
        return Repair((edit,), certain=match["right"] == f"TYPE_{match['wrong']}") if start >= 0 else None
    return None


def _unwrapped(text: str, start: int) -> Repair | None:
    """Change `field [ { … } ]` to `field { … }`, if the list has exactly one message."""
    depth, messages = 0, 0
    for match in _TOKEN.finditer(text, start):
        mark = match[0]
        if mark in "[{":
            depth += 1
            messages += mark == "{" and depth == 2
        elif mark in "]}":
            depth -= 1
        if depth == 0:
            break
    else:
        return None
    opening = re.compile(r"\[[ \t]*").match(text, start)
    end = text.rfind("}", 0, match.start()) + 1
    # With several messages, none, or a comma or comment between the brackets, the repair is not certain.
    if mark != "]" or messages != 1 or opening is None or text[end : match.start()].strip():
        return None
    closing = end if "\n" not in text[end : match.start()] else match.start()
    return Repair((Edit(start, opening.end(), ""), Edit(closing, match.end(), "")), certain=True)
