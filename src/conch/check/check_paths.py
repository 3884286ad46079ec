"""Check paths, or a text: find models and files, apply the rules, drop suppressed findings, fix what is safe to fix."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from conch.base.files.atomic import replace_file
from conch.check.deployment.check import Served, check_deployment
from conch.check.deployment.plain_text import check_images, check_page
from conch.check.discovery import files_contents, find_contents, is_model
from conch.check.finding import Finding, Place, Related, unapplied_rules
from conch.check.models.checked_model import CheckedModel
from conch.check.models.config import check_config
from conch.check.models.ensembles import check_ensembles
from conch.check.models.model_files import check_files, check_labels
from conch.check.python.check import check_other_python, check_python_model, declared_metrics
from conch.check.source import SourceFile, SourceReader, UncheckedFileError

STDIN_NAME = Path("<stdin>")
# Kind → the name of the file that has such contents.
KINDS = {
    "config": "stdin/config.pbtxt",
    "dockerfile": "Dockerfile",
    "json": "stdin.json",
    "markdown": "stdin.md",
    "python": "stdin.py",
    "shell": "stdin.sh",
    "systemd": "stdin.service",
    "terraform": "stdin.tf",
    "yaml": "stdin.yaml",
}
_MAX_ROUNDS = 50  # of fixes


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers of checked models and files, and the findings, sorted by file, line and rule.

    `reader` has the texts of the files with findings.
    """

    models: int
    files: int
    findings: tuple[Finding, ...]
    reader: SourceReader = field(default_factory=SourceReader, compare=False)


def check_paths(paths: Sequence[Path]) -> Report:
    """Check repositories, models' folders, and folders that hold repositories.

    Repositories given as paths are treated as repositories of one server. Files given as paths are checked together;
    one of a model stands for the model. Raises FileNotFoundError for a path that does not exist.
    """
    findings: list[Finding] = []
    reader = SourceReader()
    models = files = 0
    named: dict[str, Path] = {}
    single = [path for path in paths if path.is_file()]
    contained = [(path, find_contents(path)) for path in paths if not path.is_file()]
    if single:
        contained.append((single[0].parent, files_contents(single)))
    for path, contents in contained:
        if not contents.repositories and not contents.files:
            findings.append(Finding("repository-empty", Place(path), f"no model found in {path}"))
        findings += contents.unreadable
        for root, directories in contents.repositories.items():
            models += len(directories)
            findings += _check_repository(root, directories)
            if root == path:
                findings += _duplicates(directories, named)
        files += len(contents.files)
        directories = [folder for every in contents.repositories.values() for folder in every]
        findings += _check_files(contents.files, directories, reader)
    left = unsuppressed(_unique(findings), reader)
    return Report(models, files, tuple(sorted(left, key=_order)), reader)


