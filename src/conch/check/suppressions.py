"""Comments that suppress findings: `conch: ignore[rule-id]` in the line of a finding, or in the line above."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conch.check.finding import Finding, Place
from conch.check.source import SourceReader

_COMMENT = re.compile(r"(?:#|//|<!--|\{#|\{\{/\*)[^\n]{0,200}?\bconch: ignore\[([\w, -]+)\]")


def unsuppressed(findings: Iterable[Finding], reader: SourceReader) -> Iterator[Finding]:
    """Yield the findings that no comment suppresses."""
    suppressed: dict[Place, set[str]] = {}  # by line
    for finding in findings:
        line = replace(finding.place, column=0)
        if line not in suppressed:
            source = reader.read(line.path) if line.line else None
            near = (source.text[source.span(number)] for number in (line.line - 1, line.line)) if source else ()
            suppressed[line] = {each for text in near for each in _ids(text)}
        if finding.rule_id not in suppressed[line]:
            yield finding


def _ids(line: str) -> set[str]:
    match = _COMMENT.search(line)
    return {each.strip() for each in match[1].split(",")} if match else set()
