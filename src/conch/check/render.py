"""Print findings, each with its source line as compilers do, or convert them to JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from conch.check.finding import Finding, Place, Rule, Severity
from conch.check.run import Report
from conch.check.source import SourceFile

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTICE: "bold cyan"}
_MAX_EXCERPT_COLUMNS = 160


def print_report(
    report: Report, findings: Sequence[Finding], console: Console, texts: Mapping[Path, str] | None = None
) -> None:
    """Print findings and a summary. `texts` are those of files that are not on disk."""
    for finding in findings:
        console.print(_entry(finding, texts or {}))
        console.print()
    counts = Counter(finding.rule.severity for finding in findings)
    totals = ", ".join(_count(counts[severity], severity.value) for severity in Severity if counts[severity])
    checked = f"{_count(report.models, 'model')} and {_count(report.files, 'other file')}"
    style = next((_STYLES[severity] for severity in Severity if counts[severity]), "bold green")
    console.print(Text.assemble((totals or "no problems", style), f" in {checked}"), soft_wrap=True)
    if any(finding.edits for finding in findings):
        console.print("conch check --fix fixes what can be fixed safely.", highlight=False)


def as_document(report: Report, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as JSON values."""
    counts = Counter(finding.rule.severity for finding in findings)
    return {
        "findings": [_document(finding) for finding in findings],
        "summary": {
            "models": report.models,
            "files": report.files,
            **{f"{severity.value}s": counts[severity] for severity in Severity},
        },
    }


def _entry(finding: Finding, texts: Mapping[Path, str]) -> Group:
    rule = finding.rule
    parts = [
        Text.assemble((f"{rule.severity.value}[{rule.id}]", _STYLES[rule.severity]), " ", (str(finding.place), "bold")),
        *_excerpt(finding.place, texts),
        _field("", finding.message),
        _field("why: ", rule.why),
        _field("fix: ", finding.what_to_do),
    ]
    for related in finding.related:
        parts.append(_field("see: ", f"{related.place}: {related.what}"))
        parts += _excerpt(related.place, texts)
    return Group(*parts)


def _field(label: str, text: str) -> Any:
    return Padding(Text.assemble((label, "dim"), text), (0, 0, 0, 2), expand=False)


def print_rule(rule: Rule, console: Console) -> None:
    """Print what a rule finds, why, and the remedy."""
    console.print(
        Text.assemble((f"{rule.severity.value}[{rule.id}]", _STYLES[rule.severity]), " ", (rule.title, "bold"))
    )
    console.print(_field("why: ", rule.why))
    console.print(_field("fix: ", rule.cure))
    console.print(_field("ignore: ", f"conch check --ignore {rule.id}, or a comment `conch: ignore[{rule.id}]`"))


def _excerpt(place: Place, texts: Mapping[Path, str]) -> list[Text]:
    """Return the line of a place with a mark below its column."""
    source = SourceFile(place.path, texts[place.path]) if place.path in texts else None
    if source is None and place.line and place.path.is_file():
        source = SourceFile.read(place.path)
    lines = source.text.split("\n") if source else []
    if not 0 < place.line <= len(lines):
        return []
    line = lines[place.line - 1].replace("\t", " ").rstrip()
    begin = max(place.column - _MAX_EXCERPT_COLUMNS // 2, 0) if len(line) > _MAX_EXCERPT_COLUMNS else 0
    number = f"{place.line:>6} | "
    shown = line[begin : begin + _MAX_EXCERPT_COLUMNS]
    mark = " " * (len(number) - 2) + "| " + " " * (place.column - 1 - begin) + "^"
    return [Text(number + shown, no_wrap=True, overflow="ignore"), Text(mark, "bold", no_wrap=True, overflow="ignore")]


def _document(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "rule": rule.id,
        "severity": rule.severity.value,
        **_where(finding.place),
        "message": finding.message,
        "why": rule.why,
        "cure": finding.what_to_do,
        "fixable": bool(finding.edits),
        "related": [{**_where(each.place), "message": each.what} for each in finding.related],
    }


def _where(place: Place) -> dict[str, Any]:
    return {"file": str(place.path), "line": place.line, "column": place.column}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