def _unique(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Remove duplicates. That a package is missing is one finding, whatever the number of paths and files."""
    absent = unapplied_rules()
    keyed = {finding.message if finding.rule_id in absent else finding: finding for finding in reversed([*findings])}
    return keyed.values()


def _order(finding: Finding) -> tuple[str, int, int, str]:
    return str(finding.place.path), finding.place.line, finding.place.column, finding.rule_id


def _check_repository(root: Path, directories: Sequence[Path]) -> Iterator[Finding]:
    checked: dict[str, CheckedModel | None] = {}
    # Ensembles may use models that are not among the given paths.
    chosen = frozenset(directories)
    others = (path for path in sorted(root.iterdir()) if path not in chosen and is_model(path))
    for directory in chain(directories, others):
        if directory not in chosen and not any(
            checked_model and checked_model.config.is_ensemble for checked_model in checked.values()
        ):
            break
        try:
            model, findings = _check_model(directory)
        except OSError as error:  # an unreadable folder must not prevent the check of the others
            path = Path(error.filename or directory)
            message = f"{path} cannot be read: {error.strerror}"
            model, findings = None, [Finding("file-unreadable", Place(path), message)]
        checked[directory.name] = model
        if directory in chosen:
            yield from findings
    for finding in check_ensembles(checked):
        if finding.place.path.parent in chosen:
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
            yield Finding("model-duplicate", Place(directory), message)


def _check_files(paths: Sequence[Path], models: Sequence[Path], reader: SourceReader) -> Iterator[Finding]:
    """Check the files beside models; `models` are the folders of these."""
    sources: list[SourceFile] = []
    for path in paths:
        try:
            sources.append(reader.open(path))
        except UncheckedFileError as error:
            yield Finding("file-unchecked", Place(path), f"{path.name} {error}")
    written = [opened for opened in sources if opened.path.suffix != ".py"]
    code = [opened for opened in sources if opened.path.suffix == ".py"]
    for source in code:
        yield from check_other_python(source)
    beside = [path for directory in models for path in directory.glob("*/*.py")]
    of_models = filter(None, map(SourceFile.read, beside))
    served = Served(frozenset(model.name for model in models), declared_metrics(chain(code, of_models)))
    yield from check_deployment(written, served)
    together: dict[Path, list[SourceFile]] = defaultdict(list)
    for source in written:
        if source.path.suffix != ".json":
            together[source.path.parent].append(source)
    texts = [text for text in written if text.path.suffix == ".md"]
    for page in texts:
        yield from check_page(page)
    for directory, here in together.items():
        # A text describes the files beside it and in folders below, such as the README of a chart or project.
        near = [text for text in texts if directory.is_relative_to(text.path.parent)]
        yield from check_images(
            [*(written_source for written_source in here if written_source.path.suffix != ".md"), *near]
        )


def check_text(text: str, kind: str) -> Report:
    """Check a text of a kind in `KINDS`. The places of the findings are in a file named `<stdin>`.

    Of a config.pbtxt, rules about other files of the model are left out.
    """
    with TemporaryDirectory(prefix="conch-check-") as folder:
        path = Path(folder) / KINDS[kind]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
        report = check_paths([path])
    findings = tuple(_renamed(finding, path) for finding in report.findings if finding.place.path == path)
    return replace(report, findings=findings, reader=SourceReader([SourceFile(STDIN_NAME, text)]))


def _renamed(finding: Finding, path: Path) -> Finding:
    def renamed(place: Place) -> Place:
        return replace(place, path=STDIN_NAME)

    related = tuple(Related(renamed(other.place), other.what) for other in finding.related if other.place.path == path)
    message = finding.message.replace(str(path), str(STDIN_NAME))
    return replace(finding, place=renamed(finding.place), message=message, related=related, edits=())


def fix_paths(paths: Sequence[Path], rules: frozenset[str]) -> tuple[Report, str]:
    """Fix findings of these rules if that is safe; return the remaining findings, and the changes as a diff.

    A file is fixed one finding at a time, because one mistake often hides another. Raises OSError if a file cannot be
    written, which is then unchanged.
    """
    before: dict[Path, str] = {}
    report = check_paths(paths)
    for _ in range(_MAX_ROUNDS):
        fixable: dict[Path, Finding] = {}
        for finding in report.findings:
            if finding.edits and finding.rule_id in rules:
                fixable.setdefault(finding.place.path, finding)
        for path, finding in fixable.items():
            source = SourceFile.read(path)
            if source is not None:
                before.setdefault(path, source.text)
                _write(path, source.edited(finding.edits).text)
        if not fixable:
            break
        report = check_paths(paths)
    return report, "".join(_diff(path, text) for path, text in before.items())


def _write(path: Path, text: str) -> None:
    """Replace the text of a file atomically."""
    mark = b"\xef\xbb\xbf" if path.read_bytes().startswith(b"\xef\xbb\xbf") else b""
    replace_file(path.resolve(), mark + text.encode())  # the target of a link, not the link


def _diff(path: Path, before: str) -> str:
    after = SourceFile.read(path)
    lines = unified_diff(
        before.splitlines(), (after.text if after else "").splitlines(), str(path), str(path), lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


_SUPPRESSION = re.compile(r"(?:#|//|<!--|\{#|\{\{/\*)[^\n]{0,200}?\bconch: ignore\[([\w, -]+)\]")


def unsuppressed(findings: Iterable[Finding], reader: SourceReader) -> Iterator[Finding]:
    """Yield the findings that no comment suppresses."""
    suppressed: dict[Place, set[str]] = {}  # by line
    for finding in findings:
        line = replace(finding.place, column=0)
        if line not in suppressed:
            source = reader.read(line.path) if line.line else None
            near = (source.text[source.span(number)] for number in (line.line - 1, line.line)) if source else ()
            suppressed[line] = {suppressed_id for text in near for suppressed_id in _suppressed_ids(text)}
        if finding.rule_id not in suppressed[line]:
            yield finding


def _suppressed_ids(line: str) -> set[str]:
    match = _SUPPRESSION.search(line)
    return {part.strip() for part in match[1].split(",")} if match else set()
