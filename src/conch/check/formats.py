"""Findings as text with source lines, as JSON, as SARIF 2.1.0, and as annotations of GitHub Actions.

SARIF has paths below the working directory relative to it, as code scanning expects; others are absolute URIs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conch import __version__
from conch.check.check_paths import Report
from conch.check.finding import Finding, Place, Rule, Severity
from conch.check.source import SourceReader

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTICE: "bold cyan"}
_MAX_EXCERPT_COLUMNS = 160
_INDENT = 2
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_Line: TypeAlias = tuple[int, Text]  # indentation and text
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGE = "https://github.com/conch-server/conch/blob/main/docs/check.md"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTICE: "note"}


def print_report(report: Report, findings: Sequence[Finding], console: Console) -> None:
    """Print findings and a summary."""
    for finding in findings:
        _print_lines(_entry(finding, report.reader), console)
    counts = Counter(finding.rule.severity for finding in findings)
    totals = ", ".join(_counted(counts[severity], severity.value) for severity in Severity if counts[severity])
    checked = f"{_counted(report.models, 'model')} and {_counted(report.files, 'other file')}"
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


def _entry(finding: Finding, reader: SourceReader) -> Iterator[_Line]:
    rule = finding.rule
    severity = (f"{rule.severity.value}[{rule.id}]", _STYLES[rule.severity])
    yield 0, Text.assemble(severity, " ", (_printable(str(finding.place)), "bold"))
    yield from _excerpt(finding.place, reader)
    yield _field("", finding.message)
    yield _field("why: ", rule.why)
    yield _field("fix: ", finding.what_to_do)
    for related in finding.related:
        yield _field("see: ", f"{related.place}: {related.what}")
        yield from _excerpt(related.place, reader)
    yield 0, Text()


def _field(label: str, text: str) -> _Line:
    return _INDENT, Text.assemble((label, "dim"), _printable(text))


def _printable(text: str) -> str:
    """Replace control characters of files and their names, which a terminal would execute."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _print_lines(lines: Iterable[_Line], console: Console) -> None:
    """Print lines, wrapped and styled in a terminal; without one, wrapping would take most of the time of a check."""
    for indent, text in lines:
        if console.is_terminal:
            console.print(Padding(text, (0, 0, 0, indent), expand=False))
        else:
            margin = " " * indent
            console.file.write(f"{margin}{text.plain}".replace("\n", f"\n{margin}") + "\n")


def print_rule(rule: Rule, console: Console) -> None:
    """Print what a rule finds, why, and the remedy."""
    title = Text.assemble((f"{rule.severity.value}[{rule.id}]", _STYLES[rule.severity]), " ", (rule.title, "bold"))
    ignore = f"conch check --ignore {rule.id}, or a comment `conch: ignore[{rule.id}]`"
    fields = (_field("why: ", rule.why), _field("fix: ", rule.cure), _field("ignore: ", ignore))
    _print_lines(((0, title), *fields), console)


def _excerpt(place: Place, reader: SourceReader) -> Iterator[_Line]:
    """Yield the line of a place with a mark below its column."""
    source = reader.read(place.path) if place.line else None
    if source is None or place.line > source.lines:
        return
    line = source.span(place.line)
    length = line.stop - line.start
    begin = max(place.column - _MAX_EXCERPT_COLUMNS // 2, 0) if length > _MAX_EXCERPT_COLUMNS else 0
    start = line.start + begin
    shown = source.text[start : min(start + _MAX_EXCERPT_COLUMNS, line.stop)].replace("\t", " ").rstrip()
    number = f"{place.line:>6} | "
    mark = " " * (len(number) - 2) + "| " + " " * (place.column - 1 - begin) + "^"
    yield 0, Text(number + _printable(shown), no_wrap=True, overflow="ignore")
    yield 0, Text(mark, "bold", no_wrap=True, overflow="ignore")


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
        "related": [{**_where(related.place), "message": related.what} for related in finding.related],
    }


def _where(place: Place) -> dict[str, Any]:
    return {"file": str(place.path), "line": place.line, "column": place.column}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def annotations(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line for each finding: `::error file=…,line=…,col=…,title=…::message`."""
    for finding in findings:
        place = finding.place
        properties = {"file": str(place.path)}
        if place.line:
            properties |= {"line": str(place.line), "col": str(max(place.column, 1))}
        properties["title"] = finding.rule_id
        shown = ",".join(f"{name}={_escaped_property(value)}" for name, value in properties.items())
        message = f"{finding.message}\n{finding.rule.why}\n{finding.what_to_do}"
        yield f"::{finding.rule.severity.value} {shown}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(findings: Sequence[Finding], rules: Sequence[Rule], root: Path) -> dict[str, Any]:
    """Return a log with one run. `root` is the folder that relative paths begin at."""
    indices = {rule.id: index for index, rule in enumerate(rules)}
    driver = {
        "name": "conch check",
        "version": __version__,
        "informationUri": _PAGE,
        "rules": [_sarif_rule(rule) for rule in rules],
    }
    results = [_sarif_result(finding, indices[finding.rule_id], root) for finding in findings]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} {rule.cure}"},
        "helpUri": _PAGE,
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _sarif_result(finding: Finding, index: int, root: Path) -> dict[str, Any]:
    uri = _uri(finding.place.path, root)
    # Stable when lines move, so that code scanning recognises a finding in the next revision.
    print_ = sha256(f"{finding.rule_id}\0{uri}\0{finding.message}".encode()).hexdigest()[:32]
    result: dict[str, Any] = {
        "ruleId": finding.rule_id,
        "ruleIndex": index,
        "level": _LEVELS[finding.rule.severity],
        "message": {"text": f"{finding.message}\n{finding.what_to_do}"},
        "locations": [_sarif_location(finding.place, root)],
        "partialFingerprints": {"conchFinding/v1": print_},
    }
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": related.what}, **_sarif_location(related.place, root)}
            for number, related in enumerate(finding.related, 1)
        ]
    return result


def _sarif_location(place: Place, root: Path) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.path, root)}}
    if place.line:
        physical["region"] = {"startLine": place.line, "startColumn": max(place.column, 1)}
    return {"physicalLocation": physical}


def _uri(path: Path, root: Path) -> str:
    absolute = path.absolute()
    if absolute.is_relative_to(root):
        return quote(absolute.relative_to(root).as_posix())
    return absolute.as_uri()
