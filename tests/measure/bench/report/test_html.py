"""The HTML certificate: one file that holds everything, and draws it in a real browser."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from conch.measure.bench.command import write_certificate
from conch.measure.bench.measurement import Estimate
from conch.measure.bench.report.certificate import Certificate, read_certificate
from conch.measure.bench.report.html import to_html
from tests.measure.bench.report.browser import chromium
from tests.measure.bench.report.samples import (
    HOSTILE,
    ab_certificate,
    certificate,
    hostile_certificate,
    measurement,
    s0_certificate,
)

MAX_BYTES = 300_000


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_the_page_refers_to_nothing_outside() -> None:
    page = to_html(ab_certificate())
    elements = Elements(page).elements
    assert not [
        tag for tag, attributes in elements if tag in {"link", "img", "iframe"} or attributes.keys() & {"src", "href"}
    ]
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize("make", [ab_certificate, hostile_certificate, s0_certificate, certificate])
def test_the_page_can_be_read_as_a_certificate(make, tmp_path: Path) -> None:
    made = make()  # once: it holds the clock rate of this moment
    write_certificate("html", made, tmp_path / "run.html")
    assert read_certificate(tmp_path / "run.html") == made


def test_no_name_becomes_markup() -> None:
    usual, hostile = (Elements(to_html(make())).elements for make in (ab_certificate, hostile_certificate))
    assert {tag for tag, _ in hostile} <= {tag for tag, _ in usual} | {"td"}
    assert sum(tag == "script" for tag, _ in hostile) == 1
    assert html.escape(HOSTILE, quote=False).partition("&#")[0] in to_html(hostile_certificate())


def test_a_long_run_fits(tmp_path: Path) -> None:
    long = measurement(8)
    series = {name: values * 400 for name, values in long.series.items()}  # an hour
    write_certificate(
        "html", replace(certificate(), measurements=(replace(long, series=series),) * 32), tmp_path / "run.html"
    )
    assert (tmp_path / "run.html").stat().st_size < MAX_BYTES
    assert len(read_certificate(tmp_path / "run.html").measurements) == 32


def near_percentiles(low_s: float, high_s: float) -> Certificate:
    """Return a certificate whose percentiles lie close to each other, at the right edge of the histogram."""
    document = certificate(1)
    (only,) = document.measurements
    assert only.latency
    times = dict(zip(("50", "90", "99", "99.9"), np.geomspace(low_s, high_s, 4), strict=True))
    percentiles = only.latency.percentiles | {name: Estimate(float(value)) for name, value in times.items()}
    edges = tuple((float(edge), 10) for edge in np.geomspace(low_s / 8, 1.05 * high_s, 30))
    latency = replace(only.latency, percentiles=percentiles, histogram=edges)
    return replace(document, measurements=(replace(only, latency=latency),))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1280, 500])
@pytest.mark.parametrize("high_s", [0.0104, 0.013, 0.028, 0.1])
def test_labels_of_percentiles_do_not_overlap(high_s: float, columns: int, tmp_path: Path) -> None:
    write_certificate("html", near_percentiles(0.01, high_s), tmp_path / "run.html")
    page, console = chromium(tmp_path / "run.html", tmp_path, "--dump-dom", columns=columns)
    assert not console
    texts = re.findall(r'<text x="([\d.]+)%" dx="-?4" y="(\d+)" text-anchor="(\w+)" class="mark">(P[^<]+)</text>', page)
    assert {text.split()[0] for *_, text in texts} == {"P50", "P90", "P99", "P99.9"}
    boxes = []
    for x, y, anchor, text in texts:
        width = 6.5 * len(text)
        left = float(x) / 100 * min(columns - 120, 480) - (width if anchor == "end" else 0)
        assert left >= 0
        boxes.append((left, left + width, float(y)))
    for combination, other in combinations(boxes, 2):
        assert combination[2] != other[2] or combination[1] < other[0] or other[1] < combination[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "plots"),
    [
        (ab_certificate, 15),
        (hostile_certificate, 12),
        (lambda: certificate(1, 5, 30, tokens=True), 20),
        (lambda: certificate(*range(1, 33)), 23),
        (s0_certificate, 7),
        (certificate, 0),
    ],
    ids=["ab", "hostile", "language model", "32 levels", "published table", "empty"],
)
def test_a_browser_draws_the_plots(make, plots: int, tmp_path: Path) -> None:
    write_certificate("html", make(), tmp_path / "run.html")
    page, console = chromium(tmp_path / "run.html", tmp_path, "--dump-dom")
    assert console == ""
    elements = Elements(page).elements
    assert sum(tag == "figure" for tag, _ in elements) == plots
    assert sum(attributes.get("role") == "img" for _, attributes in elements) == plots
    assert "NaN" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not [tag for tag, attributes in elements if tag == "img" or "onerror" in attributes]
    assert (tmp_path / "run.html").stat().st_size < MAX_BYTES


@pytest.mark.slow
def test_the_page_prints(tmp_path: Path) -> None:
    write_certificate("html", certificate(1, 5, 30), tmp_path / "run.html")
    chromium(tmp_path / "run.html", tmp_path, f"--print-to-pdf={tmp_path / 'run.pdf'}")
    assert (tmp_path / "run.pdf").read_bytes()[:5] == b"%PDF-"
