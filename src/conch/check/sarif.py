"""Findings in SARIF 2.1.0, the format of code scanning in GitHub, GitLab and editors.

Paths below the working directory are relative to it, as code scanning expects; others are absolute URIs.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conch import __version__
from conch.check.finding import Finding, Place
from conch.check.rules import Rule, Severity

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGE = "https://github.com/conch-server/conch/blob/main/docs/check.md"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTICE: "note"}


def as_sarif(findings: Sequence[Finding], rules: Sequence[Rule], root: Path) -> dict[str, Any]:
    """Return a log with one run. `root` is the folder that relative paths begin at."""
    indices = {rule.id: index for index, rule in enumerate(rules)}
    driver = {
        "name": "conch check",
        "version": __version__,
        "informationUri": _PAGE,
        "rules": [_rule(rule) for rule in rules],
    }
    results = [_result(finding, indices[finding.rule_id], root) for finding in findings]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} {rule.cure}"},
        "helpUri": _PAGE,
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int, root: Path) -> dict[str, Any]:
    uri = _uri(finding.place.path, root)
    # Stable when lines move, so that code scanning recognises a finding in the next revision.
    print_ = sha256(f"{finding.rule_id}\0{uri}\0{finding.message}".encode()).hexdigest()[:32]
    result: dict[str, Any] = {
        "ruleId": finding.rule_id,
        "ruleIndex": index,
        "level": _LEVELS[finding.rule.severity],
        "message": {"text": f"{finding.message}\n{finding.what_to_do}"},
        "locations": [_location(finding.place, root)],
        "partialFingerprints": {"conchFinding/v1": print_},
    }
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": each.what}, **_location(each.place, root)}
            for number, each in enumerate(finding.related, 1)
        ]
    return result


def _location(place: Place, root: Path) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.path, root)}}
    if place.line:
        physical["region"] = {"startLine": place.line, "startColumn": max(place.column, 1)}
    return {"physicalLocation": physical}


def _uri(path: Path, root: Path) -> str:
    absolute = path.absolute()
    if absolute.is_relative_to(root):
        return quote(absolute.relative_to(root).as_posix())
    return absolute.as_uri()
