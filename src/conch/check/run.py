"""From paths to findings: which models and files there are, and every rule for each of them."""

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
from conch.check.python.models import check_other_python, check_python_model
from conch.check.rules import repository as rules
from conch.check.source import SourceFile
from conch.repository.model_folders import is_model_name

_CONFIG_FILE = "config.pbtxt"
_MODEL_FILES = ("model.py", "model.onnx", "model.xml", "model.pt", "model.pt2", "model.plan", "model.json")
_COMMANDS = (".sh", ".bash", ".yaml", ".yml", ".md", ".tf")
_DOCKERFILES = ("Dockerfile", "Containerfile")
_SKIPPED = ("node_modules",)  # beside the folders that the server passes over


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what was found: by file, line and rule."""

    models: int
    files: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Ground:
    """What there is below a path: the folders of models by their repository, and files beside them."""

    repositories: dict[Path, list[Path]]
    files: list[Path]
    unreadable: list[Finding]  # folders


def check_paths(paths: Sequence[Path]) -> Report:
    """Check repositories, models' folders, and folders that hold repositories.

    Repositories that are named themselves are taken for those of one server. Raises FileNotFoundError for a path that
    is no folder.
    """
    findings: list[Finding] = []
    models = files = 0
    named: dict[str, Path] = {}
    for path in paths:
        ground = _survey(path)
        if not ground.repositories and not ground.files:
            findings.append(Finding(rules.REPOSITORY_EMPTY, Place(path), f"no model was found in {path}"))
        findings += ground.unreadable
        for root, directories in ground.repositories.items():
            models += len(directories)
            findings += _check_repository(root, directories)
            if root == path:
                findings += _duplicates(directories, named)
        files += len(ground.files)
        findings += _check_files(ground.files)
    return Report(models, files, tuple(sorted(dict.fromkeys(findings), key=_order)))


def _order(finding: Finding) -> tuple[str, int, int, str]:
    return str(finding.place.path), finding.place.line, finding.place.column, finding.rule.id


def _check_repository(root: Path, directories: Sequence[Path]) -> Iterator[Finding]:
    checked: dict[str, CheckedModel | None] = {}
    # Ensembles may be made of models that were not asked about.
    others = [path for path in sorted(root.iterdir()) if path not in directories and _is_model(path)]
    for directory in (*directories, *others):
        try:
            model, findings = _check_model(directory)
        except OSError as error:  # one folder must not keep the others from being checked
            path = Path(error.filename or directory)
            said = f"{path} cannot be read: {error.strerror}"
            model, findings = None, [Finding(rules.FILE_UNREADABLE, Place(path), said)]
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
            said = f"model '{directory.name}' is in {first.parent} and in {directory.parent}"
            yield Finding(rules.MODEL_DUPLICATE, Place(directory), said)


def _check_files(paths: Sequence[Path]) -> Iterator[Finding]:
    sources = [source for path in paths if (source := SourceFile.read(path)) is not None]
    together: dict[Path, list[SourceFile]] = defaultdict(list)
    for source in sources:
        if source.path.suffix == ".py":
            yield from check_other_python(source.path)
            continue
        yield from check_command_lines(source)
        if source.path.suffix != ".md":
            yield from check_shm_variable(source)
        together[source.path.parent].append(source)
    for directory, here in together.items():
        # A text tells of what lies beside it and in the folders around it: a README of the chart, or of the project.
        texts = [each for each in sources if each.path.suffix == ".md" and directory.is_relative_to(each.path.parent)]
        yield from check_images([*(each for each in here if each.path.suffix != ".md"), *texts])


def _survey(path: Path) -> _Ground:
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder '{path}'")
    if _is_model(path) and not any(_is_model(child) for child in path.iterdir()):
        return _Ground(
            {path.resolve().parent: [path.resolve()]} if path.name in ("", "..") else {path.parent: [path]}, [], []
        )
    unreadable: list[Finding] = []

    def note(error: OSError) -> None:
        said = f"the folder {error.filename} cannot be read: {error.strerror}"
        unreadable.append(Finding(rules.FILE_UNREADABLE, Place(Path(error.filename)), said))

    repositories: dict[Path, list[Path]] = {}
    files: list[Path] = []
    for folder, subfolders, names in os.walk(path, onerror=note):
        here = Path(folder)
        children = [here / name for name in sorted(subfolders) if _is_looked_into(here / name)]
        if any(map(_is_model, children)):
            # As the server sees it, every folder of a repository is a model.
            repositories[here] = children
            children = []
        subfolders[:] = [child.name for child in children]
        files += [here / name for name in sorted(names) if _is_looked_at(name)]
    return _Ground(repositories, files, unreadable)


def _is_model(path: Path) -> bool:
    if not path.is_dir() or path.name.startswith("."):
        return False
    try:
        if (path / _CONFIG_FILE).exists():
            return True
        versions = [child for child in path.iterdir() if child.is_dir() and child.name.isdecimal()]
        return any((version / name).exists() for version in versions for name in _MODEL_FILES)
    except OSError:
        return False  # a folder that cannot be read is reported where it is walked through


def _is_looked_into(path: Path) -> bool:
    if not is_model_name(path.name) or path.name in _SKIPPED:
        return False
    try:
        return not (path / "pyvenv.cfg").exists()
    except OSError:
        return True  # a folder that cannot be read is reported where it is walked through


def _is_looked_at(name: str) -> bool:
    return not name.startswith(".") and (name.endswith((*_COMMANDS, ".py")) or name.startswith(_DOCKERFILES))
