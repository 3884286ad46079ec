"""Render Helm charts, so that the rules for manifests apply to what they create."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError
from conch.base.helm import HelmError, helm_is_installed, render_chart
from conch.check.finding import Finding, Place, Related
from conch.check.source import SourceFile

CHART_FILE = "Chart.yaml"
_VALUES_FILE = "values.yaml"
_MAX_VALUES_FILES = 8
_OF_LIBRARY = "library charts are not installable"  # they have no objects
_AT = re.compile(r"\(?([\w./-]+/templates/[\w./-]+):(\d+)(?::(\d+))?")
# Values that the user of the chart must give are not a mistake of the chart.
_WANTS_VALUES = re.compile(r"\brequired\b|execution error at|values don't meet the specifications|missing properties")
_DEPENDENCIES = re.compile(r"^dependencies:[ \t]*\n((?:[ \t#-].*\n?|\n)*)", re.MULTILINE)
_DEPENDENCY = re.compile(r"^[ \t]*(?:-[ \t]+)?name:[ \t]*[\"']?([\w.-]+)", re.MULTILINE)
_KEY = re.compile(r"^[\s-]*([\w./-]+):")


@dataclass(frozen=True, slots=True)
class RenderedChart:
    """The manifests of a chart: files with the paths of their templates and the rendered texts."""

    directory: Path
    sources: tuple[SourceFile, ...]

    def relocated(self, finding: Finding) -> Finding:
        """Convert the places of a finding from lines of a rendered text to those of its template."""
        related = tuple(Related(self._place(other.place), other.what) for other in finding.related)
        return replace(finding, place=self._place(finding.place), related=related, edits=())

    def _place(self, place: Place) -> Place:
        source = next((rendered for rendered in self.sources if rendered.path == place.path), None)
        template = SourceFile.read(place.path) if source and place.line else None
        if source is None or template is None:
            return place
        lines = source.text.split("\n")
        if not _same(template.text.split("\n"), lines, place.line):
            # A line that the template does not have may come from the values as it is.
            values = SourceFile.read(self.directory / _VALUES_FILE)
            same = _same(values.text.split("\n"), lines, place.line) if values else []
            if values and len(same) == 1:
                return Place(values.path, same[0], 1)
        line = template_line(template.text.split("\n"), lines, place.line)
        return Place(place.path, line, 1) if line else Place(place.path)


def render_charts(directories: Sequence[Path]) -> tuple[list[RenderedChart], list[Finding]]:
    """Render charts with their defaults, or with the first of their files of values that works."""
    charts: list[RenderedChart] = []
    findings: list[Finding] = []
    for directory in directories:
        chart = Place(directory / CHART_FILE)
        if not helm_is_installed():
            message = "charts were not rendered: neither helm nor the package helm-python-sdk is installed"
            findings.append(Finding("chart-unrendered", chart, message))
            continue
        try:
            manifests, refusal = _render(directory)
        except (OSError, ConchError) as error:
            message = f"chart {directory.name} cannot be rendered: {_first_line(str(error))}"
            findings.append(Finding("chart-invalid", chart, message))
            continue
        if manifests is None:
            findings.append(_failure(directory, refusal))
        else:
            charts.append(RenderedChart(directory, tuple(_sources(directory, manifests))))
    return charts, findings


def template_line(template: Sequence[str], rendered: Sequence[str], number: int) -> int:
    """Return the line of a template that a line of its rendered text comes from, 0 if none is similar."""
    if same := _same(template, rendered, number):
        relative = number / len(rendered)
        return min(same, key=lambda line: abs(line / len(template) - relative))
    line = rendered[number - 1].strip() if 0 < number <= len(rendered) else ""
    key = _KEY.match(line)
    alike = [
        index
        for index, template_text in enumerate(template, 1)
        if key and (other := _KEY.match(template_text)) and other[1] == key[1]
    ]
    if not alike:
        return 0
    indent = len(rendered[number - 1]) - len(rendered[number - 1].lstrip())
    aligned = [index for index in alike if len(template[index - 1]) - len(template[index - 1].lstrip()) == indent]
    # A line without a directive would be equal to the rendered one.
    best = [candidate for candidate in aligned or alike if "{{" in template[candidate - 1]] or aligned or alike
    return max(best, key=lambda index: (SequenceMatcher(None, template[index - 1].strip(), line).ratio(), -index))


def _same(lines: Sequence[str], rendered: Sequence[str], number: int) -> list[int]:
    """Return the numbers of the lines that are equal to a rendered one but for indentation and quotes."""
    wanted = _plain(rendered[number - 1]) if 0 < number <= len(rendered) else ""
    return [index for index, line in enumerate(lines, 1) if wanted and _plain(line) == wanted]


def _plain(line: str) -> str:
    return line.strip().removeprefix("- ").replace('"', "").replace("'", "")


def _render(directory: Path) -> tuple[dict[str, str] | None, str]:
    """Return the templates with the defaults, else with the first file of values that works, else Helm's refusal."""
    refusal = ""
    files = sorted({*directory.glob("*values*.yaml"), *directory.glob("ci/*.yaml")} - {directory / _VALUES_FILE})
    for file in [None, *islice(files, _MAX_VALUES_FILES)]:
        try:
            return render_chart(directory, _values(file) if file else {}), ""
        except (HelmError, ValueError) as error:  # the latter of a file that is not YAML
            refusal = refusal or str(error)
    return ({}, "") if _OF_LIBRARY in refusal else (None, refusal)


def _values(file: Path) -> dict[str, Any]:
    from conch.base.yaml_documents import load_documents

    documents = load_documents(file.read_text(encoding="utf-8"))
    return documents[0].value if documents and isinstance(documents[0].value, dict) else {}


def _sources(directory: Path, manifests: dict[str, str]) -> Iterator[SourceFile]:
    """Yield the manifests of the chart itself; those of charts that it depends on are not its text."""
    for name, text in manifests.items():
        path = directory / name.partition("/")[2]
        if path.is_file() and path.suffix in (".yaml", ".yml") and text.strip():
            yield SourceFile(path, text)


def _failure(directory: Path, error: str) -> Finding:
    at = _AT.search(error)
    path = directory / at[1].partition("/")[2] if at else directory / CHART_FILE
    place = Place(path, int(at[2]), int(at[3] or 1)) if at and path.is_file() else Place(directory / CHART_FILE)
    if absent := _absent_dependencies(directory):
        message = f"chart {directory.name} was not rendered: charts/ lacks its dependencies {', '.join(absent)}"
        cure = f"Run `helm dependency build {directory}` first."
        return Finding("chart-unrendered", Place(directory / CHART_FILE), message, cure)
    message = f"chart {directory.name}: {_summary(error)}"
    if _WANTS_VALUES.search(error):
        cure = f"Put an example of the values that it needs beside it, such as {directory.name}/ci/test-values.yaml."
        return Finding("chart-unrendered", place, message, cure)
    return Finding("chart-invalid", place, message)


def _absent_dependencies(directory: Path) -> list[str]:
    """Return the charts that a chart depends on and that charts/ does not contain."""
    chart = SourceFile.read(directory / CHART_FILE)
    block = _DEPENDENCIES.search(chart.text) if chart else None
    return [
        name
        for name in _DEPENDENCY.findall(block[1] if block else "")
        if not any((directory / "charts").glob(f"{name}*"))
    ]


def _summary(text: str) -> str:
    """Return the first line, with the place, and the last, with the cause."""
    lines = text.strip().splitlines() or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0].removesuffix(':')}: {lines[-1].strip()}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
