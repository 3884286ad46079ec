"""Check limits of requests per second: files of --limits-file, and annotations of Kubernetes objects."""

import re
from collections.abc import Iterator, Sequence

from conch.base.errors import ConfigError
from conch.base.suggestion import did_you_mean
from conch.check.deployment.objects import CheckedObject
from conch.check.finding import Finding, Place
from conch.check.source import SourceFile
from conch.domain.limits import read_annotations, read_limits_text

_LIMITS_FILE = re.compile(r"^limits:.*\n(?:\s*(?:#.*)?\n)*\s*- ", re.MULTILINE)
_LINE = re.compile(r"\bline ([0-9]+) of ")


def check_limits(
    sources: Sequence[SourceFile], objects: Sequence[CheckedObject], models: frozenset[str]
) -> Iterator[Finding]:
    """Yield the limits that a server would refuse, and those of models that are not in `models` if it is not empty."""
    for source in sources:
        if not is_limits_file(source):
            continue
        try:
            limits = read_limits_text(source.text, f"'{source.path.name}'")
        except ConfigError as error:
            match = _LINE.search(error.message)
            yield Finding("limits-invalid", Place(source.path, int(match[1]) if match else 1, 1), error.message)
        else:
            yield from _unknown_models(source, sorted({key.subject.model for key in limits}), models)
    for document in objects:
        try:
            read_annotations(document.value)
        except ConfigError as error:
            yield Finding("limits-invalid", document.place("metadata", "annotations"), error.message)


def is_limits_file(source: SourceFile) -> bool:
    """Whether a file has a list of limits."""
    return source.path.suffix != ".tf" and bool(_LIMITS_FILE.search(source.text))


def _unknown_models(source: SourceFile, named: Sequence[str], models: frozenset[str]) -> Iterator[Finding]:
    for name in named:
        if models and name not in (*models, "*", ""):
            message = f"limits for model '{name}', which no checked repository has{did_you_mean(name, models)}"
            place = source.find(rf"\bmodel:[ \t]*[\"']?{re.escape(name)}\b")
            yield Finding("limits-unknown-model", place, message)
