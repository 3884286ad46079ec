"""Comments that suppress findings: `conch: ignore[rule-id]` in the line of a finding, or in the line above."""

import re
from collections.abc import Iterable, Iterator

from conch.check.finding import Finding
from conch.check.source import SourceFile

_COMMENT = re.compile(r"(?:#|//|<!--|\{#|\{\{/\*)\s*conch: ignore\[([\w, -]+)\]")


def unsuppressed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that no comment suppresses."""
    lines: dict[str, list[str]] = {}
    for finding in findings:
        place = finding.place
        if place.line:
            name = str(place.path)
            if name not in lines:
                source = SourceFile.read(place.path) if place.path.is_file() else None
                text = source.text if source else ""
                lines[name] = text.split("\n") if "conch: ignore[" in text else []
            near = lines[name][max(place.line - 2, 0) : place.line]
            if any(finding.rule.id in _ids(line) for line in near):
                continue
        yield finding


def _ids(line: str) -> set[str]:
    match = _COMMENT.search(line)
    return {each.strip() for each in match[1].split(",")} if match else set()
