"""Apply all rules for Python files, of models and beside a repository."""

from collections.abc import Iterator
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.check.finding import Finding, Place
from conch.check.models.model import CheckedModel
from conch.check.python.clients import CLIENT_MODULE, check_timing
from conch.check.python.contract import check_class, check_execute, check_habits, check_imports, check_names
from conch.check.python.file import API_MODULE, PythonFile, siblings
from conch.check.python.items import check_class_names, check_images, check_items
from conch.check.python.metrics import check_gauges
from conch.check.python.tensors import check_tensors
from conch.check.source import NotTextError, SourceFile, UncheckedFileError
from conch.domain.files.model_folder import chosen_versions

_ENVIRONMENT = "EXECUTION_ENV_PATH"


def check_python_model(model: CheckedModel) -> Iterator[Finding]:
    """Check the code of each version that would be served."""
    try:
        versions = chosen_versions(model.config, model.files.versions_on_disk)
    except ModelLoadError:
        return  # `check_files` reports it
    for version in versions:
        path = model.directory / str(version) / (model.config.default_model_filename or "model.py")
        parsed = list(_read(path))
        yield from (each for each in parsed if isinstance(each, Finding))
        if not parsed or isinstance(parsed[0], Finding):
            continue
        main = parsed[0]
        yield from check_class(main)
        yield from check_execute(main, model)
        yield from check_tensors(main, model)
        yield from check_items(main, model)
        yield from check_class_names(main, model)
        yield from _check_all(main, model)


def check_other_python(source: SourceFile) -> Iterator[Finding]:
    """Check a Python file that belongs to no model: its uses of Triton's module, and of Triton's client."""
    if not any(name in source.text for name in (API_MODULE, CLIENT_MODULE)):
        return
    for parsed in _parsed(source):
        if isinstance(parsed, PythonFile):
            yield from check_names(parsed)
            if CLIENT_MODULE in source.text:
                yield from check_timing(parsed)
            if API_MODULE in source.text:
                yield from check_gauges(parsed)


def _check_all(main: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Apply the rules that also hold for modules beside the model's file."""
    paths = siblings(main.source.path)
    files = [main]
    for parsed in (each for path in paths for each in _read(path)):
        if isinstance(parsed, Finding):
            yield parsed
        else:
            files.append(parsed)
    beside = {path.stem for path in paths} | {path.name for path in main.source.path.parent.iterdir() if path.is_dir()}
    beside |= {path.name for path in model.directory.iterdir() if path.is_dir()}
    brings_environment = _ENVIRONMENT in model.config.parameters
    for file in files:
        yield from check_names(file)
        yield from check_habits(file)
        yield from check_gauges(file)
    if not brings_environment:
        yield from check_imports(files, beside)
    yield from check_images(files)


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
