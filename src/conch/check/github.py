"""Findings as workflow commands of GitHub Actions, which show them as annotations in the changed files."""

from collections.abc import Iterator, Sequence

from conch.check.finding import Finding


def annotations(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line for each finding: `::error file=…,line=…,col=…,title=…::message`."""
    for finding in findings:
        place = finding.place
        properties = {"file": str(place.path)}
        if place.line:
            properties |= {"line": str(place.line), "col": str(max(place.column, 1))}
        properties["title"] = finding.rule_id
        shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
        message = f"{finding.message}\n{finding.rule.why}\n{finding.what_to_do}"
        yield f"::{finding.rule.severity.value} {shown}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
