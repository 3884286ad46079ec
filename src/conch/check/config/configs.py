"""The configuration of one model, read with the server's own code, so that the two never disagree."""

import json
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conch.backends.registry import requirement
from conch.check.config.syntax_repair import mending
from conch.check.finding import Edit, Finding, Place, Rule
from conch.check.model import CheckedModel, ModelFolder
from conch.check.rules import repository as rules
from conch.check.source import SourceFile, before
from conch.errors import ConchError, ConfigError, ModelLoadError
from conch.repository.config.document import to_document
from conch.repository.config.pbtxt import parse_pbtxt
from conch.repository.config.resolve import resolve
from conch.repository.config.unsupported import refuse_unsupported
from conch.repository.config.validate import validate_configuration
from conch.repository.override import Override
from conch.repository.store import ModelFiles, Repository

_CONFIG_FILE = "config.pbtxt"
_PLACE = re.compile(r"^.*?:(?P<line>\d+):(?P<column>\d+): (?P<said>.*)$", re.DOTALL)
_MOST_MISTAKES = 20  # in one file

# Fields without which a configuration is still one, so that what else is wrong can be found beside them.
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


def check_config(directory: Path) -> tuple[CheckedModel | None, list[Finding]]:
    """Read a configuration; return the model, None if nobody could tell what it is, and what is wrong."""
    path = directory / _CONFIG_FILE
    folder = ModelFolder(directory, SourceFile.read(path) if path.is_file() else None)
    repository = Repository([directory.parent])
    try:
        files = repository.read(folder.name)
    except ConchError as error:
        if folder.source is None:
            return None, [Finding(rules.CONFIG_INVALID, Place(path if path.is_file() else directory), error.message)]
        return _read_on(folder, folder.source, repository)
    return _finished(folder, files, [])


def _read_on(
    folder: ModelFolder, source: SourceFile, repository: Repository
) -> tuple[CheckedModel | None, list[Finding]]:
    """Find all that can be found in a configuration that the server refuses at its first mistake."""
    message, mistakes = _parsed(source)
    while message is not None:
        try:
            files = repository.read(folder.name, Override(config=json.dumps(to_document(message))))
        except ConchError as error:
            said = error.message.removesuffix(f" ('config' of the load of '{folder.name}')")  # which is how it was read
            mistakes.append(Finding(_rule(error), folder.locate(said), said))
            if not _without_cause(message, said):
                break
        else:
            return _finished(folder, files, mistakes)
    return None, mistakes


def _parsed(source: SourceFile) -> tuple[Any, list[Finding]]:
    """Return the message of a text, None if it cannot be had, and each mistake on the way to it."""
    mistakes: list[Finding] = []
    mended, history = source, list[tuple[Edit, ...]]()
    while len(mistakes) < _MOST_MISTAKES:
        try:
            return parse_pbtxt(mended.text, str(source.path)), mistakes
        except ConfigError as error:
            match = _PLACE.match(error.message)
            assert match is not None  # parse_pbtxt promises the place
            said, offset = match["said"], mended.offset(int(match["line"]), int(match["column"]))
            mend = mending(mended, offset, said)
            rule = rules.CONFIG_UNKNOWN if said.startswith("unknown ") else rules.CONFIG_SYNTAX
            edits = tuple(_in_file(edit, history) for edit in mend.edits) if mend and mend.certain else ()
            place = source.at(_before_all(offset, history))
            mistakes.append(Finding(rule, place, said, "`conch check --fix` mends it." if edits else "", edits=edits))
            if mend is None:
                break
            mended = mended.edited(mend.edits)
            history.append(mend.edits)
    return None, mistakes


def _in_file(edit: Edit, history: Sequence[tuple[Edit, ...]]) -> Edit:
    """An edit of a text that was mended before as one of the text in the file."""
    return Edit(_before_all(edit.start, history), _before_all(edit.end, history), edit.replacement)


def _before_all(offset: int, history: Sequence[tuple[Edit, ...]]) -> int:
    for edits in reversed(history):
        offset = before(offset, edits)
    return offset


def _rule(error: ConchError) -> Rule:
    if "is not supported by this version" in error.message:
        return rules.CONFIG_UNSUPPORTED
    if "directory name must equal model name" in error.message:
        return rules.MODEL_NAME
    if "needs --model-namespacing" in error.message:
        return rules.CONFIG_NAMESPACE
    return rules.CONFIG_INVALID


def _without_cause(message: Any, said: str) -> bool:
    """Remove from a message the field that an error is about, if it can be done without; whether that was so."""
    if "directory name must equal model name" in said:
        message.name = ""
        return True
    if "needs --model-namespacing" in said:
        for step in message.ensemble_scheduling.step:
            step.model_namespace = ""
        return True
    for field in _SEPARABLE:
        if field not in {each.name for each, _ in message.ListFields()}:
            continue
        without = type(message)()
        without.CopyFrom(message)
        without.ClearField(field)
        if _first_error(without) != said:
            message.ClearField(field)
            return True
    return False


def _first_error(message: Any) -> str:
    try:
        validate_configuration(message)
        refuse_unsupported(message)
    except ConfigError as error:
        return error.message
    return ""


def _finished(folder: ModelFolder, files: ModelFiles, mistakes: list[Finding]) -> tuple[CheckedModel, list[Finding]]:
    """Fill in the defaults and hold the tensors against the rules, as the server does before it loads."""
    try:
        finished = resolve(files.document, backend=None, gpus=named_gpus(files))
    except ConfigError as error:
        mistake = Finding(_rule(error), folder.locate(error.message), error.message)
        return CheckedModel(folder, files, files.config), [*mistakes, mistake]
    notices = [Finding(rules.CONFIG_NO_EFFECT, folder.locate(notice), notice) for notice in finished.notices]
    return CheckedModel(folder, files, finished.config), [*mistakes, *_backend(folder, files), *notices]


def _backend(folder: ModelFolder, files: ModelFiles) -> Iterator[Finding]:
    """Check that the backend is one of this environment's; its package is looked for and not imported."""
    name = files.config.backend
    if files.config.is_ensemble:
        return
    try:
        needed = requirement(name)
    except ModelLoadError as error:
        yield Finding(rules.BACKEND_UNKNOWN, folder.locate(f"'{name}'"), error.message)
        return
    if needed and find_spec(needed[0]) is None:
        said = f"backend '{name}' needs the package '{needed[0]}': pip install 'conch-server[{needed[1]}]'"
        yield Finding(rules.BACKEND_NOT_INSTALLED, folder.locate(f"'{name}'"), said)


def is_known(backend: str) -> bool:
    """Whether there is such a backend; `backend-unknown` has told if not."""
    try:
        requirement(backend)
    except ModelLoadError:
        return False
    return True


def named_gpus(files: ModelFiles) -> list[int]:
    """Return the devices that a configuration may count on: a check is about the repository, not about this machine."""
    return sorted({0, *(gpu for group in files.config.instance_groups for gpu in group.gpus)})
