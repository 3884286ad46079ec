"""A certificate as one HTML file: no network, interactive plots, the JSON within."""

import base64
import gzip
import hashlib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from conch.base.files.atomic import replace_file
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.report.certificate import Certificate, all_notes, verdict_lines
from conch.measure.bench.report.certificate_file import to_json
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
from conch.measure.bench.report.public_command import shell_line
from conch.measure.bench.report.target_line import target_line

# Larger documents are compressed, and of still larger ones the time series are thinned: a page has at most 300 KB.
_MAX_PLAIN_BYTES = 100_000
_MAX_DOCUMENT_BYTES = 200_000
_SCRIPTS = ("plot.js", "certificate.js")


def write_html(certificate: Certificate, path: Path) -> None:
    """Write a certificate as a page, atomically. Raises OSError."""
    replace_file(path, to_html(certificate).encode())


def to_html(certificate: Certificate) -> str:
    """Return a certificate as a page."""
    from jinja2 import Environment as Templates
    from markupsafe import Markup

    style, script = _asset("certificate.css"), "\n".join(_asset(name) for name in _SCRIPTS)
    document, encoding = _embedded(certificate)
    notes = all_notes(certificate)
    titles, rows = level_table(certificate.measurements, asked_percentiles(certificate.settings))
    ab = certificate.ab
    template = Templates(autoescape=True, trim_blocks=True).from_string(_asset("certificate.html"))
    return template.render(
        title=certificate.target.model or certificate.target.url,
        target=target_line(certificate.target),
        created_at=certificate.created_at.replace("T", " ").replace("+00:00", " UTC"),
        tool_version=certificate.tool_version,
        severity=next((each.severity for each in notes if each.severity in ("invalid", "warning")), ""),
        verdict=verdict_lines(certificate),
        figures=key_figures(certificate),
        levels=FactTable(tuple(titles), tuple(map(tuple, rows))),
        remarks=remarks(certificate.measurements),
        errors=error_table(certificate.measurements),
        health=health_table(certificate.measurements),
        gpus=gpu_table(certificate.measurements),
        ab={"baseline": target_line(ab.baseline), "table": effect_table(ab.effects)} if ab else None,
        notes=notes,
        command=shell_line(certificate.command),
        settings=settings_table(certificate),
        environment=environment_table(certificate.environment),
        style=Markup(style),  # noqa: S704 the package's own files; the document has no "<"
        style_hash=Markup(_hash(style)),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=Markup(_hash(script)),  # noqa: S704
        document=Markup(document),  # noqa: S704
        encoding=encoding,
    )


def _embedded(certificate: Certificate) -> tuple[str, str]:
    """Return the document for a script element, and its encoding."""
    plain = to_json(certificate, indent=False).replace(b"<", b"\\u003c").decode()
    if len(plain) <= _MAX_PLAIN_BYTES:
        return plain, ""
    packed = _packed(certificate)
    points = 120
    while len(packed) > _MAX_DOCUMENT_BYTES and points:
        thinned = tuple(_thinned(each, points) for each in certificate.measurements)
        packed = _packed(replace(certificate, measurements=thinned))
        points //= 4
    return packed, "gzip"


def _packed(certificate: Certificate) -> str:
    return base64.b64encode(gzip.compress(to_json(certificate, indent=False), mtime=0)).decode()


def _thinned(measurement: Measurement, points: int) -> Measurement:
    """Return a measurement with the first `points` seconds of its series."""
    return replace(measurement, series={name: values[:points] for name, values in measurement.series.items()})


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (files("conch.measure.bench.report") / "assets" / name).read_text(encoding="utf-8")
