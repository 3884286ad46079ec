"""Run all checks: find models and files below the paths, and apply the rules to each of them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conch.check.config.configs import check_config
from conch.check.config.ensembles import check_ensembles
from conch.check.deployment.command_lines import check_command_lines
from conch.check.deployment.images import check_images, check_shm_variable
from conch.check.files.labels import check_labels
from conch.check.files.model_files import check_files
from conch.check.finding import Finding, Place
from conch.check.model import CheckedModel
from conch.check.monitoring.check import check_monitoring
from conch.check.python.models import check_other_python, check_python_model
from conch.check.rules import repository as rules
from conch.check.source import SourceFile
from conch.repository.model_folders import is_model_name

_CONFIG_FILE = "config.pbtxt"
_MODEL_FILES = ("model.py", "model.onnx", "model.xml", "model.pt", "model.pt2", "model.plan", "model.json")
_COMMANDS = (".sh", ".bash", ".yaml", ".yml", ".md", ".tf")
_DOCKERFILES = ("Dockerfile", "Containerfile")
_SKIPPED = ("node_modules",)  # in addition to the folders that the server ignores


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers of checked models and files, and the findings, sorted by file, line and rule."""

    models: int
    files: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of a path: the folders of models by repository, and other files to check."""

    repositories: dict[Path, list[Path]]
    files: list[Path]
    unreadable: list[Finding]  # folders


def check_paths(paths: Sequence[Path]) -> Report:
    """Check repositories, models' folders, and folders that hold repositories.

    Repositories given as paths are treated as repositories of one server. Raises FileNotFoundError for a path that is
    not a folder.
    """
    findings: list[Finding] = []
    models = files = 0
    named: dict[str, Path] = {}
    for path in paths:
        contents = _contents(path)
        if not contents.repositories and not contents.files:
            findings.append(Finding(rules.REPOSITORY_EMPTY, Place(path), f"no model found in {path}"))
        findings += contents.unreadable
        for root, directories in contents.repositories.items():
            models += len(directories)
            findings += _check_repository(root, directories)
            if root == path:
                findings += _duplicates(directories, named)
        files += len(contents.files)
        findings += _check_files(contents.files)
    return Report(models, files, tuple(sorted(dict.fromkeys(findings), key=_order)))


def _order(finding: Finding) -> tuple[str, int, int, str]:
    return str(finding.place.path), finding.place.line, finding.place.column, finding.rule.id


def _check_repository(root: Path, directories: Sequence[Path]) -> Iterator[Finding]:
    checked: dict[str, CheckedModel | None] = {}
    # Ensembles may use models that are not among the given paths.
    others = [path for path in sorted(root.iterdir()) if path not in directories and _is_model(path)]
    for directory in (*directories, *others):
        try:
            model, findings = _check_model(directory)
        except OSError as error:  # an unreadable folder must not prevent the check of the others
            path = Path(error.filename or directory)
            message = f"{path} cannot be read: {error.strerror}"
            model, findings = None, [Finding(rules.FILE_UNREADABLE, Place(path), message)]
        checked[directory.name] = model
        if directory in directories:
            yield from findings
    for finding in check_ensembles(checked):
        if finding.place.path.parent in directories:
            yield finding


def _check_model(directory: Path) -> tuple[CheckedModel | None, list[Finding]]:
    model, findings = check_config(directory)
    if model is not None:
        model, more = check_files(model)
        findings += (*more, *check_labels(model))
        if model.config.backend == "python":
            findings += check_python_model(model)
    return model, findings


def _duplicates(directories: Sequence[Path], named: dict[str, Path]) -> Iterator[Finding]:
    for directory in directories:
        first = named.setdefault(directory.name, directory)
        if first != directory:
            message = f"model '{directory.name}' is in {first.parent} and in {directory.parent}"
            yield Finding(rules.MODEL_DUPLICATE, Place(directory), message)


def _check_files(paths: Sequence[Path]) -> Iterator[Finding]:
    sources = [source for path in paths if (source := SourceFile.read(path)) is not None]
    together: dict[Path, list[SourceFile]] = defaultdict(list)
    for source in sources:
        if source.path.suffix == ".py":
            yield from check_other_python(source.path)
            continue
        if source.path.suffix == ".json":
            continue
        yield from check_command_lines(source)
        if source.path.suffix != ".md":
            yield from check_shm_variable(source)
        together[source.path.parent].append(source)
    yield from check_monitoring(sources)
    for directory, here in together.items():
        # A text describes the files beside it and in folders below, such as the README of a chart or project.
        texts = [each for each in sources if each.path.suffix == ".md" and directory.is_relative_to(each.path.parent)]
        yield from check_images([*(each for each in here if each.path.suffix != ".md"), *texts])


def _contents(path: Path) -> _Contents:
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder '{path}'")
    if _is_model(path) and not any(_is_model(child) for child in path.iterdir()):
        return _Contents(
            {path.resolve().parent: [path.resolve()]} if path.name in ("", "..") else {path.parent: [path]}, [], []
        )
    unreadable: list[Finding] = []

    def note(error: OSError) -> None:
        message = f"the folder {error.filename} cannot be read: {error.strerror}"
        unreadable.append(Finding(rules.FILE_UNREADABLE, Place(Path(error.filename)), message))

    repositories: dict[Path, list[Path]] = {}
    files: list[Path] = []
    for folder, subfolders, names in os.walk(path, onerror=note):
        here = Path(folder)
        children = [here / name for name in sorted(subfolders) if _is_searched(here / name)]
        if any(map(_is_model, children)):
            # For the server, every folder of a repository is a model.
            repositories[here] = children
            children = []
        subfolders[:] = [child.name for child in children]
        files += [here / name for name in sorted(names) if _is_checked(name)]
    return _Contents(repositories, files, unreadable)


def _is_model(path: Path) -> bool:
    if not path.is_dir() or path.name.startswith("."):
        return False
    try:
        if (path / _CONFIG_FILE).exists():
            return True
        versions = [child for child in path.iterdir() if child.is_dir() and child.name.isdecimal()]
        return any((version / name).exists() for version in versions for name in _MODEL_FILES)
    except OSError:
        return False  # `os.walk` reports an unreadable folder


def _is_searched(path: Path) -> bool:
    if not is_model_name(path.name) or path.name in _SKIPPED:
        return False
    try:
        return not (path / "pyvenv.cfg").exists()
    except OSError:
        return True  # `os.walk` reports an unreadable folder


def _is_checked(name: str) -> bool:
    return not name.startswith(".") and (name.endswith((*_COMMANDS, ".json", ".py")) or name.startswith(_DOCKERFILES))
