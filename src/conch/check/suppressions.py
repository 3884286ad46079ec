"""Comments that suppress findings: `conch: ignore[RULE]`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conch.check.finding import Finding, Place
from conch.check.source import SourceReader

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
