"""A certificate as one HTML file: no network, charts in SVG, the JSON within."""

import base64
import gzip
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from conch.base.report.chart import draw
from conch.base.report.page import charts, embedded_json, facts, figures, page, table, tag
from conch.base.report.page import verdict as verdict_box
from conch.measure.bench.measurement import Measurement, Note
from conch.measure.bench.report.certificate import (
    Certificate,
    all_notes,
    shell_line,
    target_line,
    to_json,
    verdict_lines,
)
from conch.measure.bench.report.charts import draw_effects, level_charts, one_level_charts
from conch.measure.bench.report.fact_tables import (
    FactTable,
    effect_table,
    environment_table,
    error_table,
    gpu_table,
    health_table,
    key_figures,
    settings_table,
)
from conch.measure.bench.report.level_columns import asked_percentiles, level_table, remarks

# Larger documents are compressed, and of still larger ones the time series are thinned: a page has at most 300 KB.
_MAX_PLAIN_BYTES = 40_000
_MAX_DOCUMENT_BYTES = 100_000
_MAX_DRAWN_LEVELS = 6
_FOOTER = """Intervals are of 95 %. The data of this page are embedded as JSON: conch bench compare A.html B.html
compares two certificates."""


def to_html(certificate: Certificate) -> str:
    """Return a certificate as a page."""
    notes = all_notes(certificate)
    severity = next((note.severity for note in notes if note.severity in ("invalid", "warning")), "")
    document, encoding = _embedded(certificate)
    measured = [measurement for measurement in certificate.measurements if measurement.requests]
    titles, rows = level_table(certificate.measurements, asked_percentiles(certificate.settings))
    created = certificate.created_at.replace("T", " ").replace("+00:00", " UTC")
    return page(
        certificate.target.model or certificate.target.url,
        tag("p", target_line(certificate.target), class_="lead"),
        verdict_box(verdict_lines(certificate), severity),
        figures(key_figures(certificate)),
        _ab(certificate),
        tag("h2", "Levels"),
        table(titles, rows, "Levels"),
        (tag("p", remark, class_="summary") for remark in remarks(certificate.measurements)),
        charts(map(draw, level_charts(measured, certificate.saturation))),
        _each_level(certificate, measured),
        _section("Errors", error_table(certificate.measurements), prose=(2,)),
        _section("Load generator", health_table(certificate.measurements)),
        _section("GPUs", gpu_table(certificate.measurements)),
        _notes(notes),
        tag("h2", "How to reproduce"),
        tag("pre", tag("code", shell_line(certificate.command), class_="command")),
        tag(
            "div",
            tag("section", tag("h2", "Target and settings"), facts(settings_table(certificate).rows)),
            tag("section", tag("h2", "Environment"), facts(environment_table(certificate.environment).rows)),
            class_="columns",
        ),
        kind=f"Benchmark certificate · {created} · conch {certificate.tool_version}",
        data=embedded_json(document, "certificate", data_encoding=encoding or None),
        footer=_FOOTER,
    )


def _ab(certificate: Certificate) -> Sequence[Markup]:
    if certificate.ab is None:
        return ()
    effects = certificate.ab.effects
    sides = f"A is {target_line(certificate.ab.baseline)}. B is {target_line(certificate.target)}. "
    return (
        *_section("A/B comparison", effect_table(effects)),
        tag("p", f"{sides}They were measured in turn."),
        charts([draw_effects(effects)] if effects else []),
    )


def _each_level(certificate: Certificate, measured: Sequence[Measurement]) -> Sequence[Markup]:
    """Return the charts of each level, closed but for the level of saturation; of many levels those around it."""
    labels = [measurement.level.label for measurement in measured]
    saturated = certificate.saturation.level if certificate.saturation else ""
    opened = labels.index(saturated) if saturated in labels else 0
    first = max(min(opened - _MAX_DRAWN_LEVELS // 2, len(measured) - _MAX_DRAWN_LEVELS), 0)
    drawn = range(len(measured))[first : first + _MAX_DRAWN_LEVELS]
    parts = [
        tag(
            "details",
            tag("summary", f"{measured[index].level.kind.capitalize()} {labels[index]}"),
            charts(map(draw, one_level_charts(measured[index]))),
            name="level",
            open="" if index == opened else None,
        )
        for index in drawn
    ]
    if len(drawn) < len(measured):
        text = f"Charts of {len(drawn)} of {len(measured)} levels, around the one of saturation."
        parts.insert(0, tag("p", text, class_="summary"))
    return [tag("h2", "Each level"), *parts] if parts else ()


def _section(title: str, content: FactTable, prose: Sequence[int] = ()) -> Sequence[Markup]:
    return (tag("h2", title), table(content.head, content.rows, title, prose=prose)) if content.rows else ()


def _notes(notes: Sequence[Note]) -> Sequence[Markup]:
    lines = [
        tag("li", tag("span", note.severity, class_=f"badge {note.severity}"), " ", note.message) for note in notes
    ]
    return (tag("h2", "Notes"), tag("ul", lines, class_="notes")) if lines else ()


def _embedded(certificate: Certificate) -> tuple[str, str]:
    """Return the document for a script element, and its encoding."""
    plain = to_json(certificate, indent=False).decode()
    if len(plain) <= _MAX_PLAIN_BYTES:
        return plain, ""
    packed = _packed(certificate)
    points = 120
    while len(packed) > _MAX_DOCUMENT_BYTES and points:
        thinned = tuple(_thinned(measurement, points) for measurement in certificate.measurements)
        packed = _packed(replace(certificate, measurements=thinned))
        points //= 4
    return packed, "gzip"


def _packed(certificate: Certificate) -> str:
    return base64.b64encode(gzip.compress(to_json(certificate, indent=False), mtime=0)).decode()


def _thinned(measurement: Measurement, points: int) -> Measurement:
    """Return a measurement with the first `points` seconds of its series."""
    return replace(measurement, series={name: values[:points] for name, values in measurement.series.items()})
