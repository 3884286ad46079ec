"""Limits of requests per second: files of --limits-file, and annotations of Kubernetes objects."""

import re
from collections.abc import Iterator, Sequence

from conch.check.finding import Finding, Place
from conch.check.monitoring.objects import read_objects
from conch.check.rules import monitoring as rules
from conch.check.source import SourceFile
from conch.errors import ConfigError
from conch.limits.annotations import MAX_QPS, PREFIX, read_annotations
from conch.limits.limits_file import read_limits_text

_LIMITS_FILE = re.compile(r"^limits:.*\n(?:\s*(?:#.*)?\n)*\s*- ", re.MULTILINE)
_LINE = re.compile(r"\bline ([0-9]+) of ")


def check_limits(sources: Sequence[SourceFile]) -> Iterator[Finding]:
    """Yield the limits that a server would refuse."""
    for source in sources:
        if not _LIMITS_FILE.search(source.text):
            continue
        try:
            read_limits_text(source.text, f"'{source.path.name}'")
        except ConfigError as error:
            found = _LINE.search(error.message)
            yield Finding(rules.LIMITS_INVALID, Place(source.path, int(found[1]) if found else 1, 1), error.message)
    annotated = [
        each
        for each in sources
        if MAX_QPS in each.text or f"{PREFIX}max" in each.text or f"{PREFIX}limits" in each.text
    ]
    for each in read_objects(annotated):
        try:
            read_annotations(each.value)
        except ConfigError as error:
            yield Finding(rules.LIMITS_INVALID, each.place("metadata", "annotations"), error.message)
