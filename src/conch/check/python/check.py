"""Apply all rules for Python files, of models and beside a repository, and list the metrics that the files declare."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.check.finding import Finding, Place
from conch.check.models.checked_model import CheckedModel
from conch.check.python.contract import check_class, check_execute, check_tensors
from conch.check.python.file import API_MODULE, PythonFile, siblings, text_of
from conch.check.python.nodes import (
    ANY_FILE,
    CLIENT,
    METRICS,
    MODEL,
    MODEL_FILE,
    ModelCode,
    check_nodes,
    missing_modules,
    unlimited_images,
)
from conch.check.source import NotTextError, SourceFile, UncheckedFileError
from conch.domain.files.model_folder import chosen_versions

_ENVIRONMENT = "EXECUTION_ENV_PATH"
_CLIENT_MODULE = "tritonclient"
_FAMILY = "MetricFamily"


def check_python_model(model: CheckedModel) -> Iterator[Finding]:
    """Check the code of each version that would be served."""
    try:
        versions = chosen_versions(model.config, model.files.versions_on_disk)
    except ModelLoadError:
        return  # `check_files` reports it
    for version in versions:
        path = model.directory / str(version) / (model.config.default_model_filename or "model.py")
        parsed = list(_read(path))
        yield from (reading for reading in parsed if isinstance(reading, Finding))
        if not parsed or isinstance(parsed[0], Finding):
            continue
        main = parsed[0]
        yield from check_class(main)
        yield from check_execute(main, model)
        yield from check_tensors(main, model)
        yield from _check_all(main, model)


def check_other_python(source: SourceFile) -> Iterator[Finding]:
    """Check a Python file that belongs to no model: its uses of Triton's module, and of Triton's client."""
    if not any(name in source.text for name in (API_MODULE, _CLIENT_MODULE)):
        return
    for parsed in _parsed(source):
        if isinstance(parsed, PythonFile):
            client = CLIENT if _CLIENT_MODULE in source.text else {}
            metrics = METRICS if API_MODULE in source.text else {}
            yield from check_nodes(ModelCode(parsed), ANY_FILE, client, metrics)


def _check_all(main: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Apply the rules that also hold for modules beside the model's file."""
    paths = siblings(main.source.path)
    files = [main]
    for parsed in chain.from_iterable(map(_read, paths)):
        if isinstance(parsed, Finding):
            yield parsed
        else:
            files.append(parsed)
    beside = {path.stem for path in paths} | {path.name for path in main.source.path.parent.iterdir() if path.is_dir()}
    beside |= {path.name for path in model.directory.iterdir() if path.is_dir()}
    yield from check_nodes(ModelCode(main, model), ANY_FILE, METRICS, MODEL, MODEL_FILE)
    for file in files[1:]:
        yield from check_nodes(ModelCode(file), ANY_FILE, METRICS, MODEL)
    if _ENVIRONMENT not in model.config.parameters:
        yield from missing_modules(files, beside)
    yield from unlimited_images(files)


def _read(path: Path) -> Iterator[PythonFile | Finding]:
    try:
        source = SourceFile.open(path)
    except UncheckedFileError as error:
        if path.is_file():
            rule = "python-syntax" if isinstance(error, NotTextError) else "file-unchecked"
            yield Finding(rule, Place(path), f"{path.name} {error}")
        return
    yield from _parsed(source)


def _parsed(source: SourceFile) -> Iterator[PythonFile | Finding]:
    path = source.path
    try:
        yield PythonFile.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = (error.lineno or 0, error.offset or 1) if isinstance(error, SyntaxError) else (0, 0)
        message = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deeply"
        yield Finding("python-syntax", Place(path, line, column), f"{path.name}: {message}")


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A metric that Python code declares."""

    name: str
    kind: str  # "gauge", "counter", "histogram" or ""
    place: Place


def declared_metrics(sources: Iterable[SourceFile]) -> dict[str, DeclaredMetric]:
    """Return the metrics that files declare, by name: calls of MetricFamily, and subclasses of it."""
    metrics: dict[str, DeclaredMetric] = {}
    for source in sources:
        if _FAMILY not in source.text:
            continue
        try:
            file = PythonFile.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # another rule reports it
        for metric in _declared(file):
            metrics.setdefault(metric.name, metric)
    return metrics


def _declared(file: PythonFile) -> Iterator[DeclaredMetric]:
    for call in file.calls_of(_FAMILY):
        settings = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        name = text_of(settings.get("name") or (call.args[0] if call.args else None))
        if name:
            kind = settings.get("kind")
            yield DeclaredMetric(name, _kind(kind), file.place(call))
    for node in file.nodes:
        if isinstance(node, ast.ClassDef) and any(file.api(base) == _FAMILY for base in node.bases):
            values = {
                target.id: statement.value
                for statement in node.body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
            if name := text_of(values.get("name")):
                yield DeclaredMetric(name, _kind(values.get("kind")), file.place(node))


def _kind(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lower()
    return (text_of(node) or "").lower()
